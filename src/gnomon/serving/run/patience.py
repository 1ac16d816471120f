"""Clients that give up: a request without all its tokens at its deadline is let go by the engine, and may come again.

A deadline is an event of the caller's (`gnomon.serving.engine.calendar`): the loop stops with every replica at that
moment. The next one is that of the request that was sent first among those still there, so there are few. Another try
is a request of its own, whose record waits behind all others.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats, Ints
from gnomon.serving.autoscaling.traffic import IS_ENDED
from gnomon.serving.engine.calendar import BLOCKS_FREED, DEADLINE, REQUEST_ARRIVES, REQUEST_SENT, schedule_all
from gnomon.serving.engine.context import Environment
from gnomon.serving.engine.log import Log
from gnomon.serving.engine.state import ABANDONED, IN_FLIGHT, MOVING, NOT_ARRIVED, PARKED, Cluster
from gnomon.serving.features.cancel import cancel
from gnomon.serving.features.front_end import is_before_router
from gnomon.workload import PatienceConfig, Requests

BETWEEN = (NOT_ARRIVED, PARKED, MOVING)  # On its way to a replica: nobody can let it go.
LOOK_AGAIN_S = 0.02  # One that is on its way between replicas cannot be let go: it is looked at again after this long.


def with_tries(requests: Requests, patience: PatienceConfig) -> Requests:
    """Requests with a copy for every further try, behind all others and not sent."""
    if not patience.retries:
        return requests
    several = requests.take(np.tile(np.arange(len(requests)), 1 + patience.retries))
    later = np.full(len(several) - len(requests), np.inf)
    return replace(several, arrival_s=np.concatenate([requests.arrival_s, later]), shape=None)


@dataclass(eq=False)
class Patience:
    """Who still waits, and who has given up."""

    config: PatienceConfig
    cluster: Cluster
    env: Environment
    count: int
    """Requests, without their further tries."""
    left_s: Floats = field(init=False)
    """[record]: when its client gave up; infinite where it has not."""
    watched: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Records that may still be waited for: those that were sent, and the next one."""
    num_watched: int = 0
    """Records before this one have been watched."""
    hanging: set[int] = field(default_factory=set)
    """Given up, and not yet in a replica's hands."""

    def __post_init__(self) -> None:
        self.left_s = np.full(self.cluster.requests.size, np.inf)
        self.sent_s = self.cluster.requests.arrival_s[: self.count].copy()
        if not (np.isfinite(self.sent_s).all() and (self.sent_s[1:] >= self.sent_s[:-1]).all()):  # Sent by others.
            self.sent_s[:] = -np.inf
        self._look_again(0.0)

    def handle(self, now_s: float) -> None:
        """Let those go whose time is over."""
        late = np.sort(self.watched[self._waits() & (self._deadline_s() <= now_s + 1e-9)])
        self.left_s[late] = now_s
        self.hanging.update(late.tolist())
        for request_id in late.tolist():
            sent_s = now_s + self.config.retry_after_s
            again = request_id + self.count
            if again < self.cluster.requests.size:
                self.cluster.requests.arrival_s[again] = sent_s
                self.watched = np.append(self.watched, again)
                kind = REQUEST_SENT if is_before_router(self.env.front) else REQUEST_ARRIVES
                schedule_all(self.env.calendar, kind, np.array([sent_s]), np.array([again]))
        hanging = np.fromiter(self.hanging, np.int64, len(self.hanging))
        for request_id in hanging[~np.isin(self.cluster.requests.status[hanging], BETWEEN)].tolist():
            request = self.cluster.requests[request_id]
            in_flight = request.status == IN_FLIGHT
            if cancel(self.cluster, request_id, now_s):
                freed = np.array([request.replica], np.int64)  # Somebody else may have its blocks.
                schedule_all(self.env.calendar, BLOCKS_FREED, np.array([now_s]), freed)
            elif not in_flight and not IS_ENDED[request.status]:
                continue
            self.hanging.discard(request_id)
        self._look_again(now_s)

    def _waits(self) -> NDArray[np.bool_]:
        """[watched]: sent or to be sent, and not ended."""
        q = self.cluster.requests
        return np.isfinite(q.arrival_s[self.watched]) & ~IS_ENDED[q.status[self.watched]]

    def _deadline_s(self) -> Floats:
        q = self.cluster.requests
        return np.asarray(q.arrival_s[self.watched] - q.front_s[self.watched] + self.config.give_up_after_s)

    def _watch(self, now_s: float) -> None:
        """Look at those that were sent by now and the next one, no longer at those that have ended or were given up."""
        is_over = IS_ENDED[self.cluster.requests.status[self.watched]] | np.isfinite(self.left_s[self.watched])
        sent = min(int(np.searchsorted(self.sent_s, now_s, side="right")) + 1, self.count)
        self.watched = np.concatenate([self.watched[~is_over], np.arange(self.num_watched, sent)])
        self.num_watched = max(sent, self.num_watched)

    def _look_again(self, now_s: float) -> None:
        """The next deadline; in a closed loop, whoever is sent later has a later one than if it were sent now."""
        self._watch(now_s)
        book = self.env.calendar.book[0]
        next_s = float(self._deadline_s()[self._waits()].min(initial=math.inf))
        if book.num_sent < book.end_closed or (math.isinf(next_s) and now_s == 0.0):
            next_s = min(next_s, now_s + self.config.give_up_after_s)
        if self.hanging:
            next_s = min(next_s, now_s + LOOK_AGAIN_S)
        if math.isfinite(next_s):
            schedule_all(self.env.calendar, DEADLINE, np.array([next_s]), np.zeros(1, np.int64))

    def reported(self, cluster: Cluster, log: Log, requests: Requests) -> tuple[Cluster, Requests]:
        """What is reported: requests that were sent, each try by itself, and who gave up."""
        q, gone = cluster.requests, np.isfinite(self.left_s)
        q.status[gone], q.last_reply_s[gone] = ABANDONED, 0.0
        q.finished_s[gone] = self.left_s[gone]
        q.first_token_s[gone & (q.first_token_s > self.left_s)] = -1.0  # Nobody was there to see it.
        kept = np.flatnonzero((np.arange(q.size) < self.count) | (q.status != NOT_ARRIVED))
        if not requests.concurrency:
            kept = kept[np.argsort(q.arrival_s[kept], kind="stable")]
        place = np.zeros(len(requests), np.int64)
        place[kept] = np.arange(kept.size)
        log.members[: log.used[1], 0] = place[log.members[: log.used[1], 0]]
        log.chunks.request[: log.used[5]] = place[log.chunks.request[: log.used[5]]]
        note = (
            f"{np.count_nonzero(gone):,} times a client gave up after {self.config.give_up_after_s:g} s; "
            f"{kept.size - self.count:,} of the requests are further tries."
        )
        cut = cluster._replace(
            requests=cluster.requests[kept], breakdown=_cut(cluster.breakdown, kept),
            parts_ns=_cut(cluster.parts_ns, kept),
        )  # fmt: skip
        seen = replace(requests, notes=(*requests.notes, note))
        return cut, seen if kept.size == len(requests) else replace(seen.take(kept), arrival_s=cut.requests.arrival_s)


def _cut(values: Ints, kept: Ints) -> Ints:
    return values[kept] if len(values) else values
