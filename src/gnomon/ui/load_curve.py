"""Latency at a dozen loads up to beyond the capacity, and the capacity itself.

Both are kept until something other than the load changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gnomon.report.serving.figures import LATENCIES
from gnomon.search.bound import rate_bound
from gnomon.search.capacity import Prober, coarse_bracket, refine
from gnomon.search.config import SloTargets
from gnomon.search.slo import Verdict
from gnomon.serving.metrics import request_times
from gnomon.serving.scenario import Scenario, SloConfig
from gnomon.serving.simulate import run
from gnomon.serving.state import FINISHED
from gnomon.ui.serving import requests_of
from gnomon.ui.turns import Question
from gnomon.workload import Requests, with_rate

SHARES = (0.05, 0.2, 0.35, 0.5, 0.65, 0.75, 0.83, 0.9, 0.95, 1.0, 1.05, 1.15)
"""Loads as shares of what the replicas take up without a growing queue."""
STATISTICS = {"p50": 50.0, "p99": 99.0}
REQUESTS_PER_RANK = 5000
MAX_REQUESTS = 20_000
"""Requests of one run of the curve: enough for a P99, few enough to answer in about a second."""
PRECISION = 0.02
"""Relative width to which a capacity is bracketed."""
SLO_STATISTIC = "p99"
"""A limit counts as met where this share of the requests meets it."""
KEPT = 16

Value = TypeVar("Value")
_known: OrderedDict[str, Any] = OrderedDict()


@dataclass(frozen=True)
class LoadCurve:
    """Latencies at several loads."""

    loads: tuple[float, ...]
    seconds: dict[str, dict[str, list[float | None]]]
    """By latency and statistic, one per load; None where nothing finished."""
    num_requests: int
    """Requests of each run."""


class _PatientProber(Prober):
    """A prober that lets others have their turn between two runs."""

    question: Question

    def _simulate(self, rate: float, count: int) -> Verdict:
        with self.question.turn():
            return super()._simulate(rate, count)


def is_rated(scenario: Scenario) -> bool:
    """Whether the arrivals have a rate that can be changed."""
    return requests_of(scenario.workload, scenario.seed).shape is not None


def load_curve(scenario: Scenario, question: Question) -> LoadCurve:
    """The curve of a deployment, whatever its load and its SLO; raises `Stale` where nobody waits for it any more."""
    saturation = capacity(scenario.model_copy(update={"slo": SloConfig()}), question)
    requests = _requests(scenario)
    loads = tuple(float(f"{share * saturation:.3g}") for share in SHARES) if saturation else ()

    def measure() -> LoadCurve:
        rows = [_latencies(scenario, with_rate(requests, load), question) for load in loads]
        seconds = {
            name: {statistic: [row[name, statistic] for row in rows] for statistic in STATISTICS} for name in LATENCIES
        }
        return LoadCurve(loads, seconds, len(requests))

    return _kept("curve", scenario.model_copy(update={"slo": SloConfig()}), measure)


def capacity(scenario: Scenario, question: Question) -> float:
    """The highest load at which 99 % of the requests meet each limit and the queue does not grow; 0 for none."""
    limits = {f"{name}_s": getattr(scenario.slo, f"{name}_s") for name in LATENCIES}
    targets = SloTargets(**{name: {SLO_STATISTIC: limit} for name, limit in limits.items() if limit is not None})

    def search() -> float:
        requests = _requests(scenario)
        prober = _PatientProber(scenario, requests, targets)
        prober.question = question
        with question.turn():
            bound = rate_bound(scenario, requests)
        low, _ = coarse_bracket(prober, bound, len(requests))
        return refine(prober, low, len(requests), PRECISION)[0] if low else 0.0

    return _kept("capacity", scenario, search)


def _requests(scenario: Scenario) -> Requests:
    """As many of the scenario's requests as a run of the curve has."""
    requests = requests_of(scenario.workload, scenario.seed)
    ranks = sum(pool.num_ranks for pool in scenario.kinds())
    count = min(len(requests), REQUESTS_PER_RANK * ranks, MAX_REQUESTS)
    return requests if count == len(requests) else requests.take(np.arange(count))


def _latencies(scenario: Scenario, requests: Requests, question: Question) -> dict[tuple[str, str], float | None]:
    with question.turn():
        found = run(scenario, requests=requests)
    times, done = request_times(found), found.cluster.requests.status == FINISHED
    row: dict[tuple[str, str], float | None] = {}
    for name in LATENCIES:
        values = getattr(times, f"{name}_s")[done]
        values = values[~np.isnan(values)]
        for statistic, level in STATISTICS.items():
            row[name, statistic] = float(np.percentile(values, level)) if values.size else None
    return row


def _kept(kind: str, scenario: Scenario, find: Callable[[], Value]) -> Value:
    """What was found for this deployment before, whatever the load; else what `find` finds."""
    workload = scenario.workload.model_copy(update={"rate": None})
    key = kind + scenario.model_copy(update={"workload": workload}).model_dump_json()
    if key not in _known:
        _known[key] = find()
        while len(_known) > KEPT:
            _known.popitem(last=False)
    found: Value = _known[key]
    return found
