"""One configuration, looked at in a worker: from a task to a record that goes into the results file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Literal

from gnomon import catalog
from gnomon.core.errors import ConfigError, DoesNotFitError
from gnomon.core.parallel import Outcome, map_ordered
from gnomon.search.capacity import Capacity, Prober, coarse_bracket, find_capacity, rate_bound, refine
from gnomon.search.config import SearchConfig
from gnomon.search.slo import Verdict, price, rate_for, score
from gnomon.search.space import Candidate, scenario_of
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import AdmissionConfig
from gnomon.workload import Requests, WorkloadConfig, generate

MOST = 4096  # Copies beyond which counting stops, where the space does not say.
LENGTH = 8  # Requests per replica, in units of the shortest runs.


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


Status = Literal["measured", "passed over", "impossible", "failed"]

SHORT_SLACK = 0.95  # Short runs judge a load this much lower, so that their noise does not throw out a winner.


@dataclass(frozen=True)
class Task:
    """A question about one configuration."""

    search: SearchConfig
    candidate: Candidate
    beat: float | None = None
    """The score to beat: where that is out of reach, say so after as few runs as possible."""
    bound: float | None = None
    """The load that it cannot exceed, where that is known already."""


@dataclass(frozen=True)
class Record:
    """What became of one configuration; a line of the results file."""

    label: str
    overrides: dict[str, Any]
    status: Status
    reason: str | None = None
    """Why there is no figure."""
    capacity_per_s: float | None = None
    score: float | None = None
    num_gpus: int | None = None
    cost_per_hour: float | None = None
    num_requests: int | None = None
    converged: bool | None = None
    binding: str | None = None
    """What is not met just above the capacity."""
    good_share: float | None = None
    figures: dict[str, float | None] = field(default_factory=dict)
    """Latencies at the capacity."""
    nearest_miss: float | None = None
    """Where the SLO is met at no load: the worst figure over its limit."""
    runs: int = 0
    simulated: int = 0
    """Requests simulated, over all runs."""

    @classmethod
    def of(cls, candidate: Candidate, status: Status, reason: str | None = None, **more: Any) -> Record:
        return cls(candidate.label, dict(candidate.overrides), status, reason, **more)

    @property
    def candidate(self) -> Candidate:
        return Candidate(tuple(self.overrides.items()))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bound_of(task: Task) -> float | Record:
    """The load that a configuration cannot exceed, or why it cannot run at all."""
    search, candidate = task.search, task.candidate
    try:
        scenario = scenario_of(search, candidate)
        # A space combines every GPU with every node; not every one can be bought.
        if scenario.node is not None:
            node, device = catalog.node(scenario.node), catalog.device(scenario.device)
            if catalog.device(node.device).name != device.name:
                raise ConfigError(f"{node.name} is a node of {node.device}: it has no {device.name}.", where="node")
        return _bound(search, scenario, sequence(search, scenario))
    except (DoesNotFitError, ConfigError) as error:
        return Record.of(candidate, "impossible", str(error))


def bounds_of(tasks: list[Task]) -> list[Outcome[float | Record]]:
    """Of configurations of one placement: what their operators take is found once, by one worker."""
    return list(map_ordered(bound_of, tasks, jobs=1))


def _bound(search: SearchConfig, scenario: Scenario, requests: Requests) -> float:
    """Where admission control may turn requests away, more may come than are served."""
    goodput, lets_all_in = search.slo.goodput, scenario.admission == AdmissionConfig()
    served = 1.0 if goodput is None or lets_all_in else goodput.share
    return rate_bound(scenario, requests) / served


def evaluate(task: Task) -> Record:
    """Measure a configuration, or show that it cannot beat `task.beat`."""
    bound = bound_of(task) if task.bound is None else task.bound
    if isinstance(bound, Record):
        return bound
    search, candidate = task.search, task.candidate
    scenario = scenario_of(search, candidate)
    if search.objective == "cost":
        return _counted_out(task, bound)
    requests, cost = sequence(search, scenario), price(scenario)
    prober, ranks = Prober(scenario, requests, search.slo, gives_up=True), scenario.num_ranks
    if task.beat is not None:
        needed = rate_for(search.objective, task.beat, cost)
        reason = _out_of_reach(prober, needed, bound, search, ranks)
        if reason is not None:
            return Record.of(candidate, "passed over", reason, runs=prober.runs, simulated=prober.simulated)
    found = find_capacity(prober, bound, search.effort, ranks)
    return _measured(search, candidate, scenario, found, prober)


@dataclass(frozen=True)
class Estimate:
    """A capacity alone, and what it took."""

    per_s: float
    runs: int
    simulated: int


def pilot(task: Task) -> Estimate:
    """The capacity within some 10 %, from the shortest runs."""
    scenario = scenario_of(task.search, task.candidate)
    prober = Prober(scenario, sequence(task.search, scenario), task.search.slo, gives_up=True)
    count = min(task.search.effort.min_requests * scenario.num_ranks, len(prober.requests))
    bound = _bound(task.search, scenario, prober.requests) if task.bound is None else task.bound
    low, _ = coarse_bracket(prober, bound, count)
    return Estimate(low, prober.runs, prober.simulated)


def capacity_with_seed(task: tuple[SearchConfig, Candidate, int, float, int]) -> Estimate:
    """The capacity near a known one on another sequence of requests of the same length."""
    search, candidate, seed, near, count = task
    scenario = scenario_of(search, candidate, seed)
    requests = _generated(search.workload.model_copy(update=_counted(search.workload, count)), seed)
    prober = Prober(scenario, requests, search.slo, gives_up=True)
    low, _ = refine(prober, near, min(count, len(requests)), search.effort.precision)
    return Estimate(low, prober.runs, prober.simulated)


def sequence(search: SearchConfig, scenario: Scenario) -> Requests:
    """As many requests as the longest run of this scenario may need."""
    count = search.effort.max_requests * scenario.num_ranks
    return _generated(search.workload.model_copy(update=_counted(search.workload, count)), search.seed)


def check_rated(search: SearchConfig) -> None:
    """Only arrivals with a rate can be sent faster."""
    if _generated(search.workload.model_copy(update=_counted(search.workload, 2)), search.seed).shape is None:
        what = "a capacity search changes the arrival rate, and these arrivals have none."
        fix = "Use poisson, gamma, fixed_interval, piecewise or diurnal, or a trace with arrival times."
        raise ConfigError(what, where="workload.arrivals", fix=fix)


def _counted(workload: WorkloadConfig, count: int) -> dict[str, int]:
    """A trace has the length it has."""
    return {} if workload.trace is not None else {"num_requests": count}


@lru_cache(maxsize=4)
def _cached(workload: str, seed: int) -> Requests:
    return generate(WorkloadConfig.model_validate_json(workload), seed)


def _generated(workload: WorkloadConfig, seed: int) -> Requests:
    return _cached(workload.model_dump_json(), seed)


def _out_of_reach(prober: Prober, needed: float, bound: float, search: SearchConfig, ranks: int) -> str | None:
    """Why the load `needed` is out of reach: by the bound, by a short run, by a long one; None if it is not."""
    if bound < needed:
        return f"bound: at most {bound:.3g}/s, {needed:.3g}/s would be needed"
    short = min(search.effort.min_requests * ranks, len(prober.requests))
    longer = min(4 * short, len(prober.requests))
    for count, slack in ((short, SHORT_SLACK), (longer, 1.0)):
        verdict = prober.unless_hopeless(needed * slack, count)
        if not verdict.met:
            return f"fails at {needed * slack:.3g}/s: {verdict.worst}"
    return None


def _measured(
    search: SearchConfig, candidate: Candidate, scenario: Scenario, found: Capacity, prober: Prober
) -> Record:
    cost = price(scenario)
    worth = score(search.objective, found.per_s, found.verdict.good_share, cost) if found.per_s else None
    miss = None if found.per_s else _finite(found.verdict.excess)
    why = None if found.per_s else f"the SLO is met at no load: {found.verdict.miss}"
    return Record.of(
        candidate, "measured", why, capacity_per_s=found.per_s, score=worth, num_gpus=cost.num_gpus,
        cost_per_hour=cost.per_hour, num_requests=found.num_requests, converged=found.converged,
        binding=found.binding, good_share=found.verdict.good_share, figures=found.verdict.figures,
        nearest_miss=miss, runs=prober.runs, simulated=prober.simulated,
    )  # fmt: skip


def _finite(excess: float | None) -> float | None:
    return None if excess is None or math.isinf(excess) else excess


def _counted_out(task: Task, bound: float) -> Record:
    """Objective cost: the fewest copies that carry the load."""
    search, candidate = task.search, task.candidate
    assert search.load is not None
    fleet = smallest_fleet(search, candidate, bound, task.beat, lambda scenario: sequence(search, scenario))
    if isinstance(fleet.outcome, str):
        status: Status = "passed over" if fleet.beaten else "measured"
        spent = {"runs": fleet.runs, "simulated": fleet.simulated}
        return Record.of(candidate, status, fleet.outcome, nearest_miss=_finite(fleet.miss), **spent)
    chosen, verdict, count = fleet.outcome
    cost = price(scenario_of(search, chosen))
    return Record.of(
        chosen, "measured", capacity_per_s=search.load,
        score=score(search.objective, search.load, verdict.good_share, cost), num_gpus=cost.num_gpus,
        cost_per_hour=cost.per_hour, num_requests=count, converged=True, binding=verdict.worst,
        good_share=verdict.good_share, figures=verdict.figures, runs=fleet.runs, simulated=fleet.simulated,
    )  # fmt: skip
