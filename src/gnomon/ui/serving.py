"""Simulations for the Serve page: what a change of load does not touch is kept between questions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gnomon.api.load import MAX_REQUESTS, REQUESTS_PER_RANK, LoadCurve
from gnomon.api.load import highest_load as find_capacity
from gnomon.api.load import load_curve as find_curve
from gnomon.api.serving import Scenario, Simulation, simulate, without_slo
from gnomon.core.config import load
from gnomon.ui.turns import Kept, Question, patience, warming_up
from gnomon.ui.uploads import check_count
from gnomon.workload import Requests, WorkloadConfig, generate, with_rate

if TYPE_CHECKING:
    from gnomon.api.serving import Intervals


KEPT = 8  # Results that are kept: the one shown, those pinned, and the way back.
_results: Kept[Simulation] = Kept(KEPT)
_judged: Kept[Simulation] = Kept(KEPT)
_intervals: Kept[Intervals] = Kept(KEPT)


def simulated(scenario: Scenario) -> Simulation:
    """The scenario's result, from memory where it was asked for just before; the timing sources are not asked what they
    think of it. Call it within a `turn`."""

    def find() -> Simulation:
        requests = requests_of(scenario.workload, scenario.seed)
        done = simulate(scenario, requests=requests, on_progress=patience())
        return replace(done, redraw=True, interval_runs=4, is_judged=False)

    return _results.found(scenario.model_dump_json(), find)


def judged(scenario: Scenario) -> Simulation:
    """A simulation with what the timing sources say of it, which takes longer than the simulation."""
    return _judged.found(scenario.model_dump_json(), lambda: replace(simulated(scenario), is_judged=True))


def known_intervals(scenario: Scenario) -> Intervals | None:
    """The intervals of its figures, where they were found before."""
    return _intervals.get(scenario.model_dump_json())


def find_intervals(scenario: Scenario, question: Question) -> Intervals:
    """The intervals of its figures, by a few runs."""
    with question.turn():
        result = judged(scenario)
    return _intervals.found(scenario.model_dump_json(), lambda: result.intervals_by(question.turn))


def requests_of(workload: WorkloadConfig, seed: int) -> Requests:
    """The requests of a workload: drawn or read once for all rates."""
    # One request per second stands for all rates; `with_rate` then gives what `generate` would.
    like = workload if workload.rate is None else workload.model_copy(update={"rate": 1.0})
    found = _drawn(like.model_dump_json(), seed)
    check_count(len(found))  # How long a trace is shows when it is read.
    return found if workload.rate is None else with_rate(found, workload.rate)


@lru_cache(maxsize=8)
def _drawn(workload: str, seed: int) -> Requests:
    return generate(WorkloadConfig.model_validate_json(workload), seed)


def warm_up() -> None:
    """Compile what is not compiled yet and bake the default deployment, before somebody waits for it."""
    with warming_up():
        simulated(load(Scenario, None, {"workload.num_requests": 100}))


CURVES_KEPT = 16

Value = TypeVar("Value")
_known: Kept[Any] = Kept(CURVES_KEPT)


def load_curve(scenario: Scenario, question: Question) -> LoadCurve:
    """The curve of a deployment, whatever its load and its SLO; raises `Stale` where nobody waits for it any more."""
    plain = without_slo(scenario)
    saturation = capacity(plain, question)
    return _kept("curve", plain, lambda: find_curve(plain, _requests(plain), saturation, question.turn))


def capacity(scenario: Scenario, question: Question) -> float:
    """The highest load at which 99 % of the requests meet each limit and the queue does not grow; 0 for none."""
    return _kept("capacity", scenario, lambda: find_capacity(scenario, _requests(scenario), question.turn))


def _requests(scenario: Scenario) -> Requests:
    """As many of the scenario's requests as a run of the curve has."""
    requests = requests_of(scenario.workload, scenario.seed)
    count = min(len(requests), REQUESTS_PER_RANK * scenario.num_ranks, MAX_REQUESTS)
    return requests if count == len(requests) else requests.take(np.arange(count))


def _kept(kind: str, scenario: Scenario, find: Callable[[], Value]) -> Value:
    """What was found for this deployment before, whatever the load; else what `find` finds."""
    workload = scenario.workload.model_copy(update={"rate": None})
    key = kind + scenario.model_copy(update={"workload": workload}).model_dump_json()
    return _known.found(key, find)
