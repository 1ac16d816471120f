"""Whether the load is more than the replicas can take: does the queue grow as long as requests arrive?"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.serving.engine.state import ABANDONED, REJECTED, SHED

MIN_REQUESTS = 100  # Fewer say nothing about a trend.
MIN_SHARE = 0.02  # Share of the arrivals that stays behind before it is called growth.
_NUM_PARTS = 10
_MIN_TREND = 25
"""Mann-Kendall statistic of ten values: 25 or more of 45 pairs rise by chance in 1.4 % of cases (Kendall 1970)."""


@dataclass(frozen=True)
class Saturation:
    """The trend of the queue over the second half of the arrivals."""

    is_saturated: bool
    arrivals_per_s: float
    """Requests that arrived per second."""
    growth_per_s: float
    """By how much the number of waiting requests grew per second (negative: it shrank)."""
    waiting_at_end: int
    """Requests that waited when the last one arrived."""

    @property
    def capacity_per_s(self) -> float:
        """Requests per second that were taken from the queue: what the replicas can do, if it grew."""
        return self.arrivals_per_s - self.growth_per_s


def saturation(requests: Any, arrived: int) -> Saturation | None:
    """Look at the queue of the first `arrived` requests (sorted by arrival); None where there is no trend to see."""
    if arrived < MIN_REQUESTS:
        return None
    arrival_s = requests.arrival_s[:arrived]
    half = arrived // 2
    window_s = float(arrival_s[-1] - arrival_s[half])
    if window_s <= 0.0:
        return None
    waiting = _waiting_at_arrivals(requests[:arrived], half)
    rate = (arrived - 1 - half) / window_s
    growth = float(waiting[-1] - waiting[0]) / window_s
    grows = growth > MIN_SHARE * rate and _trend(waiting) >= _MIN_TREND
    return Saturation(grows, rate, growth, int(waiting[-1]))


def _waiting_at_arrivals(requests: Any, first: int) -> Floats:
    """How many requests wait for their first batch right after each arrival from `first` on."""
    refused = np.isin(requests.status, (REJECTED, SHED, ABANDONED))
    started = (requests.scheduled_s >= 0.0) & ~refused
    left_s = np.full(requests.size, np.inf)
    np.copyto(left_s, requests.scheduled_s, where=started)
    np.copyto(left_s, requests.finished_s, where=refused)
    left_s.sort()
    arrived = np.arange(first + 1, requests.size + 1)
    gone = np.searchsorted(left_s, requests.arrival_s[first:], side="right")
    return (arrived - np.minimum(gone, arrived)).astype(np.float64)


def _trend(values: Floats) -> int:
    """Mann-Kendall: of all pairs among the means of ten parts, how many more rise than fall."""
    means = np.array([part.mean() for part in np.array_split(values, _NUM_PARTS)])
    return int(np.sign(means[None, :] - means[:, None])[np.triu_indices(_NUM_PARTS, 1)].sum())
