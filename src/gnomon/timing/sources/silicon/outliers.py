"""Points of a table that cannot be right: a kernel's time does not fall when its work grows.

Along one size (rows of a product, tokens of a layer), a point is left out where larger sizes nearby take a good deal
less, or where it alone lies far below both of its neighbours. What is left out is counted and named; the estimator
then interpolates over the gap.
"""

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats

FALL = 1.3
"""How much longer than larger sizes a point may take. Tiles and waves of real kernels stay below it."""
REACH = 5
"""How many larger sizes are looked at; the second smallest of their times counts, so that one odd point says
nothing."""


def is_plausible(sizes: Floats, seconds: Floats) -> NDArray[np.bool_]:
    """For points sorted by size, whether each may stay."""
    count = len(seconds)
    keep = np.ones(count, dtype=bool)
    if count < 4:
        return keep
    ahead = np.full((REACH, count), np.inf)
    for step in range(1, REACH + 1):
        if step < count:
            ahead[step - 1, : count - step] = seconds[step:]
    second = np.sort(ahead, axis=0)[1]
    keep &= seconds <= FALL * second
    left = np.flatnonzero(keep)
    rest = seconds[left]
    dips = rest[1:-1] * FALL < np.minimum(rest[:-2], rest[2:])
    keep[left[1:-1][dips]] = False
    return keep
