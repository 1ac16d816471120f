"""The manager of a fleet: asks the controller now and then, and lets replicas start and drain until as many as it wants
are there. What happens to one replica is in `lifecycle`, what happens to requests meanwhile in `traffic`."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import ConfigError
from gnomon.core.user_files import asked, is_own, place_of, plain
from gnomon.serving.autoscaling.controllers import ControllerSpec, View
from gnomon.serving.autoscaling.events import FleetEvents
from gnomon.serving.autoscaling.lifecycle import Lifecycle
from gnomon.serving.autoscaling.moving import Mover
from gnomon.serving.autoscaling.observation import Observer, PoolView
from gnomon.serving.autoscaling.replicas import DRAINING, OFF, STARTING, UP, Replicas
from gnomon.serving.autoscaling.traffic import Traffic
from gnomon.serving.engine.calendar import CONTROL_TICK
from gnomon.serving.engine.context import Environment, Fleet
from gnomon.serving.scenario.autoscaling import FleetConfig
from gnomon.workload.slo import SloConfig

PATIENCE_TICKS = 1000
"""Decisions without a replica that is up or starting, while requests wait for one, before the run is given up."""
FLAPS = 0.25  # Share of the decisions that undo the one before from which on a controller is said to flap.
LOOK_S = 0.1  # Between two looks at whether a replica has drained that another pool waits for.


@dataclass
class Manager:
    """Asks the controller, and does what it answers."""

    config: FleetConfig
    spec: ControllerSpec
    replicas: Replicas
    pools: list[PoolView]
    traffic: Traffic
    met_slo: Callable[[Ints], Floats] | None
    """Of some ended requests, which met their SLO; None without one."""
    seed: int
    stop_s: float
    slo: SloConfig = field(default_factory=SloConfig)
    idle_ticks: int = 0
    gave_up: bool = False
    looks: bool = False
    """Whether a look at replicas that drain is planned."""

    def __post_init__(self) -> None:
        self.events = FleetEvents(self.traffic.env.calendar)
        seen = (self.replicas, self.traffic, self.pools, self.met_slo, self.slo)
        self.observer = Observer(self.config.controller, self.spec, *seen)
        self.most = int(np.count_nonzero(self.replicas.state)) if self.config.switch_s is not None else None
        self.lifecycle = Lifecycle(
            self.config, self.replicas, self.traffic, self.events, self.seed,
            [pool.cold_start_s for pool in self.pools], self._reconcile,
        )  # fmt: skip
        moves = self.config.migration
        self.mover = Mover(moves, self.replicas, self.traffic, self.events) if moves is not None else None
        self.traffic.admit(0.0)
        if self.config.controller.interval_s < self.stop_s:
            self.events.tick_at(self.config.controller.interval_s)

    @property
    def fleet(self) -> Fleet:
        """What the router sees from now on."""
        return self.traffic.fleet

    @property
    def env(self) -> Environment:
        """What is outside the replicas from now on."""
        return self.traffic.env

    def handle(self) -> None:
        """The loop has stopped at an event: let it happen. Every replica has been brought up to that moment."""
        book = self.env.calendar.book[0]
        now_s = float(book.time_s)
        self.lifecycle.notice_drained(now_s)
        if book.kind != CONTROL_TICK and self.traffic.goes_on:
            self.events.happen(int(book.subject), now_s)
        elif book.kind == CONTROL_TICK and self._goes_on():
            self._tick(now_s)
        else:  # What else was planned for replicas matters to nobody.
            book.num_events = 0
            return
        if self.most is not None:
            self._share(now_s)
        self.traffic.admit(now_s)
        self.traffic.send_stranded(now_s)

    def _tick(self, now_s: float) -> None:
        ended = self.traffic.ended_since()
        views = [self.observer.view(number, now_s, ended) for number in range(len(self.pools))]
        if self.spec.shares and self.most is not None:
            prefill = self._asked(*views)
            answers = [prefill, self.most - prefill]
        else:
            answers = [self._asked(view) for view in views]
        for number, (pool, answer) in enumerate(zip(self.pools, answers, strict=True)):
            if answer != pool.desired:
                pool.decisions.append((now_s, answer))
            pool.desired = answer
            if self.most is None:
                self._reconcile(number, now_s)
        if self.most is not None:
            self._share(now_s)
        self.observer.take_samples(now_s)
        self.events.tick_at(now_s + self.config.controller.interval_s)

    def _goes_on(self) -> bool:
        """Whether there will be anything to decide."""
        alive = sum(bool(self.replicas.of(number, UP, STARTING)) for number in range(len(self.pools)))
        nobody_comes = self.traffic.is_stuck and alive < (len(self.pools) if self.traffic.has_roles else 1)
        self.idle_ticks = self.idle_ticks + 1 if nobody_comes else 0
        self.gave_up = self.idle_ticks > PATIENCE_TICKS
        return not self.gave_up and self.traffic.goes_on

    def _asked(self, view: View, *others: View) -> int:
        """What the controller answers, within the limits; an answer that is no count is an error of its own."""
        name = plain(self.spec.decide).__name__
        answer = asked(self.spec.decide, "controller", view, *others)
        try:
            count = float(answer)
        except (TypeError, ValueError, OverflowError):
            count = math.nan
        if not math.isfinite(count) or count < 0 or count != int(count):
            what = f"the controller {name} answered {answer!r} at {view.now_s:g} s: that is no number of replicas."
            where = place_of(self.spec.decide) if is_own(self.spec.decide) else "fleet.controller"
            raise ConfigError(what, where=where, fix="Answer with a whole number from 0 on.")
        return min(max(int(count), view.min_replicas), view.max_replicas)

    def _share(self, now_s: float) -> None:
        """Replicas that have left a pool serve in one that lacks some; while others leave, look again soon."""

        def lacks(number: int) -> int:
            return self.pools[number].desired - len(self.replicas.of(number, UP, STARTING))

        for number in sorted(range(len(self.pools)), key=lacks):
            self._reconcile(number, now_s)
        self.lifecycle.free = 0
        if not self.looks and (self.replicas.state == DRAINING).any():
            self.looks = True
            self.events.at(now_s + LOOK_S, self._looked)

    def _looked(self, now_s: float) -> None:
        self.looks = False

    def _reconcile(self, pool: int, now_s: float) -> None:
        """Start or drain replicas until as many as desired are up or on their way."""
        alive = self.replicas.of(pool, UP, STARTING)
        missing = self.pools[pool].desired - len(alive)
        if self.most is not None:
            missing = min(missing, self.most - int(np.count_nonzero(self.replicas.state)))
        for i in self.replicas.of(pool, OFF)[: max(missing, 0)]:
            self.lifecycle.start(i, now_s)
        starting = self.replicas.of(pool, STARTING)[::-1]
        up = sorted(self.replicas.of(pool, UP), key=lambda i: (self._outstanding(i), -i))
        for i in [*starting, *up][: max(-missing, 0)]:
            self.lifecycle.drain(i, now_s)

    def _outstanding(self, i: int) -> int:
        ranks = self.replicas.members[i].ranks
        return int(self.traffic.cluster.replicas.num_outstanding[ranks.start : ranks.stop].sum())

    def flaps(self) -> list[str]:
        """A sentence for each pool whose controller kept undoing what it had decided."""
        notes = []
        for number, pool in enumerate(self.pools):
            counts = [count for _, count in pool.decisions]
            undone = int(np.count_nonzero(np.abs(np.diff(np.sign(np.diff(counts)))) == 2))
            if len(counts) >= 8 and undone > max(FLAPS * len(counts), 4) and self._undoes_quickly(pool):
                notes.append(
                    f"The controller {self.spec.name} flaps: {undone} of its {len(counts)} changes in pool {number} "
                    "undid the one before within a cold start. Give it a tolerance, or let it wait before it shrinks."
                )
        return notes

    def _undoes_quickly(self, pool: PoolView) -> bool:
        gaps = np.diff([at_s for at_s, _ in pool.decisions])
        return bool(np.median(gaps) <= max(pool.cold_start_s, 2 * self.config.controller.interval_s))
