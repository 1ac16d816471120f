"""Memory of one GPU in a training step: state, activations by schedule and recomputation, logits, buffers; its peak.

A step is looked at in the three moments at which a GPU can be fullest: when the loss's gradient begins (everything that
forward keeps, and the logits), inside the backward of a layer (its activations and their gradients beside what is
kept), and at the end of backward (all gradients).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gnomon import catalog
from gnomon.catalog import Model
from gnomon.core.arrays import Floats
from gnomon.core.units import GB
from gnomon.pipeline.run import Run
from gnomon.training import stages
from gnomon.training.config import TrainConfig
from gnomon.training.pipelines import in_flight, stages_of_rank

CONTEXT_BYTES = 0.7e9  # CUDA's context and libraries, which the allocator does not see.
FRAGMENTATION = 0.03  # Share of the peak that the allocator holds beside it, measured on an H200.
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
        return sum(self.parts.values())

    @property
    def reserved_bytes(self) -> float:
        """With what lies between blocks, and the context."""
        scattered = SCATTERED * min(self.parts.get("optimizer", 0.0), self.parts.get("logits", 0.0))
        return self.peak_bytes * (1.0 + FRAGMENTATION) + scattered + CONTEXT_BYTES

    @property
    def fits(self) -> bool:
        return self.reserved_bytes <= self.device_bytes

    @property
    def words(self) -> str:
        return ", ".join(f"{name} {size / GB:.1f}" for name, size in self.parts.items() if size > 0.05 * GB)


def memory_of(config: TrainConfig) -> Memory:
    device = catalog.device(config.device)
    known: dict[tuple[stages.Stage, ...], RankBytes] = {}
    ranks = []
    for rank in range(config.pipeline_parallel):
        mine = stages_at(config, rank)
        key = tuple(mine.values())
        if key not in known:  # Ranks with equal stages hold the same.
            known[key] = rank_bytes(config, mine)
        held, copies = known[key], config.pipeline_parallel * len(mine) / config.num_stages
        kept = sum(held.kept.values())
        full = held.state | {"activations": kept * in_flight(config, rank) / copies}
        start = full | ({"gradients": 0.0} if held.is_dropped else {})
        moments = {
            "loss": start | {"logits": held.logits},
            "layer": start | {"layer": held.inside},
            "end": full | {"activations": 0.0},
        }
        if held.is_dropped and config.recompute == "full":
            # The last layers to be recomputed find the gradients of all others.
            moments["last layer"] = full | {"activations": kept / max(1, held.num_layers), "layer": held.inside}
        ranks.append(moments)
    peaks = [max(sum(parts.values()) for parts in moments.values()) for moments in ranks]
    fullest = max(range(len(peaks)), key=peaks.__getitem__)
    moments = ranks[fullest]
    parts = max(moments.values(), key=lambda one: sum(one.values()))
    totals = {name: sum(one.values()) for name, one in moments.items()}
    return Memory(parts, fullest, tuple(peaks), totals, float(device.memory_bytes))


@dataclass(frozen=True)
class RankBytes:
    """What fills a GPU of one pipeline rank."""

    state: dict[str, float]
    """Weights, gradients, optimizer, and buffers."""
    kept: dict[int, float]
    """What each of its stages keeps of one micro-batch."""
    inside: float
    """Beside that, inside the backward of a layer."""
    logits: float
    """At the loss."""
    is_dropped: bool
    """Gradients are made anew in every backward (set_to_none), rather than kept."""
    num_layers: int


def stages_at(config: TrainConfig, rank: int) -> dict[int, stages.Stage]:
    every = stages.stages_of(config.shape, config.num_stages)
    return {at: every[at] for at in stages_of_rank(config, rank)}


def rank_bytes(config: TrainConfig, mine: dict[int, stages.Stage]) -> RankBytes:
    model = config.shape
    parameters = stages.parameters_of(config, mine.values())
    whole = stages.Parameters(
        *(sum(getattr(p, f) for p in parameters) for f in ("dense", "experts", "root", "adapters"))
    )
    count = sum(stage.num_layers for stage in mine.values())
    different = {kind for stage in mine.values() for kind, _ in stage.kinds}
    layer = max((layer_bytes(config, model, kind) for kind in different), default=0.0)
    kept = dict.fromkeys(mine, 0.0)
    for at, stage in mine.items():
        for kind, n, again in stages.recomputed(config, stage):
            for layers, recompute in ((again, config.recompute), (n - again, "none")):
                kept[at] += layers * _kept_bytes(config, model, kind, recompute, count) if layers else 0.0
    inside = BACKWARD_LAYER * layer if config.recompute == "full" else (BACKWARD_LAYER - 1.0) * layer
    if config.framework != "megatron" and config.tensor_parallel > 1:
        # Under DTensor inputs of products are gathered whole, and outputs whole before they are scattered, with their
        # gradients: six of a micro-batch; Megatron-LM frees them.
        inside += 6.0 * 2.0 * model.hidden_size * config.tokens
    buffers = WORKSPACES[config.family] + _gathered_bytes(config, whole, count) + _stage_buffers(config, mine.values())
    return RankBytes(
        stages.state_bytes(config, whole) | {"buffers": buffers}, kept, inside,
        _logit_bytes(config, model) if any(stage.has_head for stage in mine.values()) else 0.0,
        config.framework == "transformers" and config.num_microbatches == 1, count,
    )  # fmt: skip


def _stage_buffers(config: TrainConfig, mine: Iterable[stages.Stage]) -> float:
    """PyTorch's pipeline stages have room to receive what every micro-batch of a step sends, activations and gradients,
    and the last one keeps all outputs (logits in bf16) until the step ends."""
    if config.framework != "torchtitan" or config.pipeline_parallel == 1:
        return 0.0
    model, divided = config.shape, config.tensor_parallel if config.sequence_parallel else 1
    sent = 2.0 * config.tokens * model.hidden_size / divided
    logits = 2.0 * config.tokens * model.vocab_size / config.tensor_parallel
    each = sum((not one.has_embedding) * sent + (logits if one.has_head else sent) for one in mine)
    return config.num_microbatches * each


@dataclass(frozen=True)
class MemoryCurve:
    """A GPU of one pipeline rank over the step: bytes of each part at the given seconds, straight lines between."""

    times: Floats
    parts: dict[str, Floats]

    @property
    def total(self) -> Floats:
        return np.sum(list(self.parts.values()), axis=0)


def memory_over_time(config: TrainConfig, run: Run) -> list[MemoryCurve]:
    """Every pipeline rank's memory as the passes of a run go on: a forward adds what its stage keeps, a backward needs
    a layer or the logits beside it and gives it back."""
    return [_curve(rank_bytes(config, stages_at(config, rank)), run, rank) for rank in range(config.pipeline_parallel)]


def _curve(held: RankBytes, run: Run, rank: int) -> MemoryCurve:
    rows: list[tuple[float, float, float, float]] = [(0.0, 0.0, 0.0, 0.0)]
    active = made = 0.0
    backwards = {"backward": 1.0, "input_grad": 0.0, "weight_grad": 1.0}
    for task in run.computes[rank]:
        label = run.labels[task]
        start, end = float(run.trace.tasks.start[task]), float(run.trace.tasks.end[task])
        after, beside, logits = active, 0.0, 0.0
        for part in (label, label.other) if label.other else (label,):
            share = backwards.get(part.kind)
            if share is None:
                after += label.share * held.kept[part.stage]
            else:
                after -= label.share * share * held.kept[part.stage]
                is_last = part.stage == max(held.kept) and held.logits > 0.0
                beside, logits = held.inside, held.logits if is_last and part.kind != "weight_grad" else 0.0
        grown = made + (label.share if label.kind == "backward" else 0.0)
        rows += [(start, active, 0.0, made), (start, active, max(beside, logits), made)]
        rows += [(end, after, beside, grown), (end, after, 0.0, grown)]
        active, made = after, grown
    rows.append((run.total_time, active, 0.0, made))
    times, activations, temporary, done = np.array(rows).T
    parts = {name: np.full(times.size, size) for name, size in held.state.items()}
    if held.is_dropped:
        parts["gradients"] = parts["gradients"] * np.minimum(1.0, done)
    return MemoryCurve(times, parts | {"activations": activations, "layer and logits": temporary})


def layer_bytes(config: TrainConfig, model: Model, kind: stages.LayerKind) -> float:
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


def _attention_elements(model: Model, kind: stages.LayerKind, low: float, eager: bool) -> float:
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


def offloaded_bytes(config: TrainConfig, model: Model, kind: stages.LayerKind) -> float:
    """What a layer keeps, where it waits on the host: its input, or all of it."""
    if config.recompute != "full":
        return layer_bytes(config, model, kind)
    return 2.0 * model.hidden_size * config.tokens / (config.tensor_parallel if config.sequence_parallel else 1)


def _kept_bytes(config: TrainConfig, model: Model, kind: stages.LayerKind, recompute: str, count: int) -> float:
    """What a layer keeps from its forward to its backward."""
    whole = layer_bytes(config, model, kind)
    norms_t = config.tensor_parallel if config.sequence_parallel else 1
    only_input = 2.0 * model.hidden_size * config.tokens / norms_t
    if config.offload:
        return offloaded_bytes(config, model, kind) / count
    if recompute == "full":
        return only_input
    if recompute == "selective" and config.framework != "megatron" and kind[1] == "dense":
        # Every second product is computed again (torchtitan): kept are the input, queries, values, attention's output,
        # one of the MLP's two inputs, and its output.
        q, v = model.q_size, model.num_kv_heads * model.v_head_dim
        outputs = q + v + model.num_heads * model.v_head_dim + model.ffn_size
        return 2.0 * config.tokens * (2.0 * model.hidden_size / norms_t + outputs / config.tensor_parallel)
    if recompute == "selective":  # The activation and the norms' outputs are computed again.
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


def _gathered_bytes(config: TrainConfig, whole: stages.Parameters, num_layers: int) -> float:
    """Layers that are gathered to be computed with: this one and the next, and embedding and head."""
    recipe = stages.recipe_of(config)
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
    if config.framework == "torchtitan":  # By its published memory: compiled, logits and their gradients in bf16.
        return config.tokens * vocab * (4.0 if config.compiles_loss else 12.0)
    return config.tokens * vocab * stages.recipe_of(config).logit
