"""What replicas serve within the SLO, measured by themselves, as planners do before they deploy."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import ConfigError
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.scenario import Scenario
from gnomon.workload import Requests
from gnomon.workload.slo import SloConfig

NUM_REQUESTS = 2000  # Of one replica; of several, that times the root of their number.
SIZES = (1, 4, 16)  # Replicas measured together: what each of them serves hardly changes beyond.
GOAL = 0.99  # Share of the requests that must meet their SLO.
STEPS = 7  # Halvings of the bracket: a few percent.

HARDLY = 1.05  # Of what a replica serves beside fewer of the other pools: with more than that, those were too few.

Measure = Callable[[Scenario, int, int, int, float, int], tuple[Requests, object]]


def slo_check(slo: SloConfig, requests: Requests, records: Any) -> Callable[[Ints], Floats] | None:
    """A function that tells which of some finished requests met their targets; None where there are none to meet."""
    of_class = [one.slo if one.slo is not None and one.slo.is_given else slo for one in requests.classes] or [slo]
    if not any(one.is_given for one in of_class):
        return None
    limits = np.array([
        [np.inf if limit is None else limit for limit in (one.ttft_s, one.tpot_s, one.e2e_s)] for one in of_class
    ])  # fmt: skip

    def met(ids: Ints) -> Floats:
        limit = limits[records.user_class[ids]]
        arrival_s, first_s, end_s = records.arrival_s[ids], records.first_token_s[ids], records.finished_s[ids]
        per_token = (end_s - first_s) / np.maximum(records.output_tokens[ids] - 1, 1)
        good = (first_s - arrival_s <= limit[:, 0]) & (per_token <= limit[:, 1])
        good &= (end_s - arrival_s <= limit[:, 2]) & (records.status[ids] == FINISHED)
        return good.astype(np.float64)

    return met


def measured_rates(scenario: Scenario, pool: int, most: int, measure: Measure) -> dict[int, float]:
    """Requests per second that as many replicas as `SIZES` says serve together, as far as there are so many; where
    pools have roles, beside so many of the others that twice as many would hardly change it."""
    others, rates = 1, {1: measured_rate(scenario, pool, measure)}
    while scenario.has_roles and (rate := measured_rate(scenario, pool, measure, 1, 2 * others)) > HARDLY * rates[1]:
        others, rates[1] = 2 * others, rate
    for size in (one for one in SIZES[1:] if one <= most):
        known = size * max(rate / count for count, rate in rates.items())
        rates[size] = measured_rate(scenario, pool, measure, size, others * size, known)
    return rates


def measured_rate(
    scenario: Scenario, pool: int, measure: Measure, size: int = 1, others: int = 1, known: float = 0.0
) -> float:
    """Requests per second, by bisection between loads that were served within the SLO and such that were not.

    `measure(scenario, pool, size, others, rate, requests)` runs so many replicas of a pool under a steady load, beside
    `others` of each other pool where they have roles, and returns requests and records. Without an SLO the queue
    decides: half a second of it in the median is too much.
    """
    low, high = 0.0, known or 1.0
    while _holds(scenario, pool, size, others, measure, high):
        low, high = high, high * 2
        if high > 1e6 * size:
            raise ConfigError("one replica serves any load within the SLO.", where="slo")
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _holds(scenario, pool, size, others, measure, middle) else (low, middle)
    if low == 0.0:
        what = "one replica alone cannot serve 0.01 requests per second within the SLO."
        fix = "Loosen the SLO, or choose a faster replica; a planner needs one that can meet it."
        raise ConfigError(what, where="slo", fix=fix)
    return low


def _holds(scenario: Scenario, pool: int, size: int, others: int, measure: Measure, rate: float) -> bool:
    requests, records = measure(scenario, pool, size, others, rate, round(NUM_REQUESTS * size**0.5))
    done = np.flatnonzero(records.status == FINISHED)  # type: ignore[attr-defined]
    if not done.size:
        what = "one replica alone serves none of the requests: they are all rejected."
        fix = "Give replicas that hold a request (replica.num_kv_blocks, replica.max_request_tokens)."
        raise ConfigError(what, where="fleet.controller", fix=fix)
    check = slo_check(scenario.slo, requests, records)
    q = records[done]  # type: ignore[index]
    if check is None:
        return bool(np.median(q.scheduled_s - q.arrival_s) < 0.5)
    settled = done[len(done) // 5 :]
    return bool(check(settled).mean() >= GOAL)
