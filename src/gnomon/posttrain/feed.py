"""Prompts on their way to rollout: instances get whole groups as they have room, the least loaded first."""

from __future__ import annotations

from collections import deque

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.posttrain.rollout import Rollouts


class PromptQueue:
    """Groups that no instance has yet, in the order in which they are handed out."""

    def __init__(self, rollouts: Rollouts, ids: Ints, *, longest_first: bool) -> None:
        """`ids` are the sequences to generate; only a clairvoyant can take the longest groups first."""
        sequences = rollouts.sequences
        self._rollouts = rollouts
        groups, first = np.unique(sequences.group[ids], return_index=True)
        parts = np.split(ids, first[1:])
        order = np.arange(len(groups))
        if longest_first:
            left = sequences.response - sequences.generated
            order = np.argsort([-int(left[part].sum()) for part in parts], kind="stable")
        self._waiting = deque(parts[i] for i in order)
        self.num_sequences = len(ids)
        """Sequences that no instance has yet."""

    def __len__(self) -> int:
        return len(self._waiting)

    def feed(self, instances: list[int], cap: int, now: float) -> None:
        """Hand out groups until every instance has `cap` sequences to run; everything before `now` has happened."""
        load = self._rollouts.unfinished[instances].copy()
        parts, targets = [], []
        while self._waiting and load.min(initial=cap) < cap:
            least = int(load.argmin())
            part = self._waiting.popleft()
            load[least] += len(part)
            self.num_sequences -= len(part)
            parts.append(part)
            targets.append(np.full(len(part), instances[least]))
        if parts:
            self._rollouts.submit(np.concatenate(parts), np.concatenate(targets), now)

    def clear(self) -> None:
        """Nobody will generate the rest in this step."""
        self._waiting.clear()
        self.num_sequences = 0
