"""What a scenario says of LoRA adapters: how many a replica holds, what they weigh, how much they slow it down."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from gnomon.catalog import Model
from gnomon.core.arrays import Floats
from gnomon.core.config import Config, build
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.core.sizes import Count
from gnomon.core.text import own_yaml

Point = tuple[Annotated[int, Field(ge=1, le=4096)], NonNegativeFloat]


class LoraConfig(Config):
    """LoRA adapters of a replica; which request asks for which is `workload.adapters`, or a trace."""

    max_loaded: Annotated[int, Field(ge=1, le=4096)] = 8
    """Adapters that a replica holds at once (vLLM: max_loras); requests for others wait for a place. Memory for all
    places is taken from the KV cache."""
    ranks: tuple[Count, ...] = (16,)
    """Ranks of the adapters, dealt out in turn."""
    bandwidth_gb_s: PositiveFloat = 20.0
    """GB/s at which an adapter is loaded: host memory over PCIe; less from disk."""
    latency_s: NonNegativeFloat = 0.0
    """Seconds of a load beside its bytes."""
    slowdown: str | tuple[Point, ...] = "none"
    """How much longer iterations take: [adapters in use, share] pairs with straight lines between, or a measured curve:
    none, h200-rank-8, h200-rank-16, h200-rank-32, h200-rank-64 (data/lora.yaml)."""

    @model_validator(mode="after")
    def _known(self) -> LoraConfig:
        self.curve()
        return self

    def curve(self) -> Floats:
        """[adapters in use]: by how much an iteration takes longer, as a share."""
        points = _points(self.slowdown) if isinstance(self.slowdown, str) else self.slowdown
        if not points:
            return np.zeros(2)
        counts, shares = zip(*points, strict=True)
        if list(counts) != sorted(set(counts)):
            raise ConfigError("the points must be in order of adapters, each once.", where="lora.slowdown")
        in_use = np.arange(max(counts[-1], self.max_loaded) + 1)
        return np.where(in_use > 0, np.interp(in_use, counts, shares), 0.0)


class Measured(Config):
    """One measured curve."""

    source: str
    points: tuple[Point, ...]


@cache
def measured_curves() -> dict[str, Measured]:
    """The measured slow-downs, by name."""
    curves = own_yaml(files("gnomon.serving.scenario") / "data" / "lora.yaml")
    return {name: build(Measured, one, where=f"lora.yaml: {name}") for name, one in curves.items()}


def _points(name: str) -> tuple[Point, ...]:
    if name == "none":
        return ()
    if name not in measured_curves():
        raise UnknownNameError("measured slow-down", name, ["none", *measured_curves()], where="lora.slowdown")
    return measured_curves()[name].points


def adapter_bytes(model: Model, rank: int) -> float:
    """Bytes of an adapter of the projections of attention and dense MLPs, in 16 bits."""
    h, per_layer = model.hidden_size, 0
    widths = [model.num_heads * model.head_dim] + 2 * [model.num_kv_heads * model.head_dim]
    for layer in range(model.num_layers):
        if model.attention_kind(layer) != "none":
            per_layer += sum(h + width for width in (*widths, widths[0]))
        if model.mlp_kind(layer) == "dense":
            per_layer += model.num_projections * (h + model.ffn_size)
    return 2.0 * rank * per_layer
