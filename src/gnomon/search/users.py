"""What a deployment takes, by both ways to send it a load.

Open loop: requests come at random, whether others are answered or not. Closed loop: users, each of whom sends the next
request when one is answered.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gnomon.core.errors import ConfigError
from gnomon.search.capacity import Prober
from gnomon.search.config import SloTargets
from gnomon.search.load_curve import MAX_REQUESTS, REQUESTS_PER_RANK, highest_load, targets_of
from gnomon.search.slo import Price, Verdict, judge, price
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.workload import WorkloadConfig, generate
from gnomon.workload.arrivals import ClosedLoop

MOST_USERS = 65_536
REQUESTS, TURNS = 4000, 16  # Of one run: so many requests at least, and so many of every user.
PRECISION, ABOVE = 0.02, 1.05
EXPECTED_RUNS = 30
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Loops:
    """What a deployment takes within its limits."""

    model: str
    device: str
    limits: dict[str, float]
    """Seconds that 99 % of the requests must keep to, by latency; none: any."""
    open_per_s: float
    """Requests per second of an open loop; 0 where no load meets the limits."""
    open_binding: str
    """What is not met just above."""
    saturation_per_s: float
    """Beyond it requests pile up, whatever the limits."""
    users: int | None
    """Users at once of a closed loop; None without limits: any number is served then, only slower."""
    closed_per_s: float
    closed_binding: str
    price: Price
    prompt_tokens: float
    """Of a request, in the mean."""
    output_tokens: float

    def to_dict(self) -> dict[str, Any]:
        is_finite = bool(np.isfinite(self.saturation_per_s))
        return asdict(self) | ({} if is_finite else {"saturation_per_s": None})


def both_loops(scenario: Scenario, on_progress: Progress) -> Loops:
    """The highest load of an open loop, and the most users of a closed one."""
    if scenario.fleet is not None:
        fix = "Leave fleet out, or simulate its day."
        raise ConfigError("replicas that come and go have no one capacity.", where="fleet", fix=fix)
    requests, targets = generate(_open(scenario), scenario.seed), targets_of(scenario.slo)
    if len(requests.parents):
        fix = "Simulate it at several: gnomon compare --vary workload.rate=1,2,4."
        raise ConfigError("calls that wait for each other have no one capacity.", where="workload", fix=fix)
    prober = Prober(scenario, requests, targets)
    on_progress(0, EXPECTED_RUNS)
    full, _ = prober.saturation
    most = highest_load(prober)
    above = prober((most or full) * ABOVE, len(requests)).miss if np.isfinite(full) else "requests are turned away"
    users, closed_per_s, beyond = None, 0.0, ""
    if targets != SloTargets():
        users, closed_per_s, beyond = most_users(scenario, targets, on_progress)
    limits = {name: limit["p99"] for name, limit in targets if limit and name != "goodput"}
    lengths = (float(some.mean()) for some in (requests.prompt_tokens, requests.output_tokens))
    about = (scenario.model, scenario.device, limits, most, above, full)
    return Loops(*about, users, closed_per_s, beyond, price(scenario), *lengths)


def _open(scenario: Scenario) -> WorkloadConfig:
    """The workload with enough requests, at a rate."""
    given = scenario.workload
    if given.trace is not None:
        return given
    count = min(REQUESTS_PER_RANK * scenario.num_ranks, MAX_REQUESTS)
    more: dict[str, Any] = {"num_requests": count, "warmup_requests": 0}
    if generate(given.model_copy(update={"num_requests": count}), scenario.seed).shape is None:
        more |= {"arrivals": None, "rate": 1.0}
    return WorkloadConfig.model_validate(given.model_dump(exclude_unset=True) | more)


def most_users(scenario: Scenario, targets: SloTargets, on_progress: Progress) -> tuple[int, float, str]:
    """The most users within the limits, what they send per second, and what is not met with more of them: double until
    it is not, then bisect. Pauses are those of the scenario, if it is a closed loop."""
    given = scenario.workload.arrivals
    loop = given if isinstance(given, ClosedLoop) else ClosedLoop(concurrency=1)
    known: dict[int, tuple[Verdict, float]] = {}
    takes_s = [0.0]

    def met(users: int) -> bool:
        on_progress(len(known) + 1, EXPECTED_RUNS)
        more = {"rate": None, "arrivals": loop.model_copy(update={"concurrency": users}), "warmup_requests": 0}
        if scenario.workload.trace is None:
            more["num_requests"] = max(REQUESTS, TURNS * users)
        sent = generate(scenario.workload.model_copy(update=more), scenario.seed)
        # Users do not all begin at the same moment: their first requests come over the time that one takes.
        first = np.arange(len(sent)) < users
        sent = replace(sent, arrival_s=np.where(first, np.arange(len(sent)) / users * takes_s[0], np.inf))
        done = run(scenario, requests=sent)
        served = done.cluster.requests
        takes_s[0] = max(float(np.mean(served.finished_s - served.arrival_s)), 0.0)
        known[users] = judge(done, targets), len(served) / max(float(served.finished_s.max()), 1e-9)
        return known[users][0].met

    low, high = 0, 1
    while high <= MOST_USERS and met(high):
        low, high = high, 2 * high
    while high > low + max(1, int(PRECISION * low)) and high <= MOST_USERS:
        middle = (low + high) // 2
        low, high = (middle, high) if met(middle) else (low, middle)
    beyond = known[high][0].miss if high in known else f"more than {MOST_USERS:,} were not tried"
    return low, known[low][1] if low else 0.0, beyond
