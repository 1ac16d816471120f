"""Shapes between measured shapes: a GEMM or attention whose exact shape a bundle lacks.

Nearby shapes have nearly the same ratio to their rooflines at the same tokens (or chunk, KV ...). So each of the
nearest measured shapes says what ratio it has, and the wanted shape takes the mean of them times its own roofline.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.timing.operators import Decode, Gemm, Mixed, Operator, Prefill, Work
from gnomon.timing.sources.profile.samples import Bundle, Key, Samples, shape_keys

NUM_NEIGHBOURS = 4
FARTHEST = 2.0  # Shapes more than this factor away in any dimension say nothing.

BETWEEN_ERROR = 0.03
"""Median error of a shape that is left out and made from its neighbours: see `benchmarks/between_measurements.py`."""

Seconds = Callable[..., Floats]  # Seconds of an operator at its sizes, by formula.


def from_neighbours(bundle: Bundle, operator: Operator, formula: Seconds) -> Samples | None:
    """Samples for a shape that was not measured, made from the nearest ones; None where there are none near."""
    if not isinstance(operator.work, Gemm | Prefill | Decode | Mixed):
        return None
    (kind, *wanted), *_ = shape_keys(operator)
    shapes = [key for key in bundle.samples if key[0] == kind and len(key) == len(wanted) + 1]
    if not shapes:
        return None
    distance = np.abs(np.log2(np.array([key[1:] for key in shapes], dtype=float) / np.array(wanted, dtype=float)))
    is_near = distance.max(axis=1) <= np.log2(FARTHEST) + 1e-9
    if not isinstance(operator.work, Gemm):
        is_near &= distance[:, 2] == 0.0  # Another head dimension is another kernel.
    near = np.flatnonzero(is_near)
    near = near[np.argsort(distance[near].sum(axis=1), kind="stable")][:NUM_NEIGHBOURS]
    if near.size == 0:
        return None
    if distance[near[0]].max() == 0.0:
        return bundle.samples[shapes[near[0]]]
    weights = 1.0 / (distance[near] ** 2).sum(axis=1)
    return _blended(bundle, operator, formula, [shapes[i] for i in near], weights / weights.sum())


def _blended(bundle: Bundle, operator: Operator, formula: Seconds, shapes: list[Key], weights: Floats) -> Samples:
    """The mean of the neighbours' ratios at the sizes where all of them were measured."""
    found = [bundle.samples[shape] for shape in shapes]
    common = set(map(tuple, found[0].sizes))
    for other in found[1:]:
        shared = common & set(map(tuple, other.sizes))
        common = shared or common
    sizes = np.array(sorted(common))
    log_ratio = np.zeros(len(sizes))
    total = np.zeros(len(sizes))
    for shape, samples, weight in zip(shapes, found, weights, strict=True):
        index = {tuple(row): i for i, row in enumerate(samples.sizes)}
        at = np.array([index.get(tuple(row), -1) for row in sizes])
        known = at >= 0
        like = replace(operator, work=_shaped(operator.work, shape))
        measured = samples.seconds[at[known]]
        log_ratio[known] += weight * np.log(measured / formula(like, *sizes[known].T))
        total[known] += weight
    seconds = np.exp(log_ratio / total) * formula(operator, *sizes.T)
    return Samples(sizes, seconds, f"{bundle.where} (between measured shapes)", is_between=True)


def _shaped(work: Work, shape: Key) -> Work:
    _, *values = shape
    if isinstance(work, Gemm):
        return replace(work, n=int(values[0]), k=int(values[1]))
    assert isinstance(work, Prefill | Decode | Mixed)
    heads, kv_heads, dim = (int(value) for value in values)
    per_head = work.kv_bytes / (work.num_kv_heads * work.qk_dim)
    return replace(
        work, num_heads=heads, num_kv_heads=kv_heads, qk_dim=dim, v_dim=dim, kv_bytes=per_head * kv_heads * dim
    )
