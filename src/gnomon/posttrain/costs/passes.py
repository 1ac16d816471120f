"""Micro-batches of one layout over a grid of sizes: seconds of forward and training, attention apart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.training import TrainConfig, train_step

_SIZES = np.geomspace(32, 524_288, 22)


@dataclass(frozen=True, eq=False)
class PassGrid:
    """Seconds on the slowest stage by tokens of a micro-batch, for [forward, recomputation and both gradients].

    `base` is what the tokens take, `attention` what attention takes for one sequence of so many. Between the sizes they
    lie on straight lines.
    """

    tokens: Floats
    base: Floats
    attention: Floats
    flops: Floats
    """Of forward and backward by tokens of a sequence, over all GPUs of a copy."""

    def base_s(self, tokens: float, forwards: int, trainings: int, again: float = 0.0) -> float:
        """A micro-batch of so many tokens without attention: forward passes, and trainings."""
        return float(_mixed(self.tokens, self.base, np.array([tokens]), forwards, trainings, again)[0])

    def attention_s(self, tokens: Ints, forwards: int, trainings: int, again: float = 0.0) -> Floats:
        """Attention of each of these sequences."""
        return _mixed(self.tokens, self.attention, tokens, forwards, trainings, again)

    def each_s(self, tokens: Ints, forwards: int, trainings: int, again: float = 0.0) -> Floats:
        """Each of these sequences as a micro-batch of its own."""
        return _mixed(self.tokens, self.base + self.attention, tokens, forwards, trainings, again)

    def flops_of(self, tokens: Ints) -> float:
        """Model FLOPs of training on these sequences."""
        return float(np.interp(tokens, self.tokens, self.flops).sum())


def _mixed(at: Floats, rows: Floats, tokens: Floats | Ints, forwards: int, trainings: int, again: float) -> Floats:
    """Trainings are a forward, the share `again` of a second one, and a backward pass."""
    row = (forwards + trainings * (1.0 + again)) * rows[0] + trainings * rows[1]
    return np.interp(tokens, at, row)


@lru_cache(maxsize=128)
def pass_grid(config: TrainConfig) -> PassGrid:
    """Whatever the batch of `config`: its layout counts. Attention is what halving its documents saves, twice."""
    unit = 2 * config.context_parallel
    sizes = np.unique([max(unit, round(size / unit) * unit) for size in _SIZES])
    base, attention, flops = [], [], []
    for size in sizes.tolist():
        whole, halves = (_micro_batch(config, size, packed) for packed in (size, max(1, size // 2)))
        attention.append(2.0 * np.maximum(whole[0] - halves[0], 0.0))
        base.append(whole[0] - attention[-1])
        flops.append(whole[1])
    return PassGrid(sizes.astype(float), np.array(base).T, np.array(attention).T, np.array(flops))


def _micro_batch(config: TrainConfig, tokens: int, packed: int) -> tuple[Floats, float]:
    """Forward and backward seconds of one micro-batch on the slowest stage; its model FLOPs."""
    update = {"sequence": tokens, "packed_length": packed, "batch": None, "recompute": "none"}
    step = train_step(config.model_copy(update=update | {"recompute_layers": None}), check=False)
    return np.array([step.phases["forward"], step.phases["backward"]]), step.flops / step.config.batch_size


@lru_cache(maxsize=256)
def update_s(config: TrainConfig) -> float:
    """What a mini-batch takes beside its passes: data-parallel communication that nothing hides, and the optimizer."""
    step = train_step(config.model_copy(update={"batch": None}), check=False)
    return step.parts.get("data", 0.0) + step.parts.get("optimizer", 0.0)
