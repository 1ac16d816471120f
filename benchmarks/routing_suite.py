"""What each fleet of the routing suite can serve, from which the suite's rates are made.

`python -m benchmarks.routing_suite [FLEET...]`, five minutes of CPU time. The capacity of a fleet is the highest rate
at which the backlog does not grow under the best heuristic that comes with Gnomon: a straight line through the requests
that are there, over the last three quarters of a trace of 32,000, goes up by less than 1 % of what comes. All that
happens to a fleet has happened by then. Not part of `python -m benchmarks`: it measures routing.
"""

from __future__ import annotations

import sys

import numpy as np

from gnomon.routing.compare import BASELINES
from gnomon.routing.suite import cells
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import RouterConfig
from gnomon.workload import generate

REQUESTS, SEEDS, GROWTH, PRECISION = 32_000, (100, 101), 0.01, 0.02
SHARES = (0.5, 0.75, 0.9)
FIRST = ("predicted_latency", "sticky_session", "prefix_aware")
"""Likely to be the best: looked at before the others, which then must only be shown to hold no higher rate."""
SLOW = ("llmd_estimated",)  # Plain Python, and nearly what `llmd` is.


def growth(fleet: str, router: str, rate: float, seed: int) -> float:
    """By how much the backlog grows, as a share of what comes."""
    cell = cells()[f"{fleet}-50"]
    workload = cell.workload.model_copy(update={"num_requests": REQUESTS, "rate": rate})
    changes = {"workload": workload, "seed": seed, "router": RouterConfig(name=router)}
    scenario: Scenario = cell.model_copy(update=changes)
    requests = generate(workload, seed)
    known = requests.arrival_s[np.isfinite(requests.arrival_s)]  # Calls of agents come when those before have ended.
    done = run(scenario, requests=requests).cluster.requests
    ended = np.sort(done.finished_s[done.finished_s > 0])
    times = np.linspace(known[0] + 0.25 * (known[-1] - known[0]), known[-1], 2000)
    there = np.searchsorted(np.sort(done.arrival_s), times) - np.searchsorted(ended, times)
    return float(np.polyfit(times, there, 1)[0] / rate)


def holds(fleet: str, router: str, rate: float) -> bool:
    """Whether the backlog does not grow, in the mean of the seeds; those that clearly do are not looked at twice."""
    first = growth(fleet, router, rate, SEEDS[0])
    if first > 4 * GROWTH:
        return False
    return float(np.mean([first, *(growth(fleet, router, rate, seed) for seed in SEEDS[1:])])) < GROWTH


def highest_rate(fleet: str, router: str, low: float) -> float:
    """The highest rate that a router holds, where it holds `low`."""
    high = 1.1 * low
    while holds(fleet, router, high):
        low, high = high, 1.1 * high
    while high / low > 1 + PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(fleet, router, middle) else (low, middle)
    return low


def capacity(fleet: str, start: float) -> tuple[float, str]:
    """What a fleet can serve, and the heuristic that does."""
    best, least = "", start
    while not holds(fleet, FIRST[0], least):
        least *= 0.8
    for router in (*FIRST, *(one for one in BASELINES if one not in (*FIRST, *SLOW))):
        if router == FIRST[0] or holds(fleet, router, (1 + PRECISION) * least):
            least, best = highest_rate(fleet, router, least), router
            print(f"  {fleet}: {router} holds {least:.1f}", flush=True)
    return least, best


def main(names: list[str]) -> None:
    for fleet in names or dict.fromkeys(one.rpartition("-")[0] for one in cells()):
        now = cells()[f"{fleet}-75"].workload.rate
        assert now is not None
        most, router = capacity(fleet, now)
        rates = ", ".join(f"{share * most:.3g}" for share in SHARES)
        print(f"{fleet:14s} {most:6.1f}/s under {router}: rates: [{rates}]", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
