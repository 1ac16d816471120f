"""Differences between runs of the same requests, request by request, with their 95 % intervals."""

from dataclasses import dataclass

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.core.streams import stream
from gnomon.serving.results.latency import RequestTimes
from gnomon.serving.results.percentiles import NUM_BATCHES, mean_with_margin

COMPARED = ("ttft_s", "tpot_s", "e2e_s", "scheduling_delay_s")

_RESAMPLES = 400  # Bootstrap samples of a percentile: their 2.5 % and 97.5 % points are then steady to a few per cent.


@dataclass(frozen=True)
class Difference:
    """One figure of a variant against the same figure of the baseline, over the requests that both finished."""

    metric: str
    statistic: str
    """mean or p99"""
    baseline: float
    value: float
    low: float | None
    """The 95 % interval of value - baseline; None with fewer than 200 requests."""
    high: float | None
    num_requests: int

    @property
    def difference(self) -> float:
        """Value minus baseline: negative is faster."""
        return self.value - self.baseline

    @property
    def relative(self) -> float | None:
        return self.difference / self.baseline if self.baseline else None

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def paired_differences(baseline: RequestTimes, variant: RequestTimes, seed: int = 0) -> list[Difference]:
    """Means (by batch means of the differences) and P99s (by a bootstrap over blocks) of every latency."""
    found = []
    for metric in COMPARED:
        before, after = getattr(baseline, metric), getattr(variant, metric)
        both = ~(np.isnan(before) | np.isnan(after))
        before, after = before[both], after[both]
        if not before.size:
            continue
        mean, margin = mean_with_margin(after - before)
        low, high = (mean - margin, mean + margin) if margin is not None else (None, None)
        count = int(before.size)
        found.append(Difference(metric, "mean", float(before.mean()), float(before.mean()) + mean, low, high, count))
        low, high = _interval_of_p99(before, after, seed) if margin is not None else (None, None)
        p99_before, p99_after = float(np.percentile(before, 99)), float(np.percentile(after, 99))
        found.append(Difference(metric, "p99", p99_before, p99_after, low, high, count))
    return found


def _interval_of_p99(before: Floats, after: Floats, seed: int) -> tuple[float, float]:
    """Resample whole blocks of consecutive requests, the same for both, since neighbours depend on each other."""
    draws = stream(seed, "bootstrap").integers(0, NUM_BATCHES, (_RESAMPLES, NUM_BATCHES))
    drawn = np.zeros((_RESAMPLES, NUM_BATCHES), np.int64)
    np.add.at(drawn, (np.arange(_RESAMPLES)[:, None], draws), 1)
    low, high = np.percentile(_resampled_p99(after, drawn) - _resampled_p99(before, drawn), [2.5, 97.5])
    return float(low), float(high)


def _resampled_p99(values: Floats, drawn: Ints) -> Floats:
    """The P99 of every resample, linear between neighbours; `drawn[resample, b]` is how often block b was drawn.

    Sorted once for all resamples: a value counts as often as its block was drawn, and the P99 is near the largest.
    """
    size = values.size // NUM_BATCHES
    values = values[: NUM_BATCHES * size]
    position = 0.99 * (values.size - 1)
    share = position - int(position)
    above = values.size - 1 - int(position)  # Values of a resample beyond the lower neighbour of its P99.
    largest = np.argsort(values)[::-1]
    count = 4 * (above + 1)
    while True:
        top = largest[:count]
        reached = np.cumsum(drawn[:, top // size], axis=1)
        if count >= values.size or (reached[:, -1] > above).all():
            break
        count *= 2
    lower = values[top[(reached > above).argmax(axis=1)]]
    upper = values[top[(reached > above - 1).argmax(axis=1)]]
    return upper - (upper - lower) * (1 - share) if share >= 0.5 else lower + (upper - lower) * share
