"""How many users at once: a closed loop, in which each sends the next request when one is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gnomon.search.config import SloTargets
from gnomon.search.slo import Verdict, judge
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.workload.arrivals import ClosedLoop

MOST_USERS = 65_536
REQUESTS, TURNS = 2000, 8
"""Of one run: so many requests at least, and so many of every user."""
PRECISION = 0.02


@dataclass(frozen=True)
class Users:
    """The most users that are served within the limits."""

    count: int
    """0 where even one user is not."""
    requests_per_s: float
    """What they send."""
    binding: str
    """What is not met with a few more of them."""


def most_users(scenario: Scenario, targets: SloTargets, on_run: Callable[[], None]) -> Users:
    """Double until the limits are not met, then bisect; pauses are those of the scenario, if it is a closed loop."""
    given = scenario.workload.arrivals
    loop = given if isinstance(given, ClosedLoop) else ClosedLoop(concurrency=1)
    known: dict[int, tuple[Verdict, float]] = {}

    def met(users: int) -> bool:
        on_run()
        more = {"rate": None, "arrivals": loop.model_copy(update={"concurrency": users})}
        if scenario.workload.trace is None:
            more["num_requests"] = max(REQUESTS, TURNS * users)
        done = run(scenario.model_copy(update={"workload": scenario.workload.model_copy(update=more)}))
        served = done.cluster.requests
        known[users] = judge(done, targets), len(served) / max(float(served.finished_s.max()), 1e-9)
        return known[users][0].met

    low, high = 0, 1
    while high <= MOST_USERS and met(high):
        low, high = high, 2 * high
    while high > low + max(1, int(PRECISION * low)) and high <= MOST_USERS:
        middle = (low + high) // 2
        low, high = (middle, high) if met(middle) else (low, middle)
    binding = known[high][0].miss if high in known else f"more than {MOST_USERS:,} were not tried"
    return Users(low, known[low][1] if low else 0.0, binding)
