"""Whether the sources that are at hand agree about some iterations, as far as their stated errors go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gnomon.timing.breakdown import Batch, expected_s
from gnomon.timing.timer import Timer


@dataclass(frozen=True)
class Estimate:
    """What one source says of some iterations."""

    source: str
    seconds: float
    error: float
    """Relative, of the kernels, as the source states it."""

    def contradicts(self, other: Estimate) -> bool:
        """Whether the two are further apart than both errors together."""
        if not self.seconds or not other.seconds:
            return False
        return abs(math.log(self.seconds / other.seconds)) > math.log1p(self.error) + math.log1p(other.error)


def estimate(timer: Timer, iterations: Sequence[tuple[Batch, int]]) -> Estimate:
    """Seconds of all `iterations` (each so many times), and the error to expect of them."""
    each = [(count, *expected_s(timer, batch)) for batch, count in iterations]
    seconds = sum(count * one for count, one, _ in each)
    wrong_s = sum(count * one for count, _, one in each)
    return Estimate(timer.source.name, seconds, wrong_s / seconds if seconds else 0.0)


def in_words(used: Estimate, other: Estimate) -> str:
    """A sentence on two sources that contradict each other."""
    return (
        f"{other.source} has these iterations take {other.seconds / used.seconds:.2f} times as long as {used.source}; "
        "what their kernels were found to be off by does not explain that. One of them is wrong here: "
        f"look at both with `gnomon time --source {used.source} --source {other.source}`."
    )
