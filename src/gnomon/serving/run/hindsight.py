"""The cheapest schedule for requests that are known, found by running them again and again: what the oracle follows.

The day is cut into pieces, each with a number of replicas. From the fewest that follow the load and meet the SLO, one
replica at a time is taken away where that costs the fewest requests their SLO, until none can go anywhere. Cold starts
are paid for, failures come as they come to everybody.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.core.errors import ConfigError
from gnomon.serving.autoscaling.capacity import slo_check
from gnomon.serving.autoscaling.controllers import CONTROLLERS
from gnomon.serving.autoscaling.replicas import PAID, history
from gnomon.serving.scenario import Scenario
from gnomon.workload import Requests

_HALVINGS = 7  # Of the bracket in which the first schedule is looked for.

Plan = tuple[int, ...]  # Replicas in each piece of the run.


class _Tried(NamedTuple):
    met: float  # Share of the requests that met their SLO.
    paid_s: float  # Replica seconds.


def needs_hindsight(scenario: Scenario) -> bool:
    """Whether the controller follows the best schedule, which is not given."""
    controller = scenario.fleet.controller if scenario.fleet is not None else None
    return controller is not None and CONTROLLERS.chosen(controller).sees_future and not controller.steps


Tell = Callable[[int, int], None]


def with_best_steps(
    scenario: Scenario, requests: Requests, run: Callable[..., Any], on_progress: Tell | None = None
) -> Scenario:
    """The scenario with the steps of the best schedule that was found. `on_progress(done, most)` is called with the
    number of runs."""
    assert scenario.fleet is not None
    slos = [scenario.slo, *(one.slo for one in requests.classes if one.slo is not None)]
    if len(scenario.pools) > 1 or requests.concurrency or not any(one.is_given for one in slos):
        what = "the oracle needs one pool, arrivals that do not wait for answers, and an SLO."
        raise ConfigError(what, where="fleet.controller.name", fix="Choose another controller, or give slo.")
    return _Search(scenario, requests, run, on_progress).best()


class _Search:
    def __init__(
        self, scenario: Scenario, requests: Requests, run: Callable[..., Any], on_progress: Tell | None
    ) -> None:
        assert scenario.fleet is not None
        self.on_progress = on_progress
        self.scenario, self.requests, self.run, self.fleet = scenario, requests, run, scenario.fleet
        controller = self.fleet.controller
        options = {**CONTROLLERS.chosen(controller).options, **controller.options}
        self.goal, self.left, pieces = options["goal"], int(options["runs"]), int(options["pieces"])
        if pieces < 1 or not 0.0 <= self.goal <= 1.0:
            raise ConfigError(
                "the oracle needs at least one of its pieces, and as goal a share of the requests.",
                where="fleet.controller.options", fix="Try pieces: 24, goal: 0.99.",
            )  # fmt: skip
        self.interval_s = controller.interval_s
        self.most = self.fleet.max_replicas or scenario.all_pools()[0].num_replicas
        self.tried: dict[Plan, _Tried] = {}
        plain = self._simulated(((0.0, self.most),))
        record = plain.fleet
        ticks = max(1, len(record.samples))
        self.pieces = min(pieces, ticks)
        self.begin_s = [self.interval_s * (1 + ticks * i // self.pieces) for i in range(self.pieces)]
        self.load = self._load(record, ticks)

    def best(self) -> Scenario:
        """Follow the load, then take replicas away."""
        self.goal = min(self.goal, self.of((self.most,) * self.pieces).met)
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.of(self._following(middle)).met >= self.goal else (middle, high)
        plan = self._following(high)
        while (fewer := self._with_fewer(plan)) != plan:
            plan = fewer
        return self._scenario(self._steps(plan))

    def of(self, plan: Plan) -> _Tried:
        """What a plan comes to."""
        if plan not in self.tried:
            self.left -= 1
            done = self._simulated(self._steps(plan))
            records = done.cluster.requests
            check = slo_check(self.scenario.slo, done.requests, records)
            assert check is not None
            ended_s = float(np.nanmax(records.finished_s))
            seconds = history(done.fleet.members, done.fleet.changes, ended_s).seconds
            met = float(check(np.arange(records.size)).sum()) / len(self.requests)  # Those too long are missed, too.
            self.tried[plan] = _Tried(met, float(seconds[:, PAID].sum()))
            if self.on_progress is not None:
                self.on_progress(len(self.tried), max(len(self.tried), len(self.tried) + self.left))
        return self.tried[plan]

    def _with_fewer(self, plan: Plan) -> Plan:
        """A cheaper plan that still meets the goal: the replicas that are missed least go first, as many as can."""
        harm = []
        for i in range(self.pieces):
            fewer = _less(plan, [i])
            if plan[i] > self.fleet.min_replicas and self.left > 0:
                found = self.of(fewer)
                if found.met >= self.goal and found.paid_s < self.of(plan).paid_s:
                    harm.append(((self.of(plan).met - found.met) / (self.of(plan).paid_s - found.paid_s), i))
        order = [i for _, i in sorted(harm)]
        low, high = (1, len(order)) if order else (0, 0)
        while low < high and self.left > 0:
            middle = (low + high + 1) // 2
            found = self.of(_less(plan, order[:middle]))
            holds = found.met >= self.goal and found.paid_s < self.of(_less(plan, order[:low])).paid_s
            low, high = (middle, high) if holds else (low, middle - 1)
        return _less(plan, order[:low])

    def _load(self, record: Any, ticks: int) -> Ints:
        """[piece]: the most requests that are there at one time, until a replica started at its end would be ready."""
        there = (record.column("waiting") + record.column("running"))[:, 0]
        ahead = math.ceil(sum(record.cold_start[0].values()) / self.interval_s)
        edges = [ticks * i // self.pieces for i in range(self.pieces + 1)]
        return np.array([there[a : b + ahead].max(initial=1.0) for a, b in pairwise(edges)])

    def _following(self, share: float) -> Plan:
        """In each piece as many as follow the load, so that its peak has this share of the most."""
        wanted = np.ceil(share * self.most * self.load / self.load.max())
        return tuple(int(n) for n in np.clip(wanted, self.fleet.min_replicas, self.most))

    def _steps(self, plan: Plan) -> tuple[tuple[float, int], ...]:
        return tuple(zip(self.begin_s, plan, strict=True))

    def _scenario(self, steps: tuple[tuple[float, int], ...]) -> Scenario:
        controller = self.fleet.controller.model_copy(update={"steps": steps})
        return self.scenario.model_copy(update={"fleet": self.fleet.model_copy(update={"controller": controller})})

    def _simulated(self, steps: tuple[tuple[float, int], ...]) -> Any:
        return self.run(self._scenario(steps), requests=self.requests)


def _less(plan: Plan, pieces: list[int]) -> Plan:
    return tuple(n - (i in pieces) for i, n in enumerate(plan))
