"""Memory of one GPU in a training step: state, activations by schedule and recomputation, logits, buffers; its peak.

A step is looked at in the three moments at which a GPU can be fullest: when the loss's gradient begins (everything that
forward keeps, and the logits), inside the backward of a layer (its activations and their gradients beside what is
kept), and at the end of backward (all gradients).
"""

from __future__ import annotations

from dataclasses import dataclass

from gnomon import catalog
from gnomon.catalog import Model
from gnomon.core.units import GB
from gnomon.training.config import TrainConfig
from gnomon.training.layers import LayerKind, Stage, stages_of
from gnomon.training.state import RECIPES, Parameters, recipe_of, stage_parameters, state_bytes

CONTEXT_BYTES = 0.7e9
"""CUDA's context and libraries, which the allocator does not see."""
FRAGMENTATION = 0.03
"""Share of the peak that the allocator holds beside it, measured on an H200."""
SCATTERED = 0.8
"""Share of the optimizer's first states that settle in blocks freed by the logits, which must then be made anew."""
BACKWARD_LAYER = 2.1
"""A layer in backward over what it keeps: its activations with their gradients; from FSDP runs at several lengths."""
WORKSPACES = {"megatron": 1.5e9, "fsdp": 0.1e9, "transformers": 0.07e9}
"""cuBLAS, and communication buffers of NCCL where there is some."""


@dataclass(frozen=True)
class Memory:
    """Of the fullest GPU."""

    parts: dict[str, float]
    """Bytes at the peak; they add up to it."""
    fullest: int
    """Its pipeline rank."""
    peaks: tuple[float, ...]
    """Of every pipeline rank."""
    moments: dict[str, float]
    """Bytes of the fullest rank at each of the moments."""
    device_bytes: float

    @property
    def peak_bytes(self) -> float:
        """What the allocator has to hold."""
        return sum(self.parts.values())

    @property
    def reserved_bytes(self) -> float:
        """With what lies between blocks, and the context."""
        scattered = SCATTERED * min(self.parts.get("optimizer", 0.0), self.parts.get("logits", 0.0))
        return self.peak_bytes * (1.0 + FRAGMENTATION) + scattered + CONTEXT_BYTES

    @property
    def fits(self) -> bool:
        """Whether it does."""
        return self.reserved_bytes <= self.device_bytes

    @property
    def words(self) -> str:
        """The parts in words."""
        return ", ".join(f"{name} {size / GB:.1f}" for name, size in self.parts.items() if size > 0.05 * GB)


def memory_of(config: TrainConfig) -> Memory:
    """The memory of a checked configuration."""
    model, device = config.shape, catalog.device(config.device)
    stages = stages_of(model, config.num_stages)
    ranks = []
    for rank in range(config.pipeline_parallel):
        mine = [stages[rank + chunk * config.pipeline_parallel] for chunk in range(config.virtual_stages)]
        ranks.append(_rank_memory(config, model, rank, mine))
    peaks = [max(sum(parts.values()) for parts in moments.values()) for moments in ranks]
    fullest = max(range(len(peaks)), key=peaks.__getitem__)
    moments = ranks[fullest]
    parts = max(moments.values(), key=lambda one: sum(one.values()))
    totals = {name: sum(one.values()) for name, one in moments.items()}
    return Memory(parts, fullest, tuple(peaks), totals, float(device.memory_bytes))


def _rank_memory(config: TrainConfig, model: Model, rank: int, stages: list[Stage]) -> dict[str, dict[str, float]]:
    """What a rank holds at each moment, by part."""
    parameters = [stage_parameters(config, stage) for stage in stages]
    whole = Parameters(*(sum(getattr(p, f) for p in parameters) for f in ("dense", "experts", "root", "adapters")))
    state = state_bytes(config, whole)
    kinds = [kind for stage in stages for kind in stage.kinds(model).elements()]
    layer = max((layer_bytes(config, model, kind) for kind in kinds), default=0.0)
    kept = sum(_kept_bytes(config, model, kind, at, len(kinds)) for at, kind in enumerate(kinds))
    flights = in_flight(config, rank)
    held = {
        **state,
        "activations": kept * flights,
        "buffers": WORKSPACES[config.framework] + _gathered_bytes(config, whole, len(kinds)),
    }
    late = config.framework == "transformers"
    is_dropped = late and config.num_microbatches == 1  # set_to_none: gradients come with backward.
    start = held | {"gradients": 0.0 if is_dropped else state["gradients"]}
    head = any(stage.has_head for stage in stages)
    logits = _logit_bytes(config, model) if head else 0.0
    inside = BACKWARD_LAYER * layer if config.recompute == "full" else (BACKWARD_LAYER - 1.0) * layer
    moments = {
        "loss": start | {"logits": logits},
        "layer": start | {"layer": inside},
        "end": held | {"activations": 0.0},
    }
    if is_dropped and config.recompute == "full":
        # The last layers to be recomputed find the gradients of all others.
        moments["last layer"] = held | {"activations": kept / max(1, len(kinds)), "layer": inside}
    return moments


def layer_bytes(config: TrainConfig, model: Model, kind: LayerKind) -> float:
    """What one layer keeps of one micro-batch on one GPU without recomputation: inputs of its norms and products, what
    attention needs, and what unfused kernels leave between them."""
    attention, mlp = kind
    t = config.tensor_parallel
    norms_t = t if config.sequence_parallel else 1
    low = 1.0 if config.precision != "bf16" else 2.0  # Inputs of products are kept quantised.
    up = 2.0
    if config.lora_rank and config.framework == "megatron":  # Frozen products need no input; the activation's is FP8.
        up, low = low, 0.0
    h, eager = model.hidden_size, not config.compile and config.framework != "megatron"
    size = 0.0
    if attention != "none":
        size += (2.0 + low) * h / norms_t + _attention_elements(model, kind, low, eager) / t
        size += 4.0 * h / norms_t if eager else 0.0  # Norms in float32, and their outputs before the weight.
    if mlp != "none":
        size += (2.0 + low) * h / norms_t
        size += 4.0 * h / norms_t if eager else 0.0
    ups = model.num_projections - 1
    if mlp == "dense":
        size += (up * ups + low + (2.0 if eager else 0.0)) * model.ffn_size / t
    elif mlp == "experts":
        rows = model.experts_per_token / norms_t
        hidden = model.expert_hidden_size or h
        # Weights of experts are applied inside the activation, so that their outputs need not be kept.
        size += rows * (low * hidden + (2.0 * ups + low) * model.expert_ffn_size / config.expert_tensor_parallel)
        size += (2.0 * ups + low) * model.shared_ffn_size / t
    return size * config.tokens


def _attention_elements(model: Model, kind: LayerKind, low: float, eager: bool) -> float:
    """Bytes per token of queries, keys, values and outputs, of which the last are also a product's input."""
    if kind[0] == "linear":
        linear = model.linear
        assert linear is not None
        return 2.0 * (2 * linear.key_size + 4 * linear.value_size)
    heads, kv_heads, qk, v = model.heads_of(kind[0])
    if model.mla and kind[0] == "full":
        kv_heads = heads
    elements = heads * qk + kv_heads * (qk + v)
    normed = (heads + kv_heads) * qk if model.qk_norm else 0
    latent = (model.mla.q_rank + model.mla.kv_rank) if model.mla else 0
    kept = 6.0 if eager else 2.0  # Norms in float32, and their outputs before the weight.
    return 2.0 * (elements + heads * v + 2 * latent) + kept * normed + (low if low < 2.0 else 0.0) * heads * v


def _kept_bytes(config: TrainConfig, model: Model, kind: LayerKind, at: int, count: int) -> float:
    """What a layer keeps from its forward to its backward."""
    whole = layer_bytes(config, model, kind)
    norms_t = config.tensor_parallel if config.sequence_parallel else 1
    only_input = 2.0 * model.hidden_size * config.tokens / norms_t
    if config.offload:
        return only_input / count if config.recompute == "full" else whole / count
    if config.recompute == "full":
        given = config.recompute_layers
        return only_input if given is None or at < given else whole
    if config.recompute == "selective":  # The activation and the norms' outputs are computed again.
        ffn = (
            model.ffn_size
            if kind[1] == "dense"
            else model.shared_ffn_size
            + model.expert_ffn_size * (model.experts_per_token / max(1, config.expert_tensor_parallel))
        )
        low = 1.0 if config.precision != "bf16" else 2.0
        return max(
            only_input, whole - config.tokens * low * (ffn / config.tensor_parallel + 2 * model.hidden_size / norms_t)
        )
    return whole


def in_flight(config: TrainConfig, rank: int) -> float:
    """Micro-batches whose activations a pipeline rank holds at once, as many whole ranks' worth."""
    p, v, m = config.pipeline_parallel, config.virtual_stages, config.num_microbatches
    if p == 1:
        return 1.0
    if config.schedule == "gpipe":
        return float(m)
    if v == 1:
        return float(min(m, p - rank))
    chunks = min(m * v, (p - rank - 1) * 2 + (v - 1) * p + 1)
    return chunks / v


def _gathered_bytes(config: TrainConfig, whole: Parameters, num_layers: int) -> float:
    """Layers that are gathered to be computed with: this one and the next, and embedding and head."""
    recipe = recipe_of(config)
    each = recipe.computed or recipe.weight
    if not recipe.computed and not (config.sharding == "parameters" and config.num_sharding > 1):
        return 0.0
    layers = 2.0 * (whole.total - whole.root) / max(1, num_layers)
    gradient = whole.root * recipe.gradient / 2.0 if not config.lora_rank and config.num_sharding > 1 else 0.0
    return each * (layers + 2.0 * whole.root) + gradient


def _logit_bytes(config: TrainConfig, model: Model) -> float:
    """Logits, log-probabilities and their gradients at the loss."""
    vocab = model.vocab_size / config.tensor_parallel
    if config.head_chunk:
        return config.head_chunk * vocab * 4.0 * 1.2
    return config.tokens * vocab * RECIPES[config.framework].logit
