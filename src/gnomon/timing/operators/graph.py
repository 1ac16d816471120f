"""The operator graph of a transformer under tensor, pipeline and expert parallelism, as plain data.

`stage_operators` lists what one rank of one pipeline stage runs in one iteration. An operator knows its name, by
which measured sources look it up, and its shape, from which `flops` and `bytes` follow for any batch.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from statistics import NormalDist

from gnomon.catalog.models import Model
from gnomon.catalog.parallelism import Parallelism
from gnomon.timing.operators.attention import attention_operators
from gnomon.timing.operators.mlp import expert_operators, mlp_operators
from gnomon.timing.operators.parts import Exchange, Parts
from gnomon.timing.operators.sampling import LAUNCHES, SamplerConfig, Sampling, sampling_steps
from gnomon.timing.operators.work import (
    ACTIVATION_BYTES,
    Communication,
    Elementwise,
    Experts,
    Gemm,
    Mixed,
    Operator,
    Prefill,
    Recurrence,
)


def stage_operators(
    model: Model, parallelism: Parallelism, stage: int = 0, *, dtype: str = "auto", kv_dtype: str = "auto",
    expert_load: str = "balanced", expert_exchange: Exchange = "auto", sampler: SamplerConfig | None = None,
) -> list[Operator]:  # fmt: skip
    """What one rank of pipeline stage `stage` runs in one iteration, in order of execution."""
    kinds = model.kinds(parallelism.layers_of_stage(model, stage))
    formats, kv = model.precision(dtype), model.kv_precision(kv_dtype, dtype)
    parts = Parts(model, parallelism, stage, formats, kv, expert_load, expert_exchange)
    operators = [*_embedding(parts)] if stage == 0 else []
    for kind in ("full", "sliding", "linear", "compressed", "compressed_sparse"):
        count = sum(n for (attention, _), n in kinds.items() if attention == kind)
        if count:
            operators += [replace(one, count=one.count * count) for one in attention_operators(parts, kind)]
    for name, listing in (("dense", mlp_operators), ("experts", expert_operators)):
        count = sum(n for (_, mlp), n in kinds.items() if mlp == name)
        if count:
            operators += [replace(one, count=one.count * count) for one in listing(parts)]
    is_last = stage == parallelism.pipeline_parallel - 1
    return [*operators, *(_head(parts, sampler or SamplerConfig()) if is_last else _handover(parts))]


def _embedding(parts: Parts) -> Iterator[Operator]:
    yield parts.move("embedding", 2 * parts.model.hidden_size)
    yield from parts.reduce("embedding_all_reduce")


def _head(parts: Parts, sampler: SamplerConfig) -> Iterator[Operator]:
    m, ranks = parts.model, parts.ranks
    vocab = -(-m.vocab_size // ranks)
    yield parts.move("final_norm", 4 * m.hidden_size)
    yield Operator("lm_head", "sequence", 1, Gemm(vocab, m.hidden_size, parts.formats["head"]))
    if ranks > 1:
        group = parts.parallelism.tensor_group(parts.stage)
        gather = Communication("all_gather", group, vocab * ACTIVATION_BYTES, "sequence")
        yield Operator("logits_all_gather", "communication", 1, gather)
    if sampler.penalties == "kept":  # Logits in and out, and the counts, in one kernel.
        yield Operator("penalties", "sequence", 1, Elementwise(12.0 * m.vocab_size))
    for name, step in sampling_steps(sampler, m.vocab_size):
        yield Operator(name, "sequence", 1, step)
    if not sampler.is_random:  # Logits to float32, log-softmax, arg-max: about four passes of four bytes.
        yield Operator("sampler", "sequence", 1, Elementwise(16.0 * m.vocab_size))


def _handover(parts: Parts) -> Iterator[Operator]:
    """Activations to the next pipeline stage."""
    hidden = parts.model.hidden_size * ACTIVATION_BYTES
    group = parts.parallelism.handover_group(parts.stage)
    yield Operator("send_recv", "communication", 1, Communication("send_recv", group, hidden))


def mixed_attention(operators: list[Operator]) -> Operator | None:
    """The operator for a chunk and decodes in one kernel, to ask a source that measured such batches; None where the
    model has several kinds of attention."""
    prefills = [one for one in operators if one.kind == "attention_prefill"]
    if len(prefills) != 1:
        return None
    w = prefills[0].work
    assert isinstance(w, Prefill)
    work = Mixed(w.num_heads, w.num_kv_heads, w.qk_dim, w.v_dim, w.kv_bytes, w.window)
    return replace(prefills[0], name="attention_mixed", kind="attention_mixed", work=work)


def collective_waits(operators: Iterable[Operator]) -> float:
    """How long the ranks of a stage wait for the last of them at the collectives of an iteration, over the standard
    deviation of when one comes: of N normal numbers the largest is expected at this quantile (Blom 1958)."""
    groups = (
        (one.count, one.work.group.size) for one in operators
        if isinstance(one.work, Communication) and one.work.collective != "send_recv"
    )  # fmt: skip
    return sum(count * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) for count, ranks in groups)


def num_kernels(
    operators: Iterable[Operator], engine: str = "", expert_kernel: str = "", prompt_graphs: bool = False
) -> int:
    """Kernels that an iteration with a prompt launches one by one; with `prompt_graphs` only what attention does is
    outside a CUDA graph."""
    launched = [one for one in operators if not one.is_fused and one.kind not in ("decode", "attention_decode")]
    names = {one.name for one in launched}
    fused = _fused_in_trtllm(names) if engine == "trtllm" else set()
    left = names & (_OUTSIDE_GRAPHS - _INSIDE_GRAPHS.get(engine, set())) if prompt_graphs else names
    experts = _EXPERTS.get(expert_kernel, 7) if engine == "trtllm" else 7
    return sum(one.count * _launches(one, experts) for one in launched if one.name in left - fused)


_OUTSIDE_GRAPHS = {
    "qkv_a_proj", "latent_norm", "q_b_proj", "kv_b_proj", "rotary", "kv_write", "attention_prefill", "window_prefill",
}  # fmt: skip
"""What TensorRT-LLM's piecewise graphs leave out: attention, over latents with its down- and up-projections
(`modules/attention.py` attn_custom_op_inplace, mla_custom_op_inplace)."""
_INSIDE_GRAPHS = {"sglang": {"rotary"}}  # compilation/compilation_config.py split_ops: attention writes KV itself.


def _fused_in_trtllm(names: Collection[str]) -> set[str]:
    """What TensorRT-LLM launches with another operator: its attention over heads rotates and writes KV itself
    (`modules/attention.py` rope_fusion), an all-reduce ends with the next norm (RESIDUAL_RMS_NORM)."""
    in_attention = set() if "qkv_a_proj" in names else {"rotary", "kv_write"}
    return in_attention | ({"attn_norm", "mlp_norm"} if "attn_all_reduce" in names else set())


_EXPERTS = {"trtllm": 2, "cutlass": 3, "triton": 26}
"""What TensorRT-LLM launches for the experts of a layer (`modules/fused_moe`): it quantises, and one call does all;
routes, quantises and one call; OpenAI's, 13 of Triton's kernels, which count twice (see below). Others choose, sort,
quantise, multiply twice, activate and sum: FlashInfer's wrappers turn scales and logits first."""


def _launches(operator: Operator, experts: int) -> int:
    """What PyTorch engines launch for one call of an operator."""
    match operator.work:
        case Sampling(method=method):
            return LAUNCHES[method]
        case Experts():
            return experts
        case Recurrence():  # Splitting, convolution, gates, two norms, six for the chunks: 11 of Triton's, whose
            return 28  # wrappers in Python take as long as two calls; three copies, and states in and out.
        case Prefill(num_heads=heads, num_kv_heads=expanded, qk_dim=qk, v_dim=v) if qk != v:
            return 8 if heads == expanded else 3  # Latents: split, rotated, joined; expanded and copied for each head.
    is_quantized = isinstance(operator.work, Gemm) and operator.work.format.name == "fp8_block"
    return 1 + is_quantized + operator.is_beside  # Blocks are scaled first; another stream waits and is waited for.
