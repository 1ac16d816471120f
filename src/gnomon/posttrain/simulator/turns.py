"""Rollouts in turns: a sequence stops for a tool or an environment, and goes on with what comes back.

Every turn is a request of its own to the engine. While a call runs the sequence keeps its place in the instance, but
not its KV blocks; they are found again afterwards, or the sequence is prefilled again.
"""

import heapq
import math

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.core.streams import stream
from gnomon.posttrain.costs import reward_copies, reward_s
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.posttrain.simulator.rollout import Rollouts, Sequences


def rollouts_of(config: Posttrain, num_instances: int, sequences: Sequences, step: int) -> Rollouts:
    """Generation of one step, with turns where there are any."""
    environment = config.environment
    plain = environment.turns == 1 and environment.reward_s == 0.0 and environment.reward_model is None
    return Rollouts(config, num_instances, sequences) if plain else TurnRollouts(config, num_instances, sequences, step)


class TurnRollouts(Rollouts):
    """Sequences whose turns are the engine's requests: request `sequence x turns + turn`."""

    def __init__(self, config: Posttrain, num_instances: int, sequences: Sequences, step: int) -> None:
        self._environment, self._interval_s = config.environment, config.transitions.check_interval_s
        count, most = len(sequences), config.environment.turns
        self._turns = np.minimum(most, sequences.response)
        turn, whole = np.arange(most), sequences.response[:, None]
        self._start = np.minimum(whole * turn // self._turns[:, None], whole)
        ends = np.minimum(whole * (turn + 1) // self._turns[:, None], whole)
        size = np.maximum(1, ends - self._start)
        done = np.clip(sequences.generated[:, None] - self._start, 0, size)
        self._turn = np.minimum((sequences.generated[:, None] >= ends).sum(axis=1), self._turns - 1)
        prompt = sequences.prompt[:, None] + self._start + turn * config.environment.tool_tokens
        kept = None
        if sequences.processed is not None:
            kept = np.where((done > 0) & (done < size), prompt + done - 1, 0).ravel()
        rows = (np.repeat(sequences.group, most), prompt.ravel(), size.ravel(), done.ravel())
        super().__init__(config, num_instances, Sequences(*rows, kept))
        self._each, self.sequences = self.sequences, sequences
        self._most, self._size = most, size
        # Drawn beforehand: what a call takes does not depend on when it is made.
        environment, rng = config.environment, stream(config.seed, "tools", step)
        mean_s, shape = environment.tool_s, environment.tool_shape
        tries = rng.geometric(1.0 - environment.failure, (count, most))
        self._call_s = (tries - 1) * environment.timeout_s + mean_s / shape * rng.standard_gamma(shape, tries.shape)
        self._reward_s = environment.reward_s * rng.exponential(1.0, count)
        self._ends_s = np.full(count, np.inf)
        self._seat = np.full(count, -1, np.int64)
        self._is_live, self._calls = np.zeros(count, bool), [0.0] * (config.environment.concurrency or 0)
        self._config, self._judges = config, [0.0] * reward_copies(config)
        self._returns: list[tuple[float, int]] = []
        self._now, self._seen = 0.0, -1

    def submit(self, ids: Ints, instances: Ints, now: float) -> None:
        """Queue the present turn of each sequence; those whose tool still runs come by themselves."""
        self._seat[ids] = instances
        calling = {sequence for _, sequence in self._returns}
        is_here = np.array([one not in calling for one in ids.tolist()], bool)
        self._is_live[ids[is_here]] = True
        self._now = max(self._now, now)
        super().submit(ids[is_here] * self._most + self._turn[ids[is_here]], instances[is_here], now)

    def advance(self, until: float) -> None:
        """Let instances and tools run up to `until`, looking every check interval for turns that have ended."""
        while True:
            busy_s = self._now + self._interval_s if self._is_live.any() else math.inf
            back_s = self._returns[0][0] if self._returns else math.inf
            at = min(until, busy_s, max(back_s, self._now))
            if at == math.inf:
                break
            super().advance(at)
            self._now = at
            self._end_turns()
            while self._returns and self._returns[0][0] <= at:  # Those whose tool has answered go on.
                _, one = heapq.heappop(self._returns)
                self._turn[one] += 1
                request = one * self._most + int(self._turn[one])
                if self._environment.keep_kv:
                    kept = int(self._each.prompt[request]) - self._environment.tool_tokens - 1
                    self._requests["processed"][request] = max(0, kept)
                if self._seat[one] >= 0:  # Else it is on its way between two instances, and is submitted there.
                    self._is_live[one] = True
                    super().submit(np.array([request]), self._seat[[one]], at)
            if at >= until:
                break

    def _end_turns(self) -> None:
        if super().num_finished == self._seen:
            return
        self._seen = super().num_finished
        live = np.flatnonzero(self._is_live)
        ends = super().finished_s[live * self._most + self._turn[live]]
        for i in np.argsort(ends, kind="stable"):
            if ends[i] == math.inf:
                break
            one, end_s = int(live[i]), float(ends[i])
            self._is_live[one] = False
            if self._turn[one] + 1 == self._turns[one]:
                end_s += float(self._reward_s[one])
                if self._judges:
                    tokens = self.sequences.prompt[one] + self.sequences.response[one]
                    end_s = _first_free(self._judges, end_s, reward_s(self._config, int(tokens)))
                self._ends_s[one] = end_s
            else:
                seconds = float(self._call_s[one, self._turn[one]])
                back_s = _first_free(self._calls, end_s, seconds) if self._calls else end_s + seconds
                heapq.heappush(self._returns, (back_s, one))

    def withdraw(self, instance: int, now: float) -> tuple[Ints, float]:
        """Its sequences, with those that wait for a tool."""
        requests, stop = super().withdraw(instance, now)
        self._end_turns()
        calling = np.array([one for _, one in self._returns if self._seat[one] == instance], np.int64)
        ids = np.unique(np.concatenate([requests // self._most, calling]))
        self._is_live[ids] = False
        self._seat[ids] = -1
        return ids, stop

    @property
    def finished_s(self) -> Floats:
        """When each sequence had its reward; inf where it has not yet."""
        return self._ends_s

    @property
    def seats(self) -> Ints:
        """The instance that each sequence is or was last on; -1 where it has left."""
        return self._seat

    @property
    def num_finished(self) -> int:
        return int(np.isfinite(self._ends_s).sum())

    def generated(self, ids: Ints) -> Ints:
        """Tokens of the model so far, in all turns."""
        requests = ids * self._most + self._turn[ids]
        is_done = np.isfinite(super().finished_s[requests])
        here = np.where(is_done, self._size.ravel()[requests], super().generated(requests))
        return np.asarray(self._start[ids, self._turn[ids]] + here)

    @property
    def unfinished(self) -> Ints:
        """Sequences that each instance runs, has waiting, or has calling a tool."""
        load = super().unfinished.copy()
        np.add.at(load, [self._seat[one] for _, one in self._returns if self._seat[one] >= 0], 1)
        return load

    @property
    def next_event_s(self) -> float:
        """The next end of a batch or of a call."""
        return min(super().next_event_s, self._returns[0][0] if self._returns else math.inf)


def _first_free(places: list[float], at: float, seconds: float) -> float:
    """When what comes `at` is done: by the one that is free first of those with these ends."""
    end_s = max(at, heapq.heappop(places)) + seconds
    heapq.heappush(places, end_s)
    return end_s
