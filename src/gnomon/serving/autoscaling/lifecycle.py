"""The lives of replicas: they start cold, drain, die, are repaired, and become slow for a while."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gnomon.core.errors import ConfigError
from gnomon.core.streams import stream
from gnomon.serving.autoscaling.evacuation import cut_link, freeze
from gnomon.serving.autoscaling.events import Agenda
from gnomon.serving.autoscaling.replicas import DOWN, DRAINING, OFF, STARTING, UP, Replicas
from gnomon.serving.autoscaling.traffic import IS_ENDED, Traffic
from gnomon.serving.scenario.autoscaling import FleetConfig

IN_VAIN = 50
"""Failures of each replica between two looks at whether anything is served at all."""


@dataclass
class Lives:
    """Starts, drains, loses, repairs and slows replicas; what follows later is put on the agenda."""

    config: FleetConfig
    replicas: Replicas
    traffic: Traffic
    agenda: Agenda
    seed: int
    cold_start_s: list[float]
    """[pool]: seconds from the start of a replica until it takes requests."""
    has_room: Callable[[int, float], None]
    """Called with a pool and the time when a replica may be missing, or can be started again."""
    failures: int = 0
    progress: float | None = None
    """When the last token came, or where tokens are lost how many requests had ended, when that was looked at last."""

    def __post_init__(self) -> None:
        self.link_bytes_s = self.traffic.env.transfers.links.capacity.copy()
        self.draws = [stream(self.seed, f"fleet, place {i}") for i in range(len(self.replicas.members))]
        for i, state in enumerate(self.replicas.state):
            if state != UP:
                freeze(self.traffic.cluster, self.replicas.members[i].ranks)
            if self.config.failures.mtbf_s is not None:
                self._fail_later(i, 0.0)
            if self.config.stragglers.mean_s is not None:
                self._falter_later(i, 0.0)
        for one in self.config.events:
            self.agenda.at(one.at_s, self._given(one.what, one.replica, one.factor))

    def start(self, i: int, now_s: float) -> None:
        """Begin a cold start, where the replica is off."""
        if self.replicas.state[i] != OFF:
            return
        self.agenda.begin_life(i)
        self.replicas.change(now_s, i, STARTING)
        ready_s = now_s + self.cold_start_s[self.replicas.members[i].pool]
        self.agenda.at(ready_s, self.agenda.in_life(i, self._ready))

    def _ready(self, i: int, now_s: float) -> None:
        ranks = self.replicas.members[i].ranks
        self.traffic.send_again(i, now_s)
        here = slice(ranks.start, ranks.stop)
        self.traffic.cluster.replicas[here].frozen = 0
        if self.traffic.has_roles or self.config.migration is not None:
            self.traffic.env.transfers.links.capacity[here] = self.link_bytes_s[here]
        self.replicas.change(now_s, i, UP)

    def drain(self, i: int, now_s: float) -> None:
        """Let a replica finish what it has and leave; one that is starting leaves at once."""
        if self.replicas.state[i] == STARTING:
            self.agenda.begin_life(i)
            self.replicas.change(now_s, i, OFF)
        elif self.replicas.state[i] == UP:
            self.replicas.change(now_s, i, DRAINING)
            self.notice_drained(now_s)

    def notice_drained(self, now_s: float) -> None:
        """Replicas that have finished what they had left when their last batch ended."""
        cluster = self.traffic.cluster
        for i in np.flatnonzero(self.replicas.state == DRAINING).tolist():
            ranks = self.replicas.members[i].ranks
            here = cluster.replicas[ranks.start : ranks.stop]
            # KV that it holds for others, or that is on its way here, is waited for, too.
            if not any(here[name].any() for name in ("num_outstanding", "num_coming", "num_held")):
                ended = float(cluster.stage_free_s[ranks.start : ranks.stop].max())
                self.agenda.begin_life(i)
                self.replicas.change(min(max(self.replicas.since[i], ended), now_s), i, OFF)
                freeze(cluster, ranks)

    def fail(self, i: int, now_s: float, repair_s: float | None = None) -> None:
        """A replica dies, and is repaired after `repair_s` if given. It is noticed after a while; until then requests
        go on being sent there."""
        state, failures = int(self.replicas.state[i]), self.config.failures
        if state in (OFF, DOWN):
            return
        self.agenda.begin_life(i)
        self.failures += 1
        if self.failures % (IN_VAIN * len(self.replicas.members)) == 0:
            self._check_progress(now_s)
        freeze(self.traffic.cluster, self.replicas.members[i].ranks)
        cut_link(self.traffic.env, self.replicas.members[i].ranks, now_s)
        self.replicas.change(now_s, i, DOWN)
        if state == UP:
            self.replicas.dead.add(i)
        self.agenda.at(now_s + failures.detect_s, self.agenda.in_life(i, self._noticed))
        if repair_s is not None:
            self.agenda.at(now_s + failures.detect_s + repair_s, self.agenda.in_life(i, self.repair))

    def _check_progress(self, now_s: float) -> None:
        """Requests wait, and replicas die before any of them gets a token, or before any ends where what it had is
        lost: so it would go on for ever."""
        requests, keeps = self.traffic.cluster.requests, self.config.failures.keeps_tokens
        ended = IS_ENDED[requests.status]
        progress = float(np.fmax.reduce(requests.last_token_s, initial=0.0) if keeps else ended.sum())
        if progress == self.progress and (~ended & (requests.arrival_s <= now_s)).any():
            raise ConfigError(
                f"{self.failures:,} failures until {now_s:.0f} s, and "
                f"{'requests get no tokens' if keeps else 'no request ends'} any more: replicas die before they can "
                "serve.",
                where="fleet.failures.mtbf_s",
                fix="Give longer times between failures.",
            )
        self.progress = progress

    def _noticed(self, i: int, now_s: float) -> None:
        """The death of a replica is noticed: its requests are sent again, and another one starts in its stead."""
        self.replicas.dead.discard(i)
        self.traffic.send_again(i, now_s)
        self.has_room(self.replicas.members[i].pool, now_s)

    def repair(self, i: int, now_s: float) -> None:
        """The place of a dead replica can be used again."""
        if self.replicas.state[i] == DOWN and i not in self.replicas.dead:
            self.replicas.change(now_s, i, OFF)
            self.has_room(self.replicas.members[i].pool, now_s)

    def slow(self, i: int, factor: float) -> None:
        """From the next iteration on a replica takes `factor` times as long."""
        ranks = self.replicas.members[i].ranks
        here = self.traffic.cluster.replicas[ranks.start : ranks.stop]
        here.straggling = factor - 1.0
        here.slowdown = (1.0 + here.straggling) * (1.0 + here.adapting) - 1.0

    def _given(self, what: str, i: int, factor: float) -> Callable[[float], None]:
        if i >= len(self.replicas.members):
            raise ConfigError(
                f"there is no replica {i}.", where="fleet.events", fix=f"Use 0 to {len(self.replicas.members) - 1}."
            )
        failures = self.config.failures
        repair_s = None if failures.mtbf_s is None else float(self.draws[i].exponential(failures.mttr_s))
        acts: dict[str, Callable[[float], None]] = {
            "start": lambda now_s: self.start(i, now_s), "drain": lambda now_s: self.drain(i, now_s),
            "fail": lambda now_s: self.fail(i, now_s, repair_s), "repair": lambda now_s: self.repair(i, now_s),
            "slow": lambda now_s: self.slow(i, factor),
        }  # fmt: skip
        return acts[what]

    # Trouble at random. It comes to a place, whoever is there: so every controller meets the same.

    def _fail_later(self, i: int, after_s: float) -> None:
        failures, random = self.config.failures, self.draws[i]
        assert failures.mtbf_s is not None
        at_s = after_s + float(random.exponential(failures.mtbf_s))
        repair_s = float(random.exponential(failures.mttr_s))

        def happen(now_s: float) -> None:
            if self.replicas.state[i] in (UP, DRAINING):
                self.fail(i, now_s, repair_s)
            self._fail_later(i, now_s)

        self.agenda.at(at_s, happen)

    def _falter_later(self, i: int, after_s: float) -> None:
        stragglers, random = self.config.stragglers, self.draws[i]
        assert stragglers.mean_s is not None
        begin_s = after_s + float(random.exponential(stragglers.mean_s))
        end_s = begin_s + float(random.exponential(stragglers.duration_s))

        def recover(now_s: float) -> None:
            self.slow(i, 1.0)
            self._falter_later(i, now_s)

        self.agenda.at(begin_s, lambda _: self.slow(i, stragglers.factor))
        self.agenda.at(end_s, recover)
