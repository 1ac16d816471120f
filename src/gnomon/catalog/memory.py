"""What goes where in a GPU's memory: weights, a reserve for running, and the KV blocks that remain."""

import math
from dataclasses import dataclass
from typing import Literal

from gnomon.catalog.devices import Device
from gnomon.catalog.models import Model
from gnomon.catalog.parallelism import Parallelism, tensor_degrees
from gnomon.core.errors import ConfigError, DoesNotFitError
from gnomon.core.units import GIB, MIB, size

Planner = Literal["gnomon", "sglang", "trtllm", "vidur"]

# What vLLM holds beyond weights, activations and logits (CUDA graphs, workspaces, fragments). Chosen so that the plan
# gives the 2,588 blocks that vLLM 0.19 reported for Llama-3.1-8B on an RTX 4090 (utilisation 0.9, 2,048 batched tokens,
# 256 sequences); see docs/catalog.md.
FIXED_RESERVE_BYTES = 338 * MIB
# Profiling samples for every sequence at once: logits in 32 bits, sorted values, probabilities, 64-bit indices.
SAMPLER_BYTES_PER_LOGIT = 20
# Length of a sequence over which windows and states are spread where nothing is known of the workload.
TYPICAL_TOKENS = 4096


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of one rank (the fullest one), in bytes, and the KV blocks of the replica."""

    usable_bytes: float
    weight_bytes: float
    reserve_bytes: float
    kv_bytes: float
    """Room for KV blocks."""
    block_bytes: float
    """One KV block on one rank."""
    num_kv_blocks: int
    block_size: int
    max_batch: int | None = None
    """Requests of the longest length that fit at once (Vidur's planner only)."""

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that the KV blocks can hold."""
        return self.num_kv_blocks * self.block_size


def plan_memory(
    model: Model, device: Device, parallelism: Parallelism, *, planner: Planner = "gnomon", dtype: str = "auto",
    kv_dtype: str = "auto", block_size: int = 16, memory_utilization: float = 0.9, max_tokens: int = 4096,
    max_batched_tokens: int = 2048, max_sequences: int = 256, sequence_tokens: int | None = None,
    reserve_bytes: float | None = None, draft: Model | None = None, draft_layers: int = 0,
) -> MemoryPlan:  # fmt: skip
    """Weights, reserve and KV blocks of one replica.

    `planner="gnomon"` follows vLLM: memory x utilisation - weights - activations of a full batch. `"sglang"`: weights
    and KV cache together take memory x utilisation (activations live in the rest). `"trtllm"`: the KV cache takes the
    share `memory_utilization` of what weights and activations leave free. `"vidur"` follows Vidur, where `max_tokens`
    is the longest request and its margin is 1 - `memory_utilization`. `reserve_bytes` replaces the estimated reserve.
    What a sequence keeps whatever its length (windows, states) is spread over the `sequence_tokens` of a typical one.
    A `draft` model lies on the same GPUs, and every block has its KV too; so do `draft_layers` of the model's own, on
    the last stage. Raises DoesNotFitError where not a single block remains.
    """
    parallelism.check(model)
    if not 0 < memory_utilization <= 1:
        what = f"memory utilisation must lie in (0, 1], not {memory_utilization}."
        raise ConfigError(what, where="memory_utilization")
    if block_size < 1 or max_tokens < 1 or max_sequences < 1 or max_batched_tokens < 1:
        raise ConfigError("block size, tokens and sequences must be positive.", where="memory")
    if planner == "vidur":
        return _vidur_plan(model, device, parallelism, block_size, memory_utilization, max_tokens)
    usable = device.memory_bytes * memory_utilization
    plans = []
    for stage in range(parallelism.pipeline_parallel):
        both = [(one, parallelism.suited_to(one)) for one in (model, draft) if one is not None]
        weights = sum(one.weight_bytes_of_stage(cut, stage, dtype) for one, cut in both)
        reserve = reserve_bytes
        if reserve is None:
            reserve = _reserve(model, parallelism, stage, max_batched_tokens, max_sequences)
        tokens = min(sequence_tokens or TYPICAL_TOKENS, max_tokens)
        kept = sum(
            one.sequence_bytes(
                tokens, one.kv_precision(kv_dtype, dtype), cut.tensor_parallel, cut.layers_of_stage(one, stage)
            )
            for one, cut in both
        )
        if stage == parallelism.pipeline_parallel - 1 and draft_layers:
            cut, kv = parallelism.suited_to(model), model.kv_precision(kv_dtype, dtype)
            weights += draft_layers * model.drafting_layer_bytes(cut, dtype)
            kept += draft_layers * model.drafting_sequence_bytes(tokens, kv, cut.tensor_parallel)
        block = block_size / tokens * kept
        match planner:
            case "sglang":
                room, reserve = usable - weights, device.memory_bytes - usable
            case "trtllm":
                room = (device.memory_bytes - weights - reserve) * memory_utilization
            case _:
                room = usable - weights - reserve
        plans.append(MemoryPlan(usable, weights, reserve, room, block, math.floor(room / block), block_size))
    plan = min(plans, key=lambda one: one.num_kv_blocks)
    if plan.num_kv_blocks < 1:
        raise _does_not_fit(model, device, parallelism, plan, dtype, memory_utilization)
    return plan


def _reserve(model: Model, parallelism: Parallelism, stage: int, max_batched_tokens: int, max_sequences: int) -> float:
    """What vLLM's profiling run finds: activations of the widest layer, logits of all sequences, and a fixed part."""
    t = parallelism.tensor_parallel
    ffn = max(model.ffn_size // t, model.experts_per_token * model.expert_ffn_size // parallelism.num_expert_ranks)
    widest = model.num_projections * ffn + 3 * model.hidden_size
    sampler = SAMPLER_BYTES_PER_LOGIT * max_sequences * model.vocab_size
    is_last = stage == parallelism.pipeline_parallel - 1
    return FIXED_RESERVE_BYTES + 2.0 * max_batched_tokens * widest + (sampler if is_last else 0.0)


def _vidur_plan(
    model: Model, device: Device, parallelism: Parallelism, block_size: int, utilization: float, max_tokens: int
) -> MemoryPlan:
    """Vidur's formula, which leaves out embeddings and head and plans in whole longest requests."""
    t, stages = parallelism.tensor_parallel, parallelism.pipeline_parallel
    usable = device.memory_gb * GIB * utilization
    h, hd = model.hidden_size, model.head_dim
    attention = h * hd * (model.num_heads + 2 * model.num_kv_heads) / t + h * hd * model.num_heads / t
    weights = 2.0 * (model.num_layers / stages) * (attention + model.num_projections * h * model.ffn_size / t)
    per_token = 4 * hd * math.ceil(model.num_kv_heads / t) * model.num_layers
    max_batch = int((usable - weights) // (per_token * max_tokens))
    blocks = (max_tokens // block_size) * max_batch * stages
    block = per_token * block_size / stages
    plan = MemoryPlan(usable, weights, 0.0, usable - weights, block, blocks, block_size, max_batch)
    if blocks < 1:
        raise _does_not_fit(model, device, parallelism, plan, "bf16", utilization)
    return plan


def _does_not_fit(
    model: Model, device: Device, parallelism: Parallelism, plan: MemoryPlan, dtype: str, utilization: float
) -> DoesNotFitError:
    missing = plan.block_bytes - plan.kv_bytes
    fitting = [
        t
        for t in tensor_degrees(model)
        if t > parallelism.tensor_parallel and _fits(model, parallelism, t, plan, dtype)
    ]
    fix = (
        f"Tensor parallelism {fitting[0]} would fit."
        if fitting
        else "Use more pipeline stages or a smaller number format."
    )
    return DoesNotFitError(
        f"{model.name} does not fit on {device.name} with tensor parallelism {parallelism.tensor_parallel} and"
        f" pipeline parallelism {parallelism.pipeline_parallel}: {size(missing)} short per GPU. Weights take"
        f" {size(plan.weight_bytes)} and running takes {size(plan.reserve_bytes)} of the {size(plan.usable_bytes)}"
        f" usable ({utilization:.0%}).",
        fix=fix,
    )


def _fits(model: Model, parallelism: Parallelism, tensor_parallel: int, plan: MemoryPlan, dtype: str) -> bool:
    wider = parallelism.model_copy(update={"tensor_parallel": tensor_parallel})
    if model.is_moe and wider.expert_parallel and model.num_experts % wider.num_expert_ranks:
        return False
    return model.weight_bytes_per_rank(wider, dtype) + plan.reserve_bytes + plan.block_bytes < plan.usable_bytes
