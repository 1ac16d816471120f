"""Latency at a dozen loads up to beyond the capacity, and the capacity itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np

from gnomon.core.errors import GnomonError
from gnomon.search.capacity import Prober, coarse_bracket, rate_bound, refine
from gnomon.search.config import SloTargets
from gnomon.search.slo import Verdict
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.results.latency import request_times
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.workload import Requests, generate, with_rate
from gnomon.workload.slo import SloConfig

LATENCIES = ("ttft", "tpot", "e2e")
SHARES = (0.05, 0.2, 0.35, 0.5, 0.65, 0.75, 0.83, 0.9, 0.95, 1.0, 1.05, 1.15)
"""Loads as shares of what the replicas take up without a growing queue."""
STATISTICS = {"p50": 50.0, "p99": 99.0}
PRECISION = 0.02
"""Relative width to which a capacity is bracketed."""
SLO_STATISTIC = "p99"
"""A limit counts as met where this share of the requests meets it."""

Turn = Callable[[], AbstractContextManager[None]]
"""Entered for every simulation, so that others can have the machine between two."""


@dataclass(frozen=True)
class LoadCurve:
    """Latencies at several loads."""

    loads: tuple[float, ...]
    seconds: dict[str, dict[str, list[float | None]]]
    """By latency and statistic, one per load; None where nothing finished."""
    num_requests: int
    """Requests of each run."""


def load_curve(scenario: Scenario, requests: Requests, saturation: float, turn: Turn = nullcontext) -> LoadCurve:
    """The curve of a deployment up to beyond its `saturation`, whatever its load and its SLO."""
    loads = tuple(float(f"{share * saturation:.3g}") for share in SHARES) if saturation else ()
    rows = [_latencies(scenario, with_rate(requests, load), turn) for load in loads]
    seconds = {
        name: {statistic: [row[name, statistic] for row in rows] for statistic in STATISTICS} for name in LATENCIES
    }
    return LoadCurve(loads, seconds, len(requests))


def saturation(scenario: Scenario, requests: Requests, turn: Turn = nullcontext) -> float:
    """The highest load at which the queue does not grow."""
    return capacity(scenario.model_copy(update={"slo": SloConfig()}), requests, turn)


def capacity(scenario: Scenario, requests: Requests, turn: Turn = nullcontext) -> float:
    """The highest load at which 99 % of the requests meet each limit and the queue does not grow; 0 for none."""
    limits = {f"{name}_s": getattr(scenario.slo, f"{name}_s") for name in LATENCIES}
    targets = SloTargets(**{name: {SLO_STATISTIC: limit} for name, limit in limits.items() if limit is not None})
    prober = _PatientProber(scenario, requests, targets)
    prober.turn = turn
    with turn():
        bound = rate_bound(scenario, requests)
    low, _ = coarse_bracket(prober, bound, len(requests))
    return refine(prober, low, len(requests), PRECISION)[0] if low else 0.0


class _PatientProber(Prober):
    """A prober that lets others have their turn between two runs."""

    turn: Turn

    def _simulate(self, rate: float, count: int) -> Verdict:
        with self.turn():
            return super()._simulate(rate, count)


def _latencies(scenario: Scenario, requests: Requests, turn: Turn) -> dict[tuple[str, str], float | None]:
    with turn():
        found = run(scenario, requests=requests)
    times, done = request_times(found), found.cluster.requests.status == FINISHED
    row: dict[tuple[str, str], float | None] = {}
    for name in LATENCIES:
        values = getattr(times, f"{name}_s")[done]
        values = values[~np.isnan(values)]
        for statistic, level in STATISTICS.items():
            row[name, statistic] = float(np.percentile(values, level)) if values.size else None
    return row


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
