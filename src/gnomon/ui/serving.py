"""Simulations for the Serve page: what a change of load does not touch is kept between questions."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from gnomon.api.serving import Scenario, Simulation, simulate
from gnomon.core.config import load
from gnomon.ui.foreign import check_count
from gnomon.ui.turns import Question, patience, turn
from gnomon.workload import Requests, WorkloadConfig, generate, with_rate

if TYPE_CHECKING:
    from gnomon.api.serving import Intervals

KEPT = 8
"""Results that are kept: the one shown, those pinned, and the way back."""
_results: OrderedDict[str, Simulation] = OrderedDict()
_judged: OrderedDict[str, Simulation] = OrderedDict()
_intervals: OrderedDict[str, Intervals] = OrderedDict()


def simulated(scenario: Scenario) -> Simulation:
    """The scenario's result, from memory where it was asked for just before; the timing sources are not asked what they
    think of it. Call it within a `turn`."""
    key = scenario.model_dump_json()
    if key not in _results:
        requests = requests_of(scenario.workload, scenario.seed)
        done = simulate(scenario, requests=requests, on_progress=patience())
        _results[key] = replace(done, redraw=True, interval_runs=4, is_judged=False)
        while len(_results) > KEPT:
            _results.popitem(last=False)
    _results.move_to_end(key)
    return _results[key]


def judged(scenario: Scenario) -> Simulation:
    """The same result with what the timing sources say of it, which takes longer than the simulation."""
    key = scenario.model_dump_json()
    if key not in _judged:
        _judged[key] = replace(simulated(scenario), is_judged=True)
        while len(_judged) > KEPT:
            _judged.popitem(last=False)
    return _judged[key]


def known_intervals(scenario: Scenario) -> Intervals | None:
    """The intervals of its figures, where they were found before."""
    return _intervals.get(scenario.model_dump_json())


def find_intervals(scenario: Scenario, question: Question) -> Intervals:
    """The intervals of its figures, by a few runs, between which others get their turn."""
    with question.turn():
        result = judged(scenario)
    _intervals[scenario.model_dump_json()] = found = result.intervals_by(question.turn)
    while len(_intervals) > KEPT:
        _intervals.popitem(last=False)
    return found


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
    with turn("warm-up"):
        simulated(load(Scenario, None, {"workload.num_requests": 100}))
