"""Latency against load, and the capacity: both are kept until something other than the load changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from gnomon.api.load import MAX_REQUESTS, REQUESTS_PER_RANK, LoadCurve
from gnomon.api.load import capacity as find_capacity
from gnomon.api.load import load_curve as find_curve
from gnomon.api.serving import Scenario, without_slo
from gnomon.ui.kept import Kept
from gnomon.ui.serving import requests_of
from gnomon.ui.turns import Question
from gnomon.workload import Requests

KEPT = 16

Value = TypeVar("Value")
_known: Kept[Any] = Kept(KEPT)


def is_rated(scenario: Scenario) -> bool:
    """Whether the arrivals have a rate that can be changed."""
    return requests_of(scenario.workload, scenario.seed).shape is not None


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
    ranks = sum(pool.num_ranks for pool in scenario.all_pools())
    count = min(len(requests), REQUESTS_PER_RANK * ranks, MAX_REQUESTS)
    return requests if count == len(requests) else requests.take(np.arange(count))


def _kept(kind: str, scenario: Scenario, find: Callable[[], Value]) -> Value:
    """What was found for this deployment before, whatever the load; else what `find` finds."""
    workload = scenario.workload.model_copy(update={"rate": None})
    key = kind + scenario.model_copy(update={"workload": workload}).model_dump_json()
    found: Value = _known.found(key, find)
    return found
