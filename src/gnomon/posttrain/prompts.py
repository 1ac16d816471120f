"""Groups of sequences from step to step: new ones, those carried over, and those left over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Ints
from gnomon.posttrain.rollout import Sequences


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

    def sequences(self, count: int) -> Sequences:
        """Of the first `count` groups."""
        return Sequences(
            np.repeat(np.arange(count), self.prompt.shape[1]),
            self.prompt[:count].ravel(),
            self.response[:count].ravel(),
            self.generated[:count].ravel(),
        )

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
