"""What the passes and transfers of one training step take, in any one unit of time."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, ValidationInfo

from gnomon.core.arrays import Floats, Ints
from gnomon.core.config import Config
from gnomon.core.errors import ConfigError
from gnomon.timing.fair_share import NO_TIER

TRANSFERS = ("fwd_prop", "grad_prop", "grad_sync")
MAX_LENGTH = 1e12  # Of a pass or a transfer, in any unit: sums of longer ones cannot tell the others.
Length = Annotated[float, Field(ge=0, le=MAX_LENGTH)]
PerStage = Length | tuple[Length, ...]  # One number for all stages, or one for each.
Share = Annotated[float, Field(ge=0, le=1)]


def check_priority(name: str, value: float | str) -> None:
    """Refuse what is neither a weight nor the letter of a tier."""
    if isinstance(value, str):
        good = len(value) == 1 and "a" <= value <= "z"
    else:
        good = 0.0 <= value < np.inf
    if not good:
        raise ConfigError(f"{name} must be a weight of at least 0 or a tier letter a-z (given: {value!r}).")


def _checked(value: float | str, info: ValidationInfo) -> float | str:
    check_priority(info.field_name or "priority", value)
    return value


Priority = Annotated[float | str, AfterValidator(_checked)]
"""A weight of at least 0, or the letter of an exclusive tier: 'a' goes before 'b'."""


class StepCosts(Config):
    """Times of one training step, per stage and micro-batch, and how its transfers share the network."""

    forward: PerStage = 1.0
    """Forward pass of one micro-batch through one stage."""
    input_grad: PerStage = 1.0
    """Gradient with respect to the stage's input."""
    weight_grad: PerStage = 1.0
    """Gradient with respect to the stage's weights; a full backward is both, one after the other."""
    overlapped: PerStage | None = None
    """An overlapped forward and full backward together, by the forward's stage; their sum unless given."""
    send: PerStage = 0.0
    """Activations of one micro-batch (or their gradient) leaving a stage over an idle link."""
    send_grad: PerStage | None = None
    """Gradients of activations leaving a stage, where that differs from `send`."""
    latency: Length = 0.0
    """Added to every transfer between ranks; it keeps no link busy."""
    sync: PerStage = 0.0
    """Synchronising the gradients of one micro-batch on a stage over an idle link; 0 for none."""
    sync_freq: PositiveInt | None = None
    """Synchronise after every this many micro-batches; once, at the end, unless given."""
    gather: PerStage = 0.0
    """Gathering the weights of a stage over an idle link before its first forward; 0 for none."""
    buckets: Annotated[int, Field(ge=1, le=1000)] = 1
    """Pieces in which weights are gathered and gradients synchronised, beside the pass that they belong to."""
    fully_sharded: bool = False
    """Weights are gathered before every pass, at most one piece ahead, instead of before the first forward alone."""
    own_links: bool = False
    """Weights and gradients use links of their own, one piece after the other, and share none with activations."""
    fwd_impact: Share = 0.0
    """Share of its rate that a forward loses while grad_sync has the whole link."""
    bwd_impact: Share = 0.0
    """Share of its rate that a backward loses while grad_sync has the whole link."""
    fwd_prop: Priority = 1.0
    """Weight of activations on a link, or an exclusive tier."""
    grad_prop: Priority = 1.0
    """Weight of activation gradients on a link, or an exclusive tier."""
    grad_sync: Priority = 1.0
    """Weight of gradient synchronisation on a link, or an exclusive tier."""
    contention: bool = True
    """Whether transfers share links; if not, each runs at full rate, whatever else is sent."""
    stragglers: dict[int, PositiveFloat] = Field(default_factory=dict)
    """Ranks whose passes take this many times as long."""
    link_speed: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Relative speed of single links, such as `1-2: 0.5` for what rank 1 sends to rank 2."""
    jitter: Length = 0.0
    """Spread of a pass's time: the standard deviation of its logarithm, with the mean unchanged."""

    def per_stage(self, name: str, num_stages: int) -> Floats:
        values = np.atleast_1d(np.asarray(getattr(self, name), dtype=np.float64))
        if values.size not in (1, num_stages):
            fix = "Give one number, or one per stage."
            raise ConfigError(f"{name} has {values.size} numbers for {num_stages} stages.", fix=fix)
        return np.broadcast_to(values, num_stages)


def priorities(*values: Priority) -> tuple[Floats, Ints]:
    """Weights and tiers as the engine reads them, from weights and tier letters in the order of `TRANSFERS`."""
    weights = np.array([0.0 if isinstance(v, str) else v for v in values], dtype=np.float64)
    tiers = np.array([ord(v) - ord("a") if isinstance(v, str) else NO_TIER for v in values], dtype=np.int64)
    return weights, tiers
