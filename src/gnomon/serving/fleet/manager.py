"""What happens to the replicas of a fleet during a run: the events of the calendar that are not arrivals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import ConfigError
from gnomon.core.streams import stream
from gnomon.core.user_files import is_own, own_error, place_of, plain
from gnomon.serving.calendar import CONTROL_TICK, REQUEST_ARRIVES, Calendar, schedule_all
from gnomon.serving.cluster import Fleet, Outside
from gnomon.serving.fleet.config import FleetConfig
from gnomon.serving.fleet.controllers import ControllerSpec, View
from gnomon.serving.fleet.evacuation import cut_link, evacuate, forget_cache, freeze, redirect, requests_of
from gnomon.serving.fleet.replicas import DOWN, DRAINING, OFF, STARTING, UP, Replicas
from gnomon.serving.state import FINISHED, NOT_ARRIVED, NUM_PARKED, NUM_SHED, PARKED, REJECTED, SHED, Cluster

REPLICA_CHANGES = 101
"""A kind of event: something happens to a replica; its subject is the place in the manager's agenda."""
PATIENCE_TICKS = 1000
"""Decisions without a replica that is up or starting, while requests wait for one, before the run is given up."""
ENDED = (FINISHED, REJECTED, SHED)
FLAPS = 0.25
"""Share of the decisions that undo the one before from which on a controller is said to flap."""


@dataclass
class Pool:
    """What the manager knows of one pool between two decisions."""

    min_replicas: int
    max_replicas: int
    desired: int
    cold_start_s: float
    replica_rate: float = 0.0
    memory: dict[str, Any] = field(default_factory=dict)
    busy_s: float = 0.0
    taken: int = 0
    decisions: list[tuple[float, int]] = field(default_factory=list)
    """(time, answer) of every decision that changed something."""


@dataclass
class Manager:
    """Starts, drains, loses and slows replicas, and asks the controller."""

    config: FleetConfig
    spec: ControllerSpec
    fleet: Fleet
    replicas: Replicas
    pools: list[Pool]
    outside: Outside
    met_slo: Callable[[Ints], Floats] | None
    """Of some ended requests, which met their SLO; None without one."""
    seed: int
    stop_s: float
    agenda: list[Callable[[float], None]] = field(default_factory=list)
    dead: set[int] = field(default_factory=set)
    """Replicas that have died and nobody has noticed."""
    generation: dict[int, int] = field(default_factory=dict)
    """How often a replica was started or has died: what was planned for an earlier life does not happen."""
    idle_ticks: int = 0
    last_tick_s: float = 0.0
    watched: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Requests that had not ended when the controller was asked last."""
    num_watched: int = 0
    """Those before this one had been sent by then."""
    failures: int = 0
    retries: int = 0
    samples: list[list[list[float]]] = field(default_factory=list)
    gave_up: bool = False

    def __post_init__(self) -> None:
        self.random = stream(self.seed, "fleet")
        self.can_prefill, self.can_decode = self.fleet.candidates, self.outside.decode.candidates
        self.has_roles = bool(self.calendar.book[0].has_roles)
        self.link_bytes_s = self.outside.transfers.links.capacity.copy()
        if self.outside.followers.size:  # Calls of agents are not sent in their order.
            self.num_watched = self.cluster.requests.size
            self.watched = np.arange(self.num_watched)
        for i, state in enumerate(self.replicas.state):
            if state == UP:
                self._plan_trouble(i, 0.0)
            else:
                freeze(self.cluster, self.replicas.members[i].ranks)
        for one in self.config.events:
            self.at(one.at_s, self._given(one.what, one.replica, one.factor))
        self._admit()
        if self.config.controller.interval_s < self.stop_s:
            self._tick_at(self.config.controller.interval_s)

    @property
    def calendar(self) -> Calendar:
        """The calendar of the run."""
        return self.outside.calendar

    @property
    def cluster(self) -> Cluster:
        """The engine's arrays."""
        return self.fleet.cluster

    # Events.

    def at(self, time_s: float, what: Callable[[float], None]) -> None:
        """Let something happen to a replica at a given time."""
        self.agenda.append(what)
        schedule_all(self.calendar, REPLICA_CHANGES, np.array([time_s]), np.array([len(self.agenda) - 1]))

    def _tick_at(self, time_s: float) -> None:
        schedule_all(self.calendar, CONTROL_TICK, np.array([time_s]), np.zeros(1, np.int64))

    def handle(self) -> None:
        """The loop has stopped at an event: let it happen. Every replica has been brought up to that moment."""
        book = self.calendar.book[0]
        now_s = float(book.time_s)
        if book.kind == CONTROL_TICK:
            self._tick(now_s)
        else:
            self.agenda[int(book.subject)](now_s)
        self._admit()
        self._send_stranded(now_s)

    def _admit(self) -> None:
        """Routers see the replicas that take requests; where there were none, those that waited for one arrive."""
        open_ = self.replicas.taking_requests(self.dead)
        to_decode = open_[np.isin(open_, self.can_decode)]
        candidates = open_[np.isin(open_, self.can_prefill)]
        if not to_decode.size:  # Nobody is prefilled whom nobody would decode.
            candidates = candidates[:0]
        self.fleet = self.fleet._replace(candidates=candidates)
        self.outside = self.outside._replace(decode=self.outside.decode._replace(candidates=to_decode))
        if candidates.size and self._has_parked:
            parked = np.flatnonzero(self.cluster.requests.status == PARKED)
            self.cluster.control[NUM_PARKED] = 0
            self._arrive_again(parked, float(self.calendar.book[0].time_s))

    @property
    def _sent(self) -> int:
        return int(self.calendar.book[0].num_sent)

    @property
    def _is_stuck(self) -> bool:
        """Whether requests wait for a replica that is not there."""
        replicas = self.cluster.replicas
        here = replicas.num_outstanding + replicas.num_coming
        return self._has_parked or bool(here[replicas.frozen != 0].any())

    @property
    def _has_parked(self) -> bool:
        return bool(self.cluster.control[NUM_PARKED])

    @property
    def _under_way(self) -> slice:
        """All requests that have been sent and not ended are among these."""
        if self.outside.followers.size:
            return slice(0, None)
        return slice(int(self.watched[0]) if self.watched.size else self.num_watched, self._sent)

    def _arrive_again(self, ids: Ints, now_s: float) -> None:
        self.cluster.requests.status[ids] = NOT_ARRIVED
        schedule_all(self.calendar, REQUEST_ARRIVES, np.full(ids.size, now_s), ids)

    # The life of a replica.

    def _begin_life(self, i: int) -> int:
        self.generation[i] = self.generation.get(i, 0) + 1
        return self.generation[i]

    def _in_life(self, i: int, what: Callable[[int, float], None]) -> Callable[[float], None]:
        """`what` for replica `i`, unless its life has ended before."""
        life = self.generation.get(i, 0)
        return lambda now_s: what(i, now_s) if self.generation.get(i, 0) == life else None

    def start(self, i: int, now_s: float) -> None:
        """Begin a cold start, where the replica is off."""
        if self.replicas.state[i] != OFF:
            return
        self._begin_life(i)
        self.replicas.change(now_s, i, STARTING)
        self.at(now_s + self.pools[self.replicas.members[i].pool].cold_start_s, self._in_life(i, self._ready))

    def _ready(self, i: int, now_s: float) -> None:
        ranks = self.replicas.members[i].ranks
        self._send_again(i, now_s)
        for r in ranks:
            forget_cache(self.cluster, r)
            self.cluster.replicas[r].frozen = 0
            self.cluster.stage_free_s[r] = now_s
        if self.has_roles:
            here = slice(ranks.start, ranks.stop)
            self.outside.transfers.links.capacity[here] = self.link_bytes_s[here]
        self.slow(i, 1.0)
        self.replicas.change(now_s, i, UP)
        self._plan_trouble(i, now_s)

    def drain(self, i: int, now_s: float) -> None:
        """Let a replica finish what it has and leave; one that is starting leaves at once."""
        if self.replicas.state[i] == STARTING:
            self._begin_life(i)
            self.replicas.change(now_s, i, OFF)
        elif self.replicas.state[i] == UP:
            self.replicas.change(now_s, i, DRAINING)
            self._notice_drained(now_s)

    def _notice_drained(self, now_s: float) -> None:
        """Replicas that have finished what they had left when their last batch ended."""
        for i in np.flatnonzero(self.replicas.state == DRAINING).tolist():
            ranks = self.replicas.members[i].ranks
            here = self.cluster.replicas[ranks.start : ranks.stop]
            # KV that it holds for others, or that is on its way here, is waited for, too.
            if not any(here[name].any() for name in ("num_outstanding", "num_coming", "num_held")):
                ended = float(self.cluster.stage_free_s[ranks.start : ranks.stop].max())
                self._begin_life(i)
                self.replicas.change(min(max(self.replicas.since[i], ended), now_s), i, OFF)
                freeze(self.cluster, ranks)

    def fail(self, i: int, now_s: float) -> None:
        """A replica dies. It is noticed after a while; until then requests go on being sent there."""
        state = int(self.replicas.state[i])
        if state in (OFF, DOWN):
            return
        self._notice_drained(now_s)
        self._begin_life(i)
        self.failures += 1
        freeze(self.cluster, self.replicas.members[i].ranks)
        cut_link(self.outside, self.replicas.members[i].ranks, now_s)
        self.replicas.change(now_s, i, DOWN)
        if state == UP:
            self.dead.add(i)
        self.at(now_s + self.config.failures.detect_s, self._in_life(i, self._noticed))
        if self.config.failures.mtbf_s is not None:
            repair_s = float(self.random.exponential(self.config.failures.mttr_s))
            self.at(now_s + self.config.failures.detect_s + repair_s, self._in_life(i, self.repair))

    def _noticed(self, i: int, now_s: float) -> None:
        """The death of a replica is noticed: its requests are sent again, and another one starts in its stead."""
        self.dead.discard(i)
        self._send_again(i, now_s)
        self._reconcile(self.replicas.members[i].pool, now_s)

    def _send_again(self, i: int, now_s: float) -> None:
        """All requests that are lost with a replica arrive once more; those that would have gone there from another one
        go elsewhere."""
        failures, ranks = self.config.failures, self.replicas.members[i].ranks
        ids = requests_of(self.cluster, ranks, self._under_way)
        told = {"keeps_tokens": failures.keeps_tokens, "stores_kv": failures.stores_kv}
        evacuate(self.cluster, self.outside, ranks, ids, now_s=now_s, **told)
        self.retries += ids.size
        self._arrive_again(ids, now_s)
        targets = self.replicas.taking_requests(self.dead)
        targets = targets[np.isin(targets, self.can_decode)]
        if self.has_roles and targets.size:
            redirect(self.cluster, ranks, targets, self._under_way)

    def _send_stranded(self, now_s: float) -> None:
        """Requests that went to a dead replica because there was no other: where there is one now, they arrive once
        more."""
        if not self.has_roles or not self.outside.decode.candidates.size:
            return
        has = self.cluster.replicas.num_outstanding + self.cluster.replicas.num_coming
        for i in np.flatnonzero(np.isin(self.replicas.state, (OFF, DOWN))).tolist():
            ranks = self.replicas.members[i].ranks
            if i not in self.dead and has[ranks.start : ranks.stop].any():
                self._send_again(i, now_s)

    def repair(self, i: int, now_s: float) -> None:
        """The place of a dead replica can be used again."""
        if self.replicas.state[i] == DOWN and i not in self.dead:
            self.replicas.change(now_s, i, OFF)
            self._reconcile(self.replicas.members[i].pool, now_s)

    def slow(self, i: int, factor: float) -> None:
        """From the next iteration on a replica takes `factor` times as long."""
        ranks = self.replicas.members[i].ranks
        here = self.cluster.replicas[ranks.start : ranks.stop]
        here.straggling = factor - 1.0
        here.slowdown = (1.0 + here.straggling) * (1.0 + here.adapting) - 1.0

    def _given(self, what: str, i: int, factor: float) -> Callable[[float], None]:
        if i >= len(self.replicas.members):
            raise ConfigError(
                f"there is no replica {i}.", where="fleet.events", fix=f"Use 0 to {len(self.replicas.members) - 1}."
            )
        acts: dict[str, Callable[[float], None]] = {
            "start": lambda now_s: self.start(i, now_s),
            "drain": lambda now_s: self.drain(i, now_s),
            "fail": lambda now_s: self.fail(i, now_s),
            "repair": lambda now_s: self.repair(i, now_s),
            "slow": lambda now_s: self.slow(i, factor),
        }
        return acts[what]

    def _plan_trouble(self, i: int, now_s: float) -> None:
        failures, stragglers = self.config.failures, self.config.stragglers
        if failures.mtbf_s is not None:
            self.at(now_s + float(self.random.exponential(failures.mtbf_s)), self._in_life(i, self.fail))
        if stragglers.mean_s is not None:
            self.at(now_s + float(self.random.exponential(stragglers.mean_s)), self._in_life(i, self._falter))

    def _falter(self, i: int, now_s: float) -> None:
        stragglers = self.config.stragglers
        self.slow(i, stragglers.factor)
        self.at(now_s + float(self.random.exponential(stragglers.duration_s)), self._in_life(i, self._pick_up))

    def _pick_up(self, i: int, now_s: float) -> None:
        self.slow(i, 1.0)
        stragglers = self.config.stragglers
        assert stragglers.mean_s is not None
        self.at(now_s + float(self.random.exponential(stragglers.mean_s)), self._in_life(i, self._falter))

    # The controller.

    def _reconcile(self, pool: int, now_s: float) -> None:
        """Start or drain replicas until as many as desired are up or on their way."""
        alive = self.replicas.of(pool, UP, STARTING)
        missing = self.pools[pool].desired - len(alive)
        if missing > 0:
            for i in self.replicas.of(pool, OFF)[:missing]:
                self.start(i, now_s)
        elif missing < 0:
            starting = self.replicas.of(pool, STARTING)[::-1]
            outstanding = self.cluster.replicas.num_outstanding
            up = sorted(self.replicas.of(pool, UP), key=lambda i: (self._outstanding(i, outstanding), -i))
            for i in [*starting, *up][:-missing]:
                self.drain(i, now_s)

    def _outstanding(self, i: int, outstanding: Ints) -> int:
        ranks = self.replicas.members[i].ranks
        return int(outstanding[ranks.start : ranks.stop].sum())

    def _tick(self, now_s: float) -> None:
        self._notice_drained(now_s)
        if not self._goes_on():
            self.calendar.book.num_events = 0  # What else was planned for replicas matters to nobody.
            return
        ended = self._ended_since()
        for number, pool in enumerate(self.pools):
            view = self._view(number, now_s, ended)
            answer = self._asked(view)
            if answer != pool.desired:
                pool.decisions.append((now_s, answer))
            pool.desired = answer
            self._reconcile(number, now_s)
        self.samples.append([self._sample(number, now_s) for number in range(len(self.pools))])
        self.last_tick_s = now_s
        self._tick_at(now_s + self.config.controller.interval_s)

    def _sample(self, number: int, now_s: float) -> list[float]:
        """One row of `record.SAMPLES`."""
        mine = self._ranks(number)
        a = self.cluster.replicas[mine]
        counts = [len(self.replicas.of(number, state)) for state in (UP, STARTING, DRAINING, DOWN)]
        waiting, outstanding = int(a.num_waiting.sum()), int(a.num_outstanding.sum())
        sums = [float(a[name].sum()) for name in ("num_finished", "num_produced", "busy_s", "flops", "bytes")]
        parked = self._num_parked if number == 0 else 0
        return [now_s, *counts, self.pools[number].desired, waiting + parked, outstanding - waiting, *sums]

    def sampled(self) -> Floats:
        """[sample, pool, column]"""
        return np.array(self.samples) if self.samples else np.zeros((0, len(self.pools), 0))

    def _ranks(self, number: int) -> Ints:
        return np.array([r for one in self.replicas.members if one.pool == number for r in one.ranks], np.int64)

    def _goes_on(self) -> bool:
        """Whether there will be anything to decide: requests to come, or some that have not ended."""
        book, replicas = self.calendar.book[0], self.cluster.replicas
        alive = np.array(
            [one.pool for i, one in enumerate(self.replicas.members) if self.replicas.state[i] in (UP, STARTING)]
        )
        hopeless = self._is_stuck and len(set(alive.tolist())) < (len(self.pools) if self.has_roles else 1)
        self.idle_ticks = self.idle_ticks + 1 if hopeless else 0
        if self.idle_ticks > PATIENCE_TICKS:
            self.gave_up = True
            return False
        is_busy = book.num_sent < book.end_open or self._has_parked or replicas.num_outstanding.any()
        return bool(is_busy or not np.isin(self.cluster.requests.status, ENDED).all())

    def _asked(self, view: View) -> int:
        """What the controller answers, within the limits; an answer that is no count is an error of its own."""
        name = plain(self.spec.decide).__name__
        try:
            answer = self.spec.decide(view)
        except ConfigError:
            raise
        except Exception as error:
            if not is_own(self.spec.decide):
                raise
            raise own_error(error, self.spec.decide, "controller") from error
        try:
            count = float(answer)
        except (TypeError, ValueError):
            count = math.nan
        if not math.isfinite(count) or count < 0 or count != int(count):
            raise ConfigError(
                f"the controller {name} answered {answer!r} at {view.now_s:g} s: that is no number of replicas.",
                where=place_of(self.spec.decide) if is_own(self.spec.decide) else "fleet.controller",
                fix="Answer with a whole number from 0 on.",
            )
        return min(max(int(count), view.min_replicas), view.max_replicas)

    def _view(self, number: int, now_s: float, ended: Ints) -> View:
        pool, replicas = self.pools[number], self.cluster.replicas
        ready = self.replicas.of(number, UP)
        ranks = np.array([r for i in ready for r in self.replicas.members[i].ranks], np.int64)
        mine = self._ranks(number)
        span_s = max(now_s - self.last_tick_s, 1e-9)
        # The iterations under way have been booked whole: what lies beyond now belongs to the next interval.
        beyond_s = np.maximum(self.cluster.stage_free_s[mine, 0] - now_s, 0.0)
        busy_s = float((replicas.busy_s[mine] - np.where(np.isfinite(beyond_s), beyond_s, 0.0)).sum())
        parked = self._num_parked if number == 0 else 0
        turned_away = int(self.cluster.control[NUM_SHED]) if number == 0 else 0
        taken = int(replicas.num_taken[mine].sum()) + parked + turned_away
        arrived, used_s = taken - pool.taken, busy_s - pool.busy_s
        pool.taken, pool.busy_s = taken, busy_s
        blocks = max(int(replicas.num_blocks[ranks].sum()), 1)
        waiting = int(replicas.num_waiting[mine].sum())
        return View(
            now_s=now_s,
            interval_s=span_s,
            ready=len(ready),
            starting=len(self.replicas.of(number, STARTING)),
            draining=len(self.replicas.of(number, DRAINING)),
            desired=pool.desired,
            min_replicas=pool.min_replicas,
            max_replicas=pool.max_replicas,
            arrival_rate=max(arrived, 0) / span_s,
            waiting=waiting + parked,
            running=int(replicas.num_outstanding[mine].sum()) - waiting,
            utilization=min(max(used_s / (span_s * max(len(ranks), 1)), 0.0), 1.0),
            kv_use=1.0 - int(replicas.free_blocks[ranks].sum()) / blocks if ranks.size else 0.0,
            slo_met=float(self.met_slo(ended).mean()) if self.met_slo is not None and ended.size else None,
            cold_start_s=pool.cold_start_s,
            replica_rate=pool.replica_rate,
            options={**self.spec.options, **self.config.controller.options},
            steps=self.config.controller.steps,
            memory=pool.memory,
            future=partial(self._arrivals_between, self._share(number)) if self.spec.sees_future else None,
        )

    @property
    def _num_parked(self) -> int:
        return int(self.cluster.control[NUM_PARKED])

    def _ended_since(self) -> Ints:
        """The requests that ended since the last decision."""
        if not self.outside.followers.size:
            self.watched = np.concatenate([self.watched, np.arange(self.num_watched, self._sent)])
            self.num_watched = self._sent
        has_ended = np.isin(self.cluster.requests.status[self.watched], ENDED)
        ended, self.watched = self.watched[has_ended], self.watched[~has_ended]
        return ended

    def _arrivals_between(self, share: float, start_s: float, end_s: float) -> float:
        """Arrivals between two moments, as far as they are known ahead: of agents, the starts of sessions, each with
        all its calls."""
        known = int(self.calendar.book[0].end_open)
        first, last = np.searchsorted(self.cluster.requests.arrival_s[:known], (start_s, end_s))
        return float(last - first) * share * self.cluster.requests.size / max(known, 1)

    def _share(self, number: int) -> float:
        """Of all arrivals, how many concern a pool: all where pools have roles, else as many as it has had so far."""
        if len(self.pools) == 1 or self.has_roles:
            return 1.0
        taken = np.array([self.cluster.replicas.num_taken[self._ranks(n)].sum() for n in range(len(self.pools))])
        return float(taken[number] / taken.sum()) if taken.sum() else 1.0 / len(self.pools)

    def flaps(self) -> list[str]:
        """A sentence for each pool whose controller kept undoing what it had decided."""
        told = []
        for number, pool in enumerate(self.pools):
            counts = [count for _, count in pool.decisions]
            turns = np.diff(np.sign(np.diff(counts))) if len(counts) > 2 else np.zeros(0)
            undone = int(np.count_nonzero(np.abs(turns) == 2))
            if len(counts) >= 8 and undone > max(FLAPS * len(counts), 4) and self._undoes_quickly(pool):
                told.append(
                    f"The controller {self.spec.name} flaps: {undone} of its {len(counts)} changes in pool {number} "
                    "undid the one before within a cold start. Give it a tolerance, or let it wait before it shrinks."
                )
        return told

    def _undoes_quickly(self, pool: Pool) -> bool:
        gaps = np.diff([at_s for at_s, _ in pool.decisions])
        return bool(np.median(gaps) <= max(pool.cold_start_s, 2 * self.config.controller.interval_s))
