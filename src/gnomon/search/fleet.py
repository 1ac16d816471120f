"""The fewest copies of a replica that carry a given load within the SLO."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gnomon.search.capacity import Prober
from gnomon.search.config import SearchConfig
from gnomon.search.objective import price
from gnomon.search.slo import Verdict
from gnomon.search.space import Candidate, scenario_of
from gnomon.serving.scenario import Scenario
from gnomon.workload import Requests

MOST = 4096
"""Copies beyond which counting stops, where the space does not say."""
LENGTH = 8
"""Requests per replica, in units of the shortest runs."""


@dataclass
class Fleet:
    """What counting came to."""

    outcome: tuple[Candidate, Verdict, int] | str
    """The configuration with its copies, how it did, and on how many requests; or why there is none."""
    beaten: bool = False
    """Whether another configuration is known to be cheaper."""
    miss: float | None = None
    runs: int = 0
    simulated: int = 0


def smallest_fleet(
    search: SearchConfig, candidate: Candidate, bound: float, beat: float | None,
    requests_for: Callable[[Scenario], Requests],
) -> Fleet:  # fmt: skip
    """Count copies up from the bound of one (`bound`) until the load is carried, then bisect.

    `beat` is the negated cost of the cheapest configuration so far: where even that many copies fail, it has won.
    """
    assert search.load is not None
    allowed = sorted(search.space.num_replicas) or range(1, MOST + 1)
    one = price(scenario_of(search, candidate))
    least = max(1, math.ceil(search.load / bound))
    counts = [count for count in allowed if count >= least]
    if beat is not None:
        cheaper = [count for count in counts if one.per_hour * count < -beat]
        if not cheaper:
            return Fleet(f"bound: at least {least} replicas, ${one.per_hour * least:.2f}/h", beaten=True)
        counts = cheaper
    fleet = Fleet("")

    def attempt(count: int) -> Verdict:
        copies = scenario_of(search, candidate.with_replicas(count))
        requests = requests_for(copies)
        length = min(LENGTH * search.effort.min_requests * count * copies.replica.data_parallel, len(requests))
        prober = Prober(copies, requests, search.slo)
        verdict = prober.unless_hopeless(search.load or 0.0, length)
        fleet.runs += prober.runs
        fleet.simulated += prober.simulated
        known[count] = (verdict, length)
        return verdict

    known: dict[int, tuple[Verdict, int]] = {}
    if not counts:
        fleet.outcome = f"{max(allowed)} replicas are too few: at least {least} are needed"
        return fleet
    enough = _first_met(counts, lambda count: attempt(count).met)
    if enough is None:
        worst = known[max(known)][0]
        fleet.outcome = f"{max(known)} replicas do not meet the SLO at {search.load:g}/s: {worst.miss}"
        fleet.beaten, fleet.miss = beat is not None, worst.excess
        return fleet
    verdict, length = known[enough]
    fleet.outcome = (candidate.with_replicas(enough), verdict, length)
    return fleet


def _first_met(counts: list[int], met: Callable[[int], bool]) -> int | None:
    """The smallest count that is met, by galloping and bisection; None if the largest is not."""
    position, step = 0, 1
    while not met(counts[position]):
        if position == len(counts) - 1:
            return None
        low, position, step = position, min(position + step, len(counts) - 1), 2 * step
    if position == 0:
        return counts[0]
    high = position
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if met(counts[middle]) else (middle, high)
    return counts[high]
