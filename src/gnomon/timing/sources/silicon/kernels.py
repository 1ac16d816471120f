"""Rows of a table as samples by shape, and how a shape is found among them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gnomon.catalog.nodes import Node
from gnomon.core.arrays import Floats
from gnomon.timing.operators import Operator, Work
from gnomon.timing.sources.profile.samples import Bundle, Key, Samples, shape_keys
from gnomon.timing.sources.profile.shapes import from_neighbours
from gnomon.timing.sources.roofline import Roofline
from gnomon.timing.sources.silicon.tables import Table, find_tables

MS = 1e-3
FALL = 1.3  # How much longer than larger sizes a point may take. Tiles and waves of real kernels stay below it.
REACH = 5
"""How many larger sizes are looked at; the second smallest of their times counts, so that one odd point says
nothing."""


@dataclass(frozen=True)
class Query:
    """What is asked for: a device's folder, an engine and its version."""

    system: str
    engine: str
    version: str
    kv_dtype: str
    roofline: Roofline
    expert_kernel: str = ""
    """Family of the experts' kernels, where it was chosen."""
    all_reduce: str = ""
    """Whose all-reduce runs beside the engine's own."""

    def tables(self, family: str, table: str) -> list[Table]:
        """Every file of a table, the best first."""
        return find_tables(self.system, family, table, self.engine, self.version)


@dataclass(frozen=True)
class Found:
    """The measurements that answer for an operator."""

    samples: Samples
    provenance: str
    """In words: "measured in vllm 0.24.0"."""
    left_out: tuple[float, ...] = ()
    """Sizes whose times cannot be right."""


@dataclass
class Kernels:
    """The measured shapes of one table."""

    bundle: Bundle
    left_out: dict[Key, tuple[float, ...]] = field(default_factory=dict)


def read_kernels(table: Table, frame: pl.DataFrame, kind: str, shape: Sequence[str], sizes: Sequence[str]) -> Kernels:
    """One entry per shape. Of several kernels measured at one point the fastest counts: engines choose it."""
    kernels = Kernels(Bundle(str(table.path)))
    columns = [*shape, *sizes]
    rows = frame.group_by(columns).agg(pl.col("latency").min()).sort(columns)
    if rows.is_empty():
        return kernels
    shapes = rows.select(shape).to_numpy().astype(np.int64)
    points = rows.select(sizes).to_numpy().astype(np.float64)
    seconds = rows["latency"].to_numpy() * MS
    starts = np.flatnonzero(np.r_[True, (shapes[1:] != shapes[:-1]).any(axis=1)])
    for start, end in zip(starts, np.r_[starts[1:], len(seconds)], strict=True):
        key: Key = (kind, *(int(value) for value in shapes[start]))
        at, times = points[start:end], seconds[start:end]
        if len(sizes) == 1:
            keep = is_plausible(at[:, 0], times)
            if not keep.all():
                kernels.left_out[key] = tuple(at[~keep, 0])
                at, times = at[keep], times[keep]
        kernels.bundle.samples[key] = Samples(at, times, str(table.path))
    return kernels


def is_plausible(sizes: Floats, seconds: Floats) -> NDArray[np.bool_]:
    """For points sorted by size, whether each may stay: a kernel's time does not fall when its work grows.

    A point is left out where larger sizes nearby take a good deal less, or where it alone lies far below both of its
    neighbours. What is left out is counted and named; the estimator then interpolates over the gap.
    """
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


def exact(kernels: Kernels, operator: Operator, table: Table, node: Node | None = None) -> Found | None:
    """The operator's own shape; a collective's depends on where its group lies on `node`."""
    for key in shape_keys(operator, node):
        if key in kernels.bundle.samples:
            return Found(kernels.bundle.samples[key], f"measured in {table.name}", kernels.left_out.get(key, ()))
    return None


def between(kernels: Kernels, operator: Operator, table: Table, roofline: Roofline) -> Found | None:
    """A shape made from the measured ones around it: their ratios to the roofline."""
    samples = from_neighbours(kernels.bundle, operator, roofline.smooth_s)
    return Found(samples, f"measured in {table.name}, between shapes") if samples else None


def scaled(samples: Samples, operator: Operator, measured_as: Work, roofline: Roofline) -> Samples:
    """Another shape's measurements, times the ratio of the two rooflines."""
    sizes = tuple(samples.sizes.T)
    other = roofline.seconds(replace(operator, work=measured_as, is_fused=False), *sizes)
    own = roofline.seconds(replace(operator, is_fused=False), *sizes)
    return Samples(samples.sizes, samples.seconds * own / other, samples.where, is_between=True)


def nearest(
    kernels: Kernels, operator: Operator, table: Table, roofline: Roofline, shaped: Callable[[Key], Work]
) -> Found | None:
    """The nearest measured shape at any distance, scaled by the roofline."""
    (kind, *wanted), *_ = shape_keys(operator)
    shapes = [key for key in kernels.bundle.samples if key[0] == kind and len(key) == len(wanted) + 1]
    if not shapes:
        return None
    distance = np.abs(np.log(np.array([key[1:] for key in shapes], float) / np.array(wanted, float))).sum(axis=1)
    key = shapes[int(np.argmin(distance))]
    samples = scaled(kernels.bundle.samples[key], operator, shaped(key), roofline)
    name = " x ".join(str(value) for value in key[1:])
    return Found(samples, f"measured in {table.name}, scaled from {name}", kernels.left_out.get(key, ()))


def less(samples: Samples, part: Floats) -> Samples:
    """What remains of each time without a part that is counted elsewhere; at least a tenth of it."""
    remaining = np.maximum(samples.seconds - part, 0.1 * samples.seconds)
    return replace(samples, seconds=remaining)
