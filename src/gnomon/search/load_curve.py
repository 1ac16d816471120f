"""Latency at a dozen loads up to beyond the capacity, and the capacity itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from gnomon.search.bound import rate_bound
from gnomon.search.capacity import Prober, coarse_bracket, refine
from gnomon.search.config import SloTargets
from gnomon.search.slo import Verdict
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.results.latency import request_times
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.workload import Requests, with_rate
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
