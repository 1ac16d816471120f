"""The lives of replicas: they start cold, drain, die, are repaired, and become slow for a while."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gnomon.core.errors import ConfigError
from gnomon.core.streams import stream
from gnomon.serving.autoscaling.evacuation import cut_link, freeze
from gnomon.serving.autoscaling.events import FleetEvents
from gnomon.serving.autoscaling.replicas import DOWN, DRAINING, OFF, STARTING, UP, Replicas
from gnomon.serving.autoscaling.traffic import IS_ENDED, Traffic
from gnomon.serving.scenario.autoscaling import FailureConfig, FleetConfig, StragglerConfig

IN_VAIN = 50  # Failures of each replica between two looks at whether anything is served at all.
MOST_FAILURES = 20_000
"""Failures with requests at work that may be to come: each takes the simulator some ten milliseconds."""


@dataclass
class Troubles:
    """Failures and slow spells that come to a place at random, whoever is there: so every controller meets the same.
    They are drawn in order of time, as far as somebody has looked."""

    failures: FailureConfig
    stragglers: StragglerConfig
    random: np.random.Generator
    fails_s: float = math.inf
    """When the next failure comes; `repair_s` is how long its repair takes."""
    repair_s: float | None = None
    begins_s: float = math.inf
    """When the next slow spell begins; infinite during one."""
    ends_s: float = math.inf

    def __post_init__(self) -> None:
        self._draw_failure(0.0)
        self._draw_spell(0.0)

    @property
    def next_s(self) -> float:
        """When the next thing comes."""
        return min(self.fails_s, self.begins_s, self.ends_s)

    def pass_by(self, now_s: float) -> float | None:
        """Let pass what comes until now; returns how many times as long iterations take since, if that has changed."""
        factor = None
        while (at_s := self.next_s) <= now_s:
            if at_s == self.fails_s:
                self._draw_failure(at_s)
            elif at_s == self.begins_s:
                self.begins_s, factor = math.inf, self.stragglers.factor
            else:
                self._draw_spell(at_s)
                factor = 1.0
        return factor

    def time_to_repair(self) -> float | None:
        """Of a failure at a given time; None where nothing fails at random, and so nothing is repaired."""
        return None if self.failures.mtbf_s is None else float(self.random.exponential(self.failures.mttr_s))

    def _draw_failure(self, after_s: float) -> None:
        if self.failures.mtbf_s is not None:
            self.fails_s = after_s + float(self.random.exponential(self.failures.mtbf_s))
            self.repair_s = self.time_to_repair()

    def _draw_spell(self, after_s: float) -> None:
        if self.stragglers.mean_s is not None:
            self.begins_s = after_s + float(self.random.exponential(self.stragglers.mean_s))
            self.ends_s = self.begins_s + float(self.random.exponential(self.stragglers.duration_s))


@dataclass
class Lifecycle:
    """Starts, drains, loses, repairs and slows replicas; what follows later is put on the events."""

    config: FleetConfig
    replicas: Replicas
    traffic: Traffic
    events: FleetEvents
    seed: int
    cold_start_s: list[float]
    """[pool]: seconds from the start of a replica until it takes requests."""
    has_room: Callable[[int, float], None]
    """Called with a pool and the time when a replica may be missing, or can be started again."""
    failures: int = 0
    switches: int = 0
    """Replicas that began to serve in another pool than the one that they had left."""
    free: int = 0
    """Replicas that have left a pool just now."""
    moving: set[int] = field(default_factory=set)
    """Those that come from another pool and are not there yet."""
    interruptions: int = 0
    """Failures of replicas that had requests."""
    progress: int | None = None
    """Tokens that there were when that was looked at last; where they are lost, requests that had ended."""

    def __post_init__(self) -> None:
        self.link_bytes_s = self.traffic.env.transfers.links.capacity.copy()
        places = [stream(self.seed, f"fleet, place {i}") for i in range(len(self.replicas.members))]
        self.troubles = [Troubles(self.config.failures, self.config.stragglers, random) for random in places]
        for i, state in enumerate(self.replicas.state):
            if state == UP:
                self._watch(i)
            else:
                freeze(self.traffic.cluster, self.replicas.members[i].ranks)
        for one in self.config.events:
            self.events.at(one.at_s, self._given(one.what, one.replica, one.factor))

    def start(self, i: int, now_s: float) -> None:
        """Begin a cold start, where the replica is off."""
        if self.replicas.state[i] != OFF:
            return
        self.events.begin_life(i)
        self.replicas.change(now_s, i, STARTING)
        ready_s = now_s + self.cold_start_s[self.replicas.members[i].pool]
        if self.free:
            assert self.config.switch_s is not None
            self.free, self.switches, ready_s = self.free - 1, self.switches + 1, now_s + self.config.switch_s
            self.moving.add(i)
        self.events.at(ready_s, self.events.in_life(i, self._ready))

    def _ready(self, i: int, now_s: float) -> None:
        ranks = self.replicas.members[i].ranks
        self.moving.discard(i)
        self.traffic.send_again(i, now_s)
        here = slice(ranks.start, ranks.stop)
        self.traffic.cluster.replicas[here].frozen = 0
        if self.traffic.has_roles or self.config.migration is not None:
            self.traffic.env.transfers.links.capacity[here] = self.link_bytes_s[here]
        self.replicas.change(now_s, i, UP)
        self.troubles[i].pass_by(now_s)  # It is new: what came before met nobody.
        self._watch(i)

    def drain(self, i: int, now_s: float) -> None:
        """Let a replica finish what it has and leave; one that is starting leaves at once."""
        if self.replicas.state[i] == STARTING:
            self.events.begin_life(i)
            self.replicas.change(now_s, i, OFF)
            self.free += i in self.moving
            self.moving.discard(i)
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
                self.events.begin_life(i)
                self.replicas.change(min(max(self.replicas.since[i], ended), now_s), i, OFF)
                self.free += self.config.switch_s is not None
                freeze(cluster, ranks)

    def fail(self, i: int, now_s: float, repair_s: float | None = None) -> None:
        """A replica dies, and is repaired after `repair_s` if given. It is noticed after a while; until then requests
        go on being sent there."""
        state, failures = int(self.replicas.state[i]), self.config.failures
        if state in (OFF, DOWN):
            return
        self.events.begin_life(i)
        self.moving.discard(i)
        self.failures += 1
        ranks = self.replicas.members[i].ranks
        self.interruptions += bool(self.traffic.cluster.replicas.num_outstanding[ranks.start : ranks.stop].any())
        if self.failures % (IN_VAIN * len(self.replicas.members)) == 0:
            self._check_progress(now_s)
        freeze(self.traffic.cluster, ranks)
        cut_link(self.traffic.env, ranks, now_s)
        self.replicas.change(now_s, i, DOWN)
        if state == UP:
            self.replicas.dead.add(i)
        self.events.at(now_s + failures.detect_s, self.events.in_life(i, self._noticed))
        if repair_s is not None:
            self.events.at(now_s + failures.detect_s + repair_s, self.events.in_life(i, self.repair))

    def _check_progress(self, now_s: float) -> None:
        """Requests wait, and replicas die before they give tokens, or end requests where tokens are lost: so it would
        go on for ever, or nearly so."""
        requests, replicas = self.traffic.cluster.requests, self.traffic.cluster.replicas
        ended = IS_ENDED[requests.status]
        if self.config.failures.keeps_tokens:
            what, done, left = "tokens", int(replicas.num_produced.sum()), int(requests.output_tokens[~ended].sum())
        else:
            what, done, left = "requests", int(ended.sum()), int((~ended).sum())
        to_come = math.inf if done == self.progress else self.interruptions * left / max(done, 1)
        if to_come > MOST_FAILURES and (~ended & (requests.arrival_s <= now_s)).any():
            raise ConfigError(
                f"{self.failures:,} failures until {now_s:.0f} s gave {done:,} {what}, and {left:,} are missing: "
                "replicas die before they can serve.",
                where="fleet.failures.mtbf_s",
                fix="Give longer times between failures.",
            )
        self.progress = done

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
            fix = f"Use 0 to {len(self.replicas.members) - 1}."
            raise ConfigError(f"there is no replica {i}.", where="fleet.events", fix=fix)
        repair_s = self.troubles[i].time_to_repair()
        acts: dict[str, Callable[[float], None]] = {
            "start": lambda now_s: self.start(i, now_s), "drain": lambda now_s: self.drain(i, now_s),
            "fail": lambda now_s: self.fail(i, now_s, repair_s), "repair": lambda now_s: self.repair(i, now_s),
            "slow": lambda now_s: self.slow(i, factor),
        }  # fmt: skip
        return acts[what]

    def _watch(self, i: int) -> None:
        """Come back at the next trouble of a replica's place, in this life."""
        if (next_s := self.troubles[i].next_s) < math.inf:
            self.events.at(next_s, self.events.in_life(i, self._meet))

    def _meet(self, i: int, now_s: float) -> None:
        one = self.troubles[i]
        if one.fails_s <= now_s:
            self.fail(i, now_s, one.repair_s)
            return
        if (factor := one.pass_by(now_s)) is not None:
            self.slow(i, factor)
        self._watch(i)
