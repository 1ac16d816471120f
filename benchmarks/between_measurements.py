"""How wrong times are between measurements: attention grids thinned, shapes left out, skewed batches.

    python benchmarks/between_measurements.py REFERENCE

1. Mixed attention (a chunk and decodes in one call) is measured on a grid with a factor of two between points. Every
   other point of one axis is left out and predicted: by the grid estimator over its bound (the default), over
   none, and by straight lines between raw points.
   And how far the measured parts, added, are from the whole.
2. Skewed decodes: at their mean length, and with the fitted alpha, for decodes alone and for mixed batches, with one
   alpha for both or one for each.
3. A GEMM or attention shape is left out and made from its neighbours (needs the extra [silicon]).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from gnomon.catalog.devices import device
from gnomon.catalog.model_library import model
from gnomon.catalog.nodes import default_node
from gnomon.catalog.parallelism import Parallelism
from gnomon.core.arrays import Floats
from gnomon.timing.estimators.grid import Grid, filled
from gnomon.timing.iteration import SKEW_BINS
from gnomon.timing.operators import Decode, Gemm, Kind, Operator, Prefill, mixed_attention, stage_operators
from gnomon.timing.sources import silicon
from gnomon.timing.sources.profile import servingsim
from gnomon.timing.sources.profile.measured import bound_of
from gnomon.timing.sources.profile.samples import Samples, SkewSamples
from gnomon.timing.sources.profile.shapes import from_neighbours
from gnomon.timing.sources.profile.skew import skew_table
from gnomon.timing.sources.roofline import Roofline

AXES = ("chunk", "kv", "decodes", "decode_kv")


def mean_error(predicted: Floats, seconds: Floats) -> float:
    return 100 * float(np.mean(np.abs(predicted / seconds - 1)))


class Straight:
    """Straight lines between raw points, for comparison."""

    def fit(self, x: Floats, y: Floats) -> Straight:
        self.levels = [np.unique(column) for column in x.T]
        grid = np.full([level.size for level in self.levels], np.nan)
        grid[tuple(np.searchsorted(level, column) for level, column in zip(self.levels, x.T, strict=True))] = y
        self.values = np.exp(filled(np.log(grid), [np.log1p(level) for level in self.levels]))
        return self

    def predict(self, x: Floats) -> Floats:
        total = np.zeros(len(x))
        cells = []
        for level, column in zip(self.levels, x.T, strict=True):
            low = np.clip(np.searchsorted(level, column, side="right") - 1, 0, level.size - 2)
            cells.append((low, np.clip((column - level[low]) / (level[low + 1] - level[low]), 0, 1)))
        for corner in np.ndindex(*(2,) * len(cells)):
            at = tuple(low + up for (low, _), up in zip(cells, corner, strict=True))
            total += self.values[at] * np.prod(
                [w if up else 1 - w for (_, w), up in zip(cells, corner, strict=True)], 0
            )
        return total


def thinned(samples: Samples, operator: Operator, roofline: Roofline) -> None:
    x, y = samples.sizes, samples.seconds
    bound = bound_of(operator, roofline, samples)
    for name, make in (("default", lambda: Grid(bound)), ("none", Grid), ("straight", Straight)):
        errors = []
        for axis in range(4):
            levels = np.unique(x[:, axis])
            index = np.searchsorted(levels, x[:, axis])
            out = (index % 2 == 1) & (index < levels.size - 1)
            errors.append(mean_error(make().fit(x[~out], y[~out]).predict(x[out]), y[out]))
        print(f"  {name:10s}" + "".join(f"  {axis} {error:.1f} %" for axis, error in zip(AXES, errors, strict=True)))


def added(parts: dict[str, Samples], operators: dict[str, Operator], roofline: Roofline) -> None:
    """The measured parts of a mixed batch, added."""
    mixed = parts["attention_mixed"]
    total = np.zeros(len(mixed.seconds))
    for name, columns in (("attention_prefill", slice(0, 2)), ("attention_decode", slice(2, 4))):
        made = Grid(bound_of(operators[name], roofline, parts[name])).fit(parts[name].sizes, parts[name].seconds)
        total += made.predict(mixed.sizes[:, columns])
    print(f"  prefill alone + decode alone: {100 * np.median(total / mixed.seconds - 1):+.0f} % in the median")


def skewed(skew: SkewSamples) -> None:
    """By the skew, as where no kernel is known to stop splitting: that rule is for spread lengths, these are of two."""
    skew = replace(skew, splits_below=None)
    mixed = skew.chunk > 0
    joint = replace(skew, chunk=np.zeros_like(skew.chunk))
    for name, rows, first in (("alone", ~mixed, 0), ("mixed", mixed, SKEW_BINS)):
        mean = mean_error(skew.at_mean_s[rows], skew.skewed_s[rows])
        own = _with_alpha(skew, skew_table(skew, skew.decodes[rows]), rows, first)
        both = _with_alpha(skew, skew_table(joint, skew.decodes[rows]), rows, 0)
        print(f"  decodes {name}: at the mean {mean:.1f} %, own alpha {own:.1f} %, one alpha for both {both:.1f} %")


def _with_alpha(skew: SkewSamples, table: Floats | None, rows: np.ndarray, first: int) -> float:
    assert table is not None
    bins = first + np.minimum((SKEW_BINS * (1 - skew.mean_kv / skew.max_kv)).astype(int), SKEW_BINS - 1)[rows]
    alpha = table[np.arange(len(table)), bins]
    predicted = skew.at_mean_s[rows] + alpha * (skew.at_max_s - skew.at_mean_s)[rows]
    return mean_error(predicted, skew.skewed_s[rows])


KINDS: dict[str, Kind] = {
    "gemm": "token",
    "attention_prefill": "attention_prefill",
    "attention_decode": "attention_decode",
}


def left_out(name: str) -> None:
    gpu = device(name)
    roofline = Roofline(gpu, default_node(gpu))
    bundle = silicon.read_bundle(gpu)
    for kind, kernel in KINDS.items():
        errors = []
        for key in [k for k in bundle.samples if k[0] == kind]:
            shape = [int(value) for value in key[1:]]
            if (min(shape) < 512) if kind == "gemm" else (shape[2] != 128):
                continue
            work = Gemm(*shape) if kind == "gemm" else _attention(kind, *shape)
            samples = bundle.samples.pop(key)
            made = from_neighbours(bundle, Operator(kind, kernel, 1, work), roofline.seconds)
            bundle.samples[key] = samples
            if made is not None:
                known = {tuple(row): second for row, second in zip(samples.sizes, samples.seconds, strict=True)}
                pairs = [
                    (s, known[tuple(r)]) for r, s in zip(made.sizes, made.seconds, strict=True) if tuple(r) in known
                ]
                predicted, seconds = np.array(pairs).T
                errors.append(np.abs(predicted / seconds - 1))
        pooled = 100 * np.concatenate(errors)
        print(f"  {kind}: median {np.median(pooled):.1f} %, mean {np.mean(pooled):.1f} % over {len(errors)} shapes")


def _attention(kind: str, heads: int, kv_heads: int, dim: int) -> Prefill | Decode:
    made = Prefill if kind == "attention_prefill" else Decode
    return made(heads, kv_heads, dim, dim, 4.0 * kv_heads * dim)


def main(reference: Path) -> None:
    for path in sorted(reference.glob("vllm/profiles/**/attention.csv")):
        print("/".join(path.parts[-6:-1]))
        gpu, shape = device(path.parts[-6]), model("/".join(path.parts[-5:-3]))
        degree = Parallelism(tensor_parallel=int(path.parts[-2].removeprefix("tp")))
        graph = stage_operators(shape, degree)
        operators = {one.name: one for one in (*graph, mixed_attention(graph))}
        parts, roofline = servingsim.read_attention(path), Roofline(gpu, default_node(gpu))
        added(parts, operators, roofline)
        thinned(parts["attention_mixed"], operators["attention_mixed"], roofline)
        skewed(servingsim.read_skew(path.with_name("skew.csv")))
    for name in ("h100", "h200", "a100-80gb"):
        print(f"{name}, each shape from its neighbours")
        left_out(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
