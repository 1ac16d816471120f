"""How near a deployment runs to what it can take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from gnomon.core.errors import GnomonError
from gnomon.search.load_curve import LoadCurve, capacity, load_curve, saturation
from gnomon.serving.scenario import Scenario
from gnomon.workload import Requests, generate

REQUESTS_PER_RANK = 5000
MAX_REQUESTS = 20_000
"""Requests of one run: enough for a P99, few enough to answer in about a second."""
MIN_PER_RANK = 200
"""With fewer on every replica a run has begun and ended before its queue could grow."""
SURE_PER_RANK = 1000
"""With fewer the capacity may be far off: half of it with 400 of the default workload. Where requests are drawn, twice
as many are."""
PATIENCE_S = 20.0


@dataclass(frozen=True)
class Headroom:
    """A load beside the capacity."""

    load_per_s: float
    capacity_per_s: float
    """The highest load within the limits of the SLO (99 % of the requests) and without a growing queue; 0 for none."""
    has_limits: bool
    curve: LoadCurve
    """Latencies up to beyond the load at which the queue grows."""
    is_rough: bool = False
    """Found with so few requests that the capacity may be far off."""

    @property
    def share(self) -> float | None:
        """How much of the capacity is left; negative above it; None where no load meets the SLO."""
        return 1.0 - self.load_per_s / self.capacity_per_s if self.capacity_per_s else None

    def to_dict(self) -> dict[str, float | None]:
        """Plain data."""
        return {"load_per_s": self.load_per_s, "capacity_per_s": self.capacity_per_s, "headroom": self.share}


def headroom(scenario: Scenario, requests: Requests) -> Headroom | None:
    """None where arrivals have no rate, the fleet changes, there are too few requests to tell, or it takes too long."""
    if scenario.fleet is not None:
        return None
    ranks = sum(pool.num_ranks for pool in scenario.all_pools())
    count = min(len(requests), REQUESTS_PER_RANK * ranks, MAX_REQUESTS)
    if requests.shape is None or count < MIN_PER_RANK * ranks:
        return None
    load = scenario.workload.rate or len(requests) / max(float(requests.arrival_s[-1] - requests.arrival_s[0]), 1e-9)
    some = requests if count == len(requests) else requests.take(np.arange(count))
    is_drawn = scenario.workload.trace is None and len(requests) == scenario.workload.num_requests
    if is_drawn and count < SURE_PER_RANK * ranks:
        count = min(2 * SURE_PER_RANK * ranks, MAX_REQUESTS)
        some = generate(scenario.workload.model_copy(update={"num_requests": count}), scenario.seed)
    end = time.monotonic() + PATIENCE_S

    @contextmanager
    def turn() -> Iterator[None]:
        if time.monotonic() > end:
            raise _TooLong("the capacity was not found in time.")
        yield

    try:
        full = saturation(scenario, some, turn)
        limits = scenario.slo
        has_limits = any(limit is not None for limit in (limits.ttft_s, limits.tpot_s, limits.e2e_s))
        most = capacity(scenario, some, turn) if has_limits else full
        curve = load_curve(scenario, some, full, turn)
        return Headroom(load, most, has_limits, curve, is_rough=count < SURE_PER_RANK * ranks)
    except _TooLong:
        return None


class _TooLong(GnomonError):
    """Nobody waits longer."""
