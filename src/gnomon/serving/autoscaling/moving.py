"""Requests that go on elsewhere while they decode: asks the migration policy now and then, and does what it answers.

KV is copied while the request goes on, and what came meanwhile after it has left; or it is prefilled again there.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gnomon.core.errors import ConfigError
from gnomon.core.user_files import asked, is_own, place_of
from gnomon.serving.autoscaling.events import FleetEvents
from gnomon.serving.autoscaling.migrations import MIGRATIONS, Guest, Host, View
from gnomon.serving.autoscaling.replicas import DRAINING, UP, Replicas
from gnomon.serving.autoscaling.traffic import Traffic
from gnomon.serving.engine.state import IN_FLIGHT, PRIORITY
from gnomon.serving.features.migration import send_away
from gnomon.serving.features.transfers import LATENCY_S, PREFILLS_AGAIN
from gnomon.serving.scenario.autoscaling import MigrationConfig


@dataclass
class Mover:
    """Moves requests between the replicas of each pool."""

    config: MigrationConfig
    replicas: Replicas
    traffic: Traffic
    events: FleetEvents
    moved: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, request, replica it left for)."""
    copying: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.spec = MIGRATIONS.chosen(self.config)
        self.options = {**self.spec.options, **self.config.options}
        self.memory: list[dict[str, Any]] = [{} for _ in set(self.replicas.pool)]
        self.events.at(self.config.interval_s, self._tick)

    def _tick(self, now_s: float) -> None:
        if not self.traffic.goes_on:
            return
        for pool, memory in enumerate(self.memory):
            view = View(now_s, self._hosts(pool), self.options, memory)
            for guest, to in self._checked(view, asked(self.spec.choose, "migration policy", view)):
                self._begin(guest, to, now_s)
        self.events.at(now_s + self.config.interval_s, self._tick)

    def _hosts(self, pool: int) -> tuple[Host, ...]:
        cluster, is_up = self.traffic.cluster, self.replicas.state == UP
        members, alive = self.replicas.members, self.replicas.of(pool, UP, DRAINING)
        there = [(r, bool(is_up[i])) for i in alive for r in members[i].ranks]
        states = cluster.replicas[[r for r, _ in there]]
        waits = np.where(states.num_waiting > 0, cluster.requests.prefill_tokens[states.first_waiting], 0)
        running = states.num_holding + states.num_coming
        numbers = zip(states.num_blocks, states.free_blocks, states.block_size, running, waits, strict=True)
        return tuple(
            Host(r, is_open, int(blocks), int(free), int(size), int(runs), int(tokens), partial(self._guests, r))
            for (r, is_open), (blocks, free, size, runs, tokens) in zip(there, numbers, strict=True)
        )

    def _guests(self, r: int) -> tuple[Guest, ...]:
        cluster, q, some = self.traffic.cluster, self.traffic.cluster.requests, self.traffic.under_way
        decodes = (q.replica[some] == r) & (q.status[some] == IN_FLIGHT) & (q.processed[some] > q.prefill_tokens[some])
        here = np.array([i for i in np.flatnonzero(decodes) + (some.start or 0) if i not in self.copying], np.int64)
        tokens = q.processed[here] + np.maximum(0, cluster.replicas.steps[r] - q.joined[here])
        priorities = cluster.classes[q.user_class[here], PRIORITY]
        return tuple(map(Guest, here.tolist(), tokens.tolist(), priorities.tolist()))

    def _checked(self, view: View, answer: Any) -> list[tuple[Guest, int]]:
        takers = [host.replica for host in view.hosts if host.takes_requests]
        homes = {guest.request: (guest, host.replica) for host in view.hosts if answer for guest in host.guests}
        try:
            moves = [(*homes[request_id], to) for request_id, to in answer]
            if not all(to in takers and to != home for _, home, to in moves):
                raise ValueError
        except (TypeError, ValueError, KeyError):
            raise ConfigError(
                f"the migration policy {self.spec.name} answered {answer!r} at {view.now_s:g} s: not all of that are "
                "pairs of a guest and another host that takes requests.",
                where=place_of(self.spec.choose) if is_own(self.spec.choose) else "fleet.migration",
                fix="Answer with pairs of a guest's `request` and a host's `replica`.",
            ) from None
        return [(guest, to) for guest, _, to in moves]

    def _begin(self, guest: Guest, to: int, now_s: float) -> None:
        """Copy what is there; the request leaves when that is done."""
        cluster, transfers = self.traffic.cluster, self.traffic.env.transfers
        self.copying.add(guest.request)
        r, ready_s = int(cluster.requests.replica[guest.request]), now_s
        copied = guest.tokens - 1  # The newest is only sampled yet.
        if not transfers.settings[PREFILLS_AGAIN]:
            slower = min(transfers.links.capacity[r], transfers.links.capacity[to])
            ready_s += transfers.settings[LATENCY_S] + copied * transfers.bytes_per_token[to] / slower
        self.events.at(ready_s, lambda at_s: self._leave(guest.request, r, to, copied, at_s))

    def _leave(self, request_id: int, r: int, to: int, copied: int, now_s: float) -> None:
        self.copying.discard(request_id)
        cluster = self.traffic.cluster
        taker = cluster.replicas[to]
        room = (taker.free_blocks - taker.watermark_blocks) * taker.block_size
        if taker.num_ready or taker.num_holding >= taker.max_running or room < copied + 2 * taker.block_size:
            return  # It stays: there is no room for it any more.
        is_up = self.replicas.state[self.replicas.replica_of[to]] == UP
        if is_up and cluster.requests.replica[request_id] == r and send_away(cluster, request_id, to):
            self.traffic.env.transfers.flows.copied[request_id] = copied
            self.moved.append((now_s, request_id, to))
