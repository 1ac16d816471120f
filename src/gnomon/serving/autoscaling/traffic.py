"""Where requests go while replicas come, go and die: who may be chosen, who is sent again, who waits for a replica."""

from dataclasses import dataclass, field

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.serving.autoscaling.evacuation import evacuate, redirect, requests_of
from gnomon.serving.autoscaling.replicas import DOWN, OFF, Replicas
from gnomon.serving.engine.calendar import REQUEST_ARRIVES, schedule_all
from gnomon.serving.engine.context import Environment, Fleet
from gnomon.serving.engine.state import ENDED, NOT_ARRIVED, NUM_PARKED, NUM_STATUS, PARKED, Cluster
from gnomon.serving.scenario.autoscaling import FailureConfig

IS_ENDED = np.isin(np.arange(NUM_STATUS), ENDED)


@dataclass
class Traffic:
    """The requests of a fleet, as far as they do not simply run where the router sent them."""

    failures: FailureConfig
    fleet: Fleet
    env: Environment
    replicas: Replicas
    watched: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Requests that had not ended when somebody asked last."""
    num_watched: int = 0
    """Those before this one had been sent by then."""
    lost: list[tuple[float, int, int]] = field(default_factory=list)
    migrates: bool = False
    """Requests may move while they decode."""

    def __post_init__(self) -> None:
        self.can_prefill, self.can_decode = self.fleet.candidates, self.env.decode.candidates
        self.has_roles = bool(self.env.calendar.book[0].has_roles)
        if self.env.dependents.size:  # Calls of agents are not sent in their order.
            self.num_watched = self.cluster.requests.size
            self.watched = np.arange(self.num_watched)

    @property
    def cluster(self) -> Cluster:
        """The engine's arrays."""
        return self.fleet.cluster

    @property
    def num_parked(self) -> int:
        """Requests that no replica could take."""
        return int(self.cluster.control[NUM_PARKED])

    @property
    def is_stuck(self) -> bool:
        """Whether requests wait for a replica that is not there."""
        replicas = self.cluster.replicas
        here = replicas.num_outstanding + replicas.num_coming
        return bool(self.num_parked or here[replicas.frozen != 0].any())

    @property
    def goes_on(self) -> bool:
        """Whether there are requests to come, some that have not ended, or KV that is kept for some."""
        book, replicas = self.env.calendar.book[0], self.cluster.replicas
        if (
            book.num_sent < book.end_open
            or self.num_parked
            or replicas.num_outstanding.any()
            or replicas.num_held.any()
        ):
            return True
        return not IS_ENDED[self.cluster.requests.status].all()

    def admit(self, now_s: float) -> None:
        """Routers see the replicas that take requests; where there were none, those that waited for one arrive."""
        to_decode = candidates = self.replicas.taking_requests()
        if self.has_roles:
            to_decode = to_decode[np.isin(to_decode, self.can_decode)]
            candidates = candidates[np.isin(candidates, self.can_prefill)]
        if not to_decode.size:  # Nobody is prefilled whom nobody would decode.
            candidates = candidates[:0]
        self.fleet = self.fleet._replace(candidates=candidates)
        self.env = self.env._replace(decode=self.env.decode._replace(candidates=to_decode))
        if candidates.size and self.num_parked:
            parked = np.flatnonzero(self.cluster.requests.status == PARKED)
            self.cluster.control[NUM_PARKED] = 0
            self._arrive_again(parked, now_s)

    def send_again(self, i: int, now_s: float) -> None:
        """All requests that are lost with a replica arrive once more; those that would have gone there from another one
        go elsewhere."""
        ranks = self.replicas.members[i].ranks
        ids = requests_of(self.cluster, ranks, self.under_way)
        keeps = {"keeps_tokens": self.failures.keeps_tokens, "stores_kv": self.failures.stores_kv}
        evacuate(self.cluster, self.env, ranks, ids, now_s=now_s, **keeps)
        self.lost.append((now_s, i, int(ids.size)))
        self._arrive_again(ids, now_s)
        targets = self.replicas.taking_requests()
        targets = targets[np.isin(targets, self.can_decode)]
        if targets.size:
            redirect(self.cluster, ranks, targets, self.under_way)

    def send_stranded(self, now_s: float) -> None:
        """Requests that went to a dead replica because there was no other: where there is one now, they arrive once
        more."""
        if not (self.has_roles or self.migrates) or not self.env.decode.candidates.size:
            return
        has = self.cluster.replicas.num_outstanding + self.cluster.replicas.num_coming
        for i in np.flatnonzero(np.isin(self.replicas.state, (OFF, DOWN))).tolist():
            ranks = self.replicas.members[i].ranks
            if i not in self.replicas.dead and has[ranks.start : ranks.stop].any():
                self.send_again(i, now_s)

    def ended_since(self) -> Ints:
        """The requests that ended since the last call of this."""
        if not self.env.dependents.size:
            sent = int(self.env.calendar.book[0].num_sent)
            self.watched = np.concatenate([self.watched, np.arange(self.num_watched, sent)])
            self.num_watched = sent
        has_ended = IS_ENDED[self.cluster.requests.status[self.watched]]
        ended, self.watched = self.watched[has_ended], self.watched[~has_ended]
        return ended

    @property
    def under_way(self) -> slice:
        """All requests that have been sent and not ended are among these."""
        if self.env.dependents.size:
            return slice(0, None)
        first = int(self.watched[0]) if self.watched.size else self.num_watched
        return slice(first, int(self.env.calendar.book[0].num_sent))

    def _arrive_again(self, ids: Ints, now_s: float) -> None:
        self.cluster.requests.status[ids] = NOT_ARRIVED
        self.cluster.requests.num_tries[ids] += 1
        schedule_all(self.env.calendar, REQUEST_ARRIVES, np.full(ids.size, now_s), ids)
