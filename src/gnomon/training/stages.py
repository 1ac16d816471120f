"""Stages of a model: their layers, what one layer runs on one GPU, and the bytes of their weights and optimizer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from gnomon.catalog import Model, Parallelism
from gnomon.catalog.attention import AttentionKind, MlpKind
from gnomon.catalog.weights import layer_weights
from gnomon.timing.operators import Communication, Operator
from gnomon.timing.operators.attention import attention_operators
from gnomon.timing.operators.mlp import expert_operators, mlp_operators
from gnomon.timing.operators.parts import Parts
from gnomon.training.config import SHARDED, Precision, TrainConfig
from gnomon.training.constants import Section, constants

SERVING_ONLY = ("attention_decode", "decode")  # Kinds of operators that a pass over whole sequences does not run.
NOT_TRAINED = ("kv_write", "sampler", "logits_all_gather", "residual_add")
SCHEMES: dict[Precision, str] = {"bf16": "bf16", "fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""What the catalog calls the products of a precision, without their scales: what scales cost is in the rates."""

LayerKind = tuple[AttentionKind, MlpKind]


@dataclass(frozen=True)
class Stage:
    """A piece of the model: its layers, and whether it has the embedding and the head with the loss."""

    kinds: tuple[tuple[LayerKind, int], ...]
    """How many of its layers are of which kind, in the order in which kinds come."""
    has_embedding: bool
    has_head: bool

    @property
    def num_layers(self) -> int:
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
    kinds = [tuple(model.kinds(range(s, s + size)).items()) for s, size in zip(starts, sizes, strict=True)]
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
    # As an engine would run a stage: experts over their own ranks, everything else over the tensor ranks.
    parallelism = Parallelism(tensor_parallel=config.tensor_parallel)
    formats = model.precision(SCHEMES[config.precision])
    parts = Parts(model, parallelism, 0, formats, "bf16", config.expert_load, "all_to_all")
    found = [*attention_operators(parts, attention)] if attention != "none" else []
    if mlp == "dense":
        found += mlp_operators(parts)
    elif mlp == "experts":
        found += expert_operators(parts)
    return [
        one
        for one in found
        if one.kind not in SERVING_ONLY and one.name not in NOT_TRAINED and not isinstance(one.work, Communication)
    ]


def recipe_of(config: TrainConfig) -> Section:
    """The bytes of a configuration: Megatron-LM's depend on the precision and on the format of gradients."""
    known = constants()
    recipe: Section = known.recipes[config.family]
    if config.framework != "megatron":
        return recipe
    gradient = {"fp32": 4.0, "bf16": 2.0}[config.gradients]
    stored, frozen = known.stored[config.precision], known.frozen[config.precision]
    return Section(recipe | {"weight": stored, "gradient": gradient, "frozen": frozen})


@dataclass(frozen=True)
class Parameters:
    """On one GPU of one stage."""

    dense: float
    """All but routed experts."""
    experts: float
    root: float
    """Of the dense ones, those of embedding and head."""
    adapters: float = 0.0

    @property
    def total(self) -> float:
        return self.dense + self.experts


def stage_parameters(config: TrainConfig, stage: Stage) -> Parameters:
    """Parameters of a stage on one GPU, before data-parallel ranks divide them."""
    model, tensor = config.shape, config.tensor_parallel
    dense = experts = adapters = 0.0
    # Adapters of a layer: of the projections into and out of attention.
    h, kv = model.hidden_size, model.num_kv_heads * (model.qk_head_dim + model.v_head_dim)
    adapted = config.lora_rank * (2 * h + model.q_size + kv + model.num_heads * model.v_head_dim)
    for (attention, mlp), count in stage.kinds:
        for one in layer_weights(model, attention, mlp):
            if one.group == "routed_experts":
                experts += count * one.count / (config.expert_parallel * config.expert_tensor_parallel)
                continue
            dense += count * one.per_rank(tensor)
        adapters += count * adapted / tensor
    root = float(model.num_embedding_parameters) if stage.has_embedding else 0.0
    if stage.has_head:
        is_tied = model.tied_embeddings and not stage.has_embedding
        root += model.num_head_parameters + (model.num_embedding_parameters if is_tied else 0)
    return Parameters(dense + root / tensor, experts, root / tensor, adapters)


def parameters_of(config: TrainConfig, stages: Iterable[Stage]) -> list[Parameters]:
    """Of every stage; of those that are alike once."""
    stages = list(stages)
    known = {stage: stage_parameters(config, stage) for stage in set(stages)}
    return [known[stage] for stage in stages]


def expert_ranks(config: TrainConfig) -> int:
    """GPUs that hold the same experts."""
    return config.gpus // config.pipeline_parallel // (config.expert_parallel * config.expert_tensor_parallel)


def state_bytes(config: TrainConfig, parameters: Parameters) -> dict[str, float]:
    """Weights, gradients and optimizer of a stage on one GPU."""
    recipe, level = recipe_of(config), SHARDED[config.sharding]
    kept = 0.0
    if level == 3 and config.pipeline_parallel > 1 and config.num_sharding > 1:
        # Stages keep gathered weights, and gradients until the last micro-batch.
        level, kept = 1, (recipe.computed or recipe.weight) * parameters.total
    groups = (
        (parameters.dense, config.num_sharding),
        (parameters.experts, min(config.num_sharding, expert_ranks(config))),
    )
    if config.lora_rank:
        frozen = sum(count / (ranks if level == 3 else 1) for count, ranks in groups) * recipe.frozen
        shards = config.num_sharding if level else 1
        return {
            "weights": frozen + parameters.adapters * recipe.weight,
            "gradients": parameters.adapters * recipe.gradient,
            "optimizer": parameters.adapters * recipe.optimizer / shards,
        }
    return {
        "weights": sum(count / (ranks if level == 3 or kept else 1) for count, ranks in groups) * recipe.weight + kept,
        "gradients": sum(count / (ranks if level >= 2 else 1) for count, ranks in groups) * recipe.gradient,
        "optimizer": sum(count / (ranks if level >= 1 else 1) for count, ranks in groups) * recipe.optimizer,
    }
