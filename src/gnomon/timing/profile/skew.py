"""What unequal KV lengths in one batch cost: between the batch at its mean length and at its longest.

    seconds = at_mean + alpha x (at_longest - at_mean)

`alpha` is fitted by least squares for each number of decodes and each eighth of the skew 1 - mean / longest. Batches
with a chunk of a prompt follow other values than decodes alone: they are kept apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnomon.timing.estimators.holes import filled
from gnomon.timing.operators import Floats, Operator
from gnomon.timing.profile.samples import Bundle, SkewSamples, shape_keys
from gnomon.timing.source import Source

NUM_BINS = 8


def skew_table(skew: SkewSamples, decodes: Floats, *, mixed: bool = False) -> Floats | None:
    """[decodes, 8]: alpha at the given numbers of decodes; None where such batches were not measured.

    `mixed` chooses batches with a chunk of a prompt instead of decodes alone. Between measured numbers of decodes the
    values are joined by straight lines over their logarithm.
    """
    wanted = (skew.chunk > 0) == mixed
    if not wanted.any():
        return None
    levels = np.unique(skew.decodes[wanted])
    bins = np.minimum((NUM_BINS * (1.0 - skew.mean_kv / skew.max_kv)).astype(int), NUM_BINS - 1)
    table = np.full((levels.size, NUM_BINS), np.nan)
    for row, level in enumerate(levels):
        for column in range(NUM_BINS):
            table[row, column] = _alpha(skew, wanted & (skew.decodes == level) & (bins == column))
    if np.isnan(table).all():
        return None
    table = filled(table, [np.log2(levels), np.arange(NUM_BINS, dtype=float)])
    at = np.log2(np.maximum(decodes, 1.0))
    return np.column_stack([np.interp(at, np.log2(levels), table[:, column]) for column in range(NUM_BINS)])


def _alpha(skew: SkewSamples, rows: NDArray[np.bool_]) -> float:
    """Least squares on relative errors, between the mean's time (0) and the longest's (1); NaN without rows."""
    scale = skew.skewed_s[rows]
    reach = (skew.at_max_s - skew.at_mean_s)[rows] / scale
    moved = (skew.skewed_s - skew.at_mean_s)[rows] / scale
    return float(np.clip(reach @ moved / (reach @ reach), 0.0, 1.0)) if (reach != 0).any() else np.nan


def skew_between(bundle: Bundle, source: Source, decode: Operator) -> SkewSamples | None:
    """Skewed decodes of a bundle that measured them alone: the times at mean and longest come from `source`."""
    (_, *shape), *_ = shape_keys(decode)
    samples = bundle.samples.get(("skew", *shape))
    if samples is None or source.measured(decode) is None:
        return None
    rows = samples.sizes[:, 0] == 0
    chunk, _, decodes, long_decodes, decode_kv, long_kv = samples.sizes[rows].T
    mean = ((decodes - long_decodes) * decode_kv + long_decodes * long_kv) / decodes
    at_mean, at_max = source.seconds(decode, decodes, mean), source.seconds(decode, decodes, long_kv)
    return SkewSamples(decodes, mean, long_kv, at_mean, at_max, samples.seconds[rows], chunk)
