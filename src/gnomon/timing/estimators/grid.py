"""The default estimator: multilinear interpolation of time over bound, on logarithmic axes.

The ratio of a kernel's time to its roofline changes slowly where the time itself spans decades, so a straight line
between neighbours is nearly exact, and holding the ratio beyond the last point extrapolates by the roofline's shape.

Measurements need not fill a grid. They are laid on the grid of all values that occur, and each hole is filled from its
neighbours (see `holes`).
"""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.timing.estimators.holes import filled
from gnomon.timing.estimators.interface import ESTIMATORS, Bound, Formula

Cells = NDArray[np.intp]

MAX_CELLS = 4_000_000


@ESTIMATORS.register("grid")
class Grid:
    """Interpolates `log(seconds / bound)` between measured points; beyond them the ratio stays at the edge's."""

    def __init__(self, bound: Bound | None = None) -> None:
        self._bound = bound
        self._formula: Formula = lambda x: np.ones(len(x))
        self._axes: list[Floats] = []
        self._values: Floats = np.empty(0)

    def fit(self, x: Floats, y: Floats) -> Grid:
        """Lay the points on a grid; repeated points count with their median."""
        levels, cells = zip(*(np.unique(column, return_inverse=True) for column in x.T), strict=True)
        shape = tuple(level.size for level in levels)
        if np.prod(np.array(shape, dtype=float)) > MAX_CELLS:
            raise DataError(
                f"{len(y)} points spread over a grid of {' x '.join(map(str, shape))}.",
                fix="Measure on common values of each size, or use another estimator (timing.estimator).",
            )
        self._axes = [np.log1p(level) for level in levels]
        if self._bound is not None:
            self._formula = self._bound.fitted(x, y)
        ratio = np.log(y) - np.log(self._formula(x))
        self._values = filled(_laid_out(np.stack(cells), ratio, shape), self._axes)
        return self

    def predict(self, x: Floats) -> Floats:
        """Seconds at each point: the weighted corners of its cell."""
        lower, upper, weight = zip(
            *(_cell(axis, np.log1p(column)) for axis, column in zip(self._axes, x.T, strict=True)), strict=True
        )
        total = np.zeros(len(x))
        for corner in product((False, True), repeat=len(self._axes)):
            at = tuple(u if high else low for high, low, u in zip(corner, lower, upper, strict=True))
            share = prod(w if high else 1.0 - w for high, w in zip(corner, weight, strict=True))
            total += share * self._values[at]
        return np.exp(total) * self._formula(x)


def _laid_out(cells: Cells, values: Floats, shape: tuple[int, ...]) -> Floats:
    """The values on a grid, NaN where there is none, the median where there are several."""
    flat = np.ravel_multi_index(tuple(cells), shape)
    order = np.lexsort((values, flat))
    flat, values = flat[order], values[order]
    starts = np.flatnonzero(np.r_[True, flat[1:] != flat[:-1]])
    counts = np.diff(np.r_[starts, flat.size])
    middle = 0.5 * (values[starts + (counts - 1) // 2] + values[starts + counts // 2])
    grid = np.full(shape, np.nan)
    grid.flat[flat[starts]] = middle
    return grid


def _cell(axis: Floats, at: Floats) -> tuple[Cells, Cells, Floats]:
    """The levels around each value, and the fraction of the way from the lower to the upper; clamped to the ends."""
    if axis.size == 1:
        zeros = np.zeros(at.size, dtype=np.intp)
        return zeros, zeros, np.zeros(at.size)
    lower = np.minimum(np.maximum(np.searchsorted(axis, at, side="right") - 1, 0), axis.size - 2)
    fraction = (at - axis[lower]) / (axis[lower + 1] - axis[lower])
    return lower, lower + 1, np.minimum(np.maximum(fraction, 0.0), 1.0)
