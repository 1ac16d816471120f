"""Which layers each stage has, and what one layer of a kind runs on one GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from gnomon.catalog import Model, Parallelism
from gnomon.catalog.attention import AttentionKind, MlpKind
from gnomon.timing.operators import Communication, Operator
from gnomon.timing.operators.attention import attention_operators
from gnomon.timing.operators.mlp import expert_operators, mlp_operators
from gnomon.timing.operators.parts import Parts
from gnomon.training.config import Precision, TrainConfig

SERVING_ONLY = ("attention_decode", "decode")
"""Kinds of operators that a pass over whole sequences does not run."""
NOT_TRAINED = ("kv_write", "sampler", "logits_all_gather", "residual_add")
SCHEMES: dict[Precision, str] = {"bf16": "bf16", "fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""What the catalog calls the products of a precision, without their scales: what scales cost is in the rates."""

LayerKind = tuple[AttentionKind, MlpKind]


@dataclass(frozen=True)
class Stage:
    """A piece of the model: its layers, and whether it has the embedding and the head with the loss."""

    kinds: tuple[tuple[LayerKind, int], ...]
    """How many of its layers are of which kind."""
    has_embedding: bool
    has_head: bool

    @property
    def num_layers(self) -> int:
        """Layers of all kinds."""
        return sum(count for _, count in self.kinds)


@lru_cache(maxsize=1024)
def stages_of(model: Model, num_stages: int) -> tuple[Stage, ...]:
    """Layers in equal pieces; where they do not divide, embedding and loss count as a layer each (as Megatron-LM's
    account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split), and what is left over goes to
    stages in the middle."""
    slots, ends = model.num_layers, 0
    if slots % num_stages:
        slots, ends = slots + 2, 1
    base, left = divmod(slots, num_stages)
    sizes = [base] * num_stages
    first = (num_stages - left) // 2
    for stage in range(first, first + left):
        sizes[stage] += 1
    sizes[0] -= ends
    sizes[-1] -= ends
    starts = [sum(sizes[:stage]) for stage in range(num_stages)]
    kinds = [tuple(sorted(model.kinds(range(s, s + size)).items())) for s, size in zip(starts, sizes, strict=True)]
    return tuple(Stage(each, at == 0, at == num_stages - 1) for at, each in enumerate(kinds))


def recomputed(config: TrainConfig, stage: Stage) -> Iterator[tuple[LayerKind, int, int]]:
    """Layers of every kind, and how many of those backward computes again: the first of the stage."""
    left = config.recompute_layers if config.recompute == "full" else None
    for kind, count in stage.kinds:
        again = count if left is None else min(count, left)
        left = None if left is None else left - again
        yield kind, count, 0 if config.recompute == "none" else again


def layer_operators(config: TrainConfig, model: Model, kind: LayerKind) -> list[Operator]:
    """What one layer runs on one GPU in a forward pass, without its communication."""
    attention, mlp = kind
    parts = _parts(config, model)
    found = [*attention_operators(parts, attention)] if attention != "none" else []
    if mlp == "dense":
        found += mlp_operators(parts)
    elif mlp == "experts":
        found += expert_operators(parts)
    return [one for one in found if _is_trained(one)]


def _is_trained(one: Operator) -> bool:
    if one.kind in SERVING_ONLY or one.name in NOT_TRAINED:
        return False
    return not isinstance(one.work, Communication)


def _parts(config: TrainConfig, model: Model) -> Parts:
    """One stage as an engine would run it: experts over their own ranks, everything else over the tensor ranks."""
    tensor = config.tensor_parallel
    parallelism = Parallelism(tensor_parallel=tensor)
    formats = model.precision(SCHEMES[config.precision])
    return Parts(model, parallelism, 0, formats, "bf16", config.expert_load, "all_to_all")
