"""The default estimator: multilinear interpolation of time over bound, on logarithmic axes.

The ratio of a kernel's time to its roofline changes slowly where the time itself spans decades, so a straight line
between neighbours is nearly exact, and holding the ratio beyond the last point extrapolates by the roofline's shape.

Measurements need not fill a grid. They are laid on the grid of all values that occur, and each hole is filled from its
neighbours: single holes from crosses (a kernel's steps run along whole rows and columns, so the neighbours say which
step a cell is on), wider gaps along each dimension, trusting one the more the smoother the measurements are along it.
"""

from __future__ import annotations

from itertools import combinations, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
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
            fix = "Measure on common values of each size, or use another estimator (timing.estimator)."
            raise DataError(f"{len(y)} points spread over a grid of {' x '.join(map(str, shape))}.", fix=fix)
        self._axes = [np.log1p(level) for level in levels]
        if self._bound is not None:
            self._formula = self._bound.fitted(x, y)
        ratio = np.log(y) - np.log(self._formula(x))
        # The values on a grid, NaN where there is none, the median where there are several.
        flat = np.ravel_multi_index(tuple(np.stack(cells)), shape)
        order = np.lexsort((ratio, flat))
        flat, values = flat[order], ratio[order]
        starts = np.flatnonzero(np.r_[True, flat[1:] != flat[:-1]])
        counts = np.diff(np.r_[starts, flat.size])
        middle = 0.5 * (values[starts + (counts - 1) // 2] + values[starts + counts // 2])
        grid = np.full(shape, np.nan)
        grid.flat[flat[starts]] = middle
        self._values = filled(grid, self._axes)
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


def _cell(axis: Floats, at: Floats) -> tuple[Cells, Cells, Floats]:
    """The levels around each value, and the fraction of the way from the lower to the upper; clamped to the ends."""
    if axis.size == 1:
        zeros = np.zeros(at.size, dtype=np.intp)
        return zeros, zeros, np.zeros(at.size)
    lower = np.minimum(np.maximum(np.searchsorted(axis, at, side="right") - 1, 0), axis.size - 2)
    fraction = (at - axis[lower]) / (axis[lower + 1] - axis[lower])
    return lower, lower + 1, np.minimum(np.maximum(fraction, 0.0), 1.0)


REACH = 3
"""How far around a hole its rows and columns are consulted. Held-out error of attention on an A100 by reach 0, 1, 2,
3: prefill 2.7, 1.9, 1.7, 1.6 %, decode 2.2, 1.5, 1.1, 1.0 %."""
MIN_CROSSES = 3  # With fewer, interpolation along lines is better.
HOLES_AT_ONCE = 20_000


def filled(grid: Floats, axes: list[Floats]) -> Floats:
    """The grid with its holes (NaN) filled: between neighbours where there are some, else from the nearest."""
    grid = grid.copy()
    _fill_from_crosses(grid)
    roughness = [_roughness(grid, dimension, axes[dimension]) for dimension in range(grid.ndim)]
    while (holes := np.isnan(grid)).any():
        total, weights = np.zeros(grid.shape), np.zeros(grid.shape)
        for dimension, axis in enumerate(axes):
            value, gap = _between(grid, dimension, axis)
            trust = np.where(np.isnan(value), 0.0, 1.0 / (roughness[dimension] * gap) ** 2)
            weights += trust
            total += trust * np.nan_to_num(value)
        if not (weights[holes] > 0).any():
            _extend(grid, int(np.argmin(roughness)))
            continue
        grid[holes] = np.where(weights > 0, total / np.maximum(weights, 1e-300), np.nan)[holes]
    return grid


def _fill_from_crosses(grid: Floats) -> None:
    """Fill single holes (in place) by what their rows and columns agree on.

    A kernel's steps (tiles of the KV cache, waves of the batch) run along whole rows and columns. So a cell is its
    neighbour in the row, times what the same move does in a neighbouring row: a[i,j'] + a[i',j] - a[i',j'] in
    logarithms. The median over the neighbours at up to REACH steps tells steps from noise.
    """
    if grid.ndim < 2 or not np.isnan(grid).any():
        return
    padded = np.pad(grid, REACH, constant_values=np.nan)
    holes = np.argwhere(np.isnan(grid))
    for part in np.array_split(holes, len(holes) // HOLES_AT_ONCE + 1):
        median, counts = _median_of_crosses(padded, part + REACH)
        is_supported = counts >= MIN_CROSSES
        grid[tuple(part[is_supported].T)] = median[is_supported]


def _median_of_crosses(padded: Floats, cells: Cells) -> tuple[Floats, Cells]:
    strides = [int(np.prod(padded.shape[dimension + 1 :])) for dimension in range(padded.ndim)]
    at, values = np.ravel_multi_index(tuple(cells.T), padded.shape), padded.ravel()
    shifts = [step for step in range(-REACH, REACH + 1) if step]
    candidates = [
        values[at + along * first] + values[at + across * second] - values[at + along * first + across * second]
        for first, second in combinations(strides, 2)
        for along, across in product(shifts, repeat=2)
    ]
    crosses = np.sort(np.stack(candidates, axis=1), axis=1)  # NaN go last.
    counts = np.count_nonzero(~np.isnan(crosses), axis=1)
    rows = np.arange(len(cells))
    return 0.5 * (crosses[rows, (counts - 1) // 2] + crosses[rows, counts // 2]), counts


def _roughness(grid: Floats, dimension: int, axis: Floats) -> float:
    """How far a point typically lies off the line between its neighbours along one dimension."""
    if axis.size < 3:
        return 1.0
    lines = np.moveaxis(grid, dimension, -1)
    share = (axis[1:-1] - axis[:-2]) / (axis[2:] - axis[:-2])
    off = np.abs(lines[..., 1:-1] - (lines[..., :-2] + share * (lines[..., 2:] - lines[..., :-2])))
    known = off[~np.isnan(off)]
    return float(np.mean(known)) + 1e-6 if known.size else 1.0


def _between(grid: Floats, dimension: int, axis: Floats) -> tuple[Floats, Floats]:
    """For every cell the value between its known neighbours along one dimension, and how many steps apart they are."""
    lines = np.moveaxis(grid, dimension, -1)
    known = ~np.isnan(lines)
    index = np.broadcast_to(np.arange(axis.size), lines.shape)
    before = np.maximum.accumulate(np.where(known, index, -1), axis=-1)
    after = np.minimum.accumulate(np.where(known, index, axis.size)[..., ::-1], axis=-1)[..., ::-1]
    enclosed = (before >= 0) & (after < axis.size)
    low, high = np.where(enclosed, before, 0), np.where(enclosed, after, 0)
    gap = axis[high] - axis[low]
    share = np.where(gap > 0, (axis[index] - axis[low]) / np.where(gap > 0, gap, 1.0), 0.0)
    at_low = np.take_along_axis(lines, low, -1)
    value = at_low + share * (np.take_along_axis(lines, high, -1) - at_low)
    value = np.where(enclosed, value, np.nan)
    steps = np.maximum(high - low, 1).astype(float)
    return np.moveaxis(value, -1, dimension), np.moveaxis(steps, -1, dimension)


def _extend(grid: Floats, first: int) -> None:
    """Give holes outside the measured region the nearest value along one dimension (in place)."""
    for dimension in (first, *(d for d in range(grid.ndim) if d != first)):
        lines = np.moveaxis(grid, dimension, -1)
        known = ~np.isnan(lines)
        index = np.broadcast_to(np.arange(lines.shape[-1]), lines.shape)
        before = np.maximum.accumulate(np.where(known, index, -1), axis=-1)
        after = np.minimum.accumulate(np.where(known, index, lines.shape[-1])[..., ::-1], axis=-1)[..., ::-1]
        nearest = np.where(before >= 0, before, np.where(after < lines.shape[-1], after, -1))
        new = np.where(known | (nearest < 0), lines, np.take_along_axis(lines, np.maximum(nearest, 0), -1))
        if np.isnan(new).sum() < np.isnan(lines).sum():
            lines[...] = new
            return
    raise AssertionError("a grid without a single value")
