"""Groups of sequences from step to step: new ones, those carried over, and those left over."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Ints
from gnomon.posttrain.simulator.rollout import Sequences


@dataclass(eq=False)
class Prompts:
    """Groups that may be generated in a step: those carried over first, then new ones."""

    prompt: Ints
    """[group, sample]"""
    response: Ints
    generated: Ints
    """Tokens that earlier steps have produced."""
    age: Ints
    """[group]: weight updates since the first token."""
    num_carried: int = 0

    @cached_property
    def num_complete(self) -> int:
        """Of those carried over, groups that need only be trained."""
        return int((self.generated >= self.response)[: self.num_carried].all(axis=1).sum())

    def sequences(self, count: int, *, keep_kv: bool = False) -> Sequences:
        """Of the first `count` groups; with `keep_kv` those that have begun go on with their KV cache."""
        prompt, response = self.prompt[:count].ravel(), self.response[:count].ravel()
        generated = self.generated[:count].ravel()
        kept = np.where((generated > 0) & (generated < response), prompt + generated - 1, 0) if keep_kv else None
        return Sequences(np.repeat(np.arange(count), self.prompt.shape[1]), prompt, response, generated, kept)

    def left_over(self, is_trained: NDArray[np.bool_], produced: Ints, *, keep_tokens: bool) -> Prompts:
        """Groups for later steps: submitted ones that were not trained, and carried ones that were not submitted.

        `produced` are the tokens of the submitted groups so far, which only count where they are kept.
        """
        submitted = len(is_trained)
        again = np.flatnonzero(~is_trained)
        waiting = np.arange(submitted, max(submitted, self.num_carried))
        kept = produced[again] if keep_tokens else np.zeros_like(produced[again])
        rows = np.concatenate([again, waiting])
        generated = np.concatenate([kept, self.generated[waiting]])
        age = np.where(generated.sum(axis=1) > 0, self.age[rows] + 1, 0)
        return Prompts(self.prompt[rows], self.response[rows], generated, age, len(rows))

    def without_stale(self, max_lag: int) -> tuple[Prompts, Prompts]:
        """Carried groups that may still be trained, and those that are too old."""
        is_old = self.age > max_lag
        return self._rows(~is_old), self._rows(is_old)

    def _rows(self, chosen: NDArray[np.bool_]) -> Prompts:
        rows = np.flatnonzero(chosen)
        return Prompts(self.prompt[rows], self.response[rows], self.generated[rows], self.age[rows], len(rows))
