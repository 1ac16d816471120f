"""Where to measure: a coarse grid first, then the points where interpolation between its neighbours is worst."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

Point = tuple[int, ...]
Measure = Callable[[Point], float]


def refine(
    measure: Measure, known: Mapping[Point, float], *, most_points: int, tolerance: float = 0.02,
    smallest_step: Callable[[int], int] = lambda size: 1 << max(3, size.bit_length() - 5),
) -> dict[Point, float]:  # fmt: skip
    """Measure up to `most_points` points in all, halving the gap where the interpolation is least to be trusted.

    The doubt about a gap is how badly each of its ends is predicted from that end's own neighbours on the line.
    Gaps narrower than twice `smallest_step(size)` are left alone.
    """
    times = dict(known)
    tried: set[Point] = set()
    while len(times) < most_points:
        candidates = [
            (doubt, middle)
            for doubt, middle in _gaps(times, smallest_step)
            if doubt > tolerance and middle not in tried
        ]
        if not candidates:
            break
        _, middle = max(candidates)
        tried.add(middle)
        times[middle] = measure(middle)
    return times


def leave_one_out(times: Mapping[Point, float]) -> dict[Point, float]:
    """Relative error of each inner point, predicted linearly from its two neighbours along each line it is on."""
    errors: dict[Point, float] = {}
    for line, axis in _lines(times):
        for before, at, after in zip(line, line[1:], line[2:], strict=False):
            predicted = _between(before[axis], times[before], after[axis], times[after], at[axis])
            errors[at] = max(errors.get(at, 0.0), abs(predicted - times[at]) / times[at])
    return errors


def interpolate(times: Mapping[Point, float], point: Point) -> float | None:
    """Linear interpolation on the one line through `point`'s neighbours (one dimension only); None outside."""
    below = [p for p in times if p[0] <= point[0]]
    above = [p for p in times if p[0] >= point[0]]
    if not below or not above:
        return None
    low, high = max(below), min(above)
    return _between(low[0], times[low], high[0], times[high], point[0])


def _between(x0: int, y0: float, x1: int, y1: float, x: int) -> float:
    return y0 if x0 == x1 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _lines(times: Mapping[Point, float]) -> Iterable[tuple[Sequence[Point], int]]:
    """Points that differ along one axis only, in order, with that axis."""
    for axis in range(len(next(iter(times), ()))):
        lines: dict[Point, list[Point]] = {}
        for point in times:
            lines.setdefault(point[:axis] + point[axis + 1 :], []).append(point)
        for line in lines.values():
            yield sorted(line), axis


def _gaps(times: Mapping[Point, float], smallest_step: Callable[[int], int]) -> Iterable[tuple[float, Point]]:
    doubts = leave_one_out(times)
    for line, axis in _lines(times):
        for low, high in pairwise(line):
            step = smallest_step(low[axis])
            middle = low[axis] + round((high[axis] - low[axis]) / 2 / step) * step
            if low[axis] < middle < high[axis] and high[axis] - low[axis] >= 2 * step:
                yield max(doubts.get(low, 0.0), doubts.get(high, 0.0)), (*low[:axis], middle, *low[axis + 1 :])
