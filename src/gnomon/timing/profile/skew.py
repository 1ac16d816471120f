"""What unequal KV lengths in one batch cost: between the batch at its mean length and at its longest.

    seconds = at_mean + alpha x (at_longest - at_mean)

`alpha` is fitted by least squares for each number of decodes and each eighth of the skew 1 - mean / longest.
"""

from __future__ import annotations

import numpy as np

from gnomon.timing.estimators.grid import filled
from gnomon.timing.operators import Floats
from gnomon.timing.profile.samples import SkewSamples

NUM_BINS = 8


def skew_table(skew: SkewSamples, decodes: Floats) -> Floats:
    """[decodes, 8]: alpha at the given numbers of decodes; measured ones are joined by straight lines in log2."""
    levels = np.unique(skew.decodes)
    bins = np.minimum((NUM_BINS * (1.0 - skew.mean_kv / skew.max_kv)).astype(int), NUM_BINS - 1)
    table = np.full((levels.size, NUM_BINS), np.nan)
    for row, level in enumerate(levels):
        for column in range(NUM_BINS):
            table[row, column] = _alpha(skew, (skew.decodes == level) & (bins == column))
    table = filled(table, [np.log2(levels), np.arange(NUM_BINS, dtype=float)])
    at = np.log2(np.maximum(decodes, 1.0))
    return np.column_stack([np.interp(at, np.log2(levels), table[:, column]) for column in range(NUM_BINS)])


def _alpha(skew: SkewSamples, rows: np.ndarray) -> float:
    """Least squares on relative errors; NaN without measurements."""
    scale = skew.skewed_s[rows]
    reach = (skew.at_max_s - skew.at_mean_s)[rows] / scale
    moved = (skew.skewed_s - skew.at_mean_s)[rows] / scale
    return float(reach @ moved / (reach @ reach)) if (reach != 0).any() else np.nan
