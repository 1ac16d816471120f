"""How good a bundle's data are: noise, outliers, monotonicity, and how well its points predict each other."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from gnomon.measure.profiling import grid
from gnomon.measure.profiling.bundle import COLUMNS, Key

Rows = Mapping[str, Mapping[Key, tuple[float, float]]]

GROWING = {
    "gemm": ("m",), "attention": ("chunk", "kv", "decodes", "decode_kv"), "elementwise": ("tokens",),
    "moe": ("tokens",), "collective": ("bytes",),
}  # fmt: skip
"""Columns with which time should not fall."""
NOISY = 0.10
FALLING = 0.05


@dataclass(frozen=True)
class Quality:
    """One file of a bundle."""

    file: str
    rows: int
    spread_median: float
    spread_p95: float
    noisy: int
    """Rows whose repeats spread by more than 10 %."""
    falling: int
    """Steps to a larger size that takes over 5 % less time."""
    left_out_median: float
    """Error of predicting an inner point from its neighbours, each time twice as far apart as the bundle's."""
    left_out_mean: float


def assess(rows: Rows) -> list[Quality]:
    return [_assess(file, measured) for file, measured in rows.items() if measured and file in COLUMNS]


def without_noise(rows: Rows) -> dict[str, dict[Key, tuple[float, float]]]:
    """The rows whose repeats agree; the others are no measurements."""
    return {file: {key: row for key, row in measured.items() if row[1] <= NOISY} for file, measured in rows.items()}


def report(rows: Rows, held_out: Sequence[tuple[str, Key, float]]) -> dict[str, object]:
    errors = [error for _, _, error in held_out]
    worst = sorted(held_out, key=lambda one: -one[2])[:10]
    sums = additivity(rows)
    return {
        "files": [asdict(one) for one in assess(rows)],
        "mixed_over_sum": {"points": len(sums), "median": statistics.median(sums)} if sums else None,
        "held_out": {
            "points": len(errors),
            "median": statistics.median(errors) if errors else None,
            "mean": statistics.fmean(errors) if errors else None,
            "worst": [[file, list(key), round(error, 4)] for file, key, error in worst],
        },
    }


def additivity(rows: Rows) -> list[float]:
    """Time of a chunk and decodes in one call over the sum of both alone; 1.0 where they simply add up."""
    alone, ratios = rows.get("attention", {}), []
    for key, (seconds, _) in rows.get("mixed", {}).items():
        *shape, chunk, kv, decodes, decode_kv = key
        parts = [alone.get((*shape, chunk, kv, 0, 0)), alone.get((*shape, 0, 0, decodes, decode_kv))]
        if all(parts):
            ratios.append(seconds / sum(part[0] for part in parts if part))
    return ratios


def _assess(file: str, measured: Mapping[Key, tuple[float, float]]) -> Quality:
    spreads = sorted(spread for _, spread in measured.values())
    falling, errors = 0, []
    for curve in _curves(file, measured):
        points = sorted(curve)
        falling += sum(curve[b] < curve[a] * (1 - FALLING) for a, b in pairwise(points))
        errors += list(grid.leave_one_out(curve).values())
    return Quality(
        file=file, rows=len(measured), spread_median=statistics.median(spreads),
        spread_p95=spreads[int(0.95 * (len(spreads) - 1))], noisy=sum(spread > NOISY for spread in spreads),
        falling=falling, left_out_median=statistics.median(errors) if errors else 0.0,
        left_out_mean=statistics.fmean(errors) if errors else 0.0,
    )  # fmt: skip


def _curves(file: str, measured: Mapping[Key, tuple[float, float]]) -> Iterable[dict[grid.Point, float]]:
    """Rows that differ in one growing column only."""
    for column in GROWING.get(file, ()):
        at = COLUMNS[file].index(column)
        curves: dict[Key, dict[grid.Point, float]] = {}
        for key, (seconds, _) in measured.items():
            curves.setdefault(key[:at] + key[at + 1 :], {})[(key[at],)] = seconds
        yield from (curve for curve in curves.values() if len(curve) > 1)
