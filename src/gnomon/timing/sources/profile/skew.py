"""What unequal KV lengths in one batch cost: between the batch at its mean length and at its longest.

    seconds = at_mean + alpha x (at_longest - at_mean)

`alpha` is fitted by least squares for each eighth of the skew 1 - mean / longest. Decodes alone are pooled over the
number of decodes: measured batches are powers of two, where the kernel's blocks fill the GPU in whole waves and one
straggler costs most or nothing; the batches of a server lie anywhere between. Decodes beside a chunk of a prompt have
values of their own, and the fewer they are, the more the longest one counts: they are fitted for each number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats
from gnomon.timing.iteration import SKEW_BINS
from gnomon.timing.operators import Operator
from gnomon.timing.sources import Source
from gnomon.timing.sources.profile.samples import Bundle, SkewSamples, shape_keys


def skew_table(skew: SkewSamples, decodes: Floats) -> Floats | None:
    """[decodes, 2 x SKEW_BINS]: alpha at the given numbers of decodes, alone and beside a chunk of a prompt.

    None where neither was measured; what was measured of only one counts for both.
    """
    bins = np.minimum((SKEW_BINS * (1.0 - skew.mean_kv / skew.max_kv)).astype(int), SKEW_BINS - 1)
    is_alone = skew.chunk == 0
    alone = _by_bin(skew, bins, is_alone)
    mixed = _by_level_and_bin(skew, bins, ~is_alone, decodes)
    if alone is None:
        return None if mixed is None else np.hstack([mixed, mixed])
    rows = np.tile(alone, (decodes.size, 1))
    return np.hstack([rows, rows if mixed is None else mixed])


def _by_bin(skew: SkewSamples, bins: NDArray[np.int64], rows: NDArray[np.bool_]) -> Floats | None:
    """Alpha of every bin. Bins without measurements lie between their neighbours, or are as the nearest."""
    alpha = np.array([_alpha(skew, rows & (bins == column)) for column in range(SKEW_BINS)])
    known = np.flatnonzero(~np.isnan(alpha))
    return np.interp(np.arange(SKEW_BINS), known, alpha[known]) if known.size else None


def _by_level_and_bin(
    skew: SkewSamples, bins: NDArray[np.int64], rows: NDArray[np.bool_], decodes: Floats
) -> Floats | None:
    """Alpha of every bin at the given numbers of decodes: straight lines over the logarithm of the measured ones."""
    levels = np.unique(skew.decodes[rows])
    fitted = {level: _by_bin(skew, bins, rows & (skew.decodes == level)) for level in levels}
    known = {level: row for level, row in fitted.items() if row is not None}
    if not known:
        return None
    at, table = np.log2(np.maximum(decodes, 1.0)), np.array(list(known.values()))
    return np.column_stack([np.interp(at, np.log2(list(known)), column) for column in table.T])


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
