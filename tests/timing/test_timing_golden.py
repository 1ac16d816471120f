"""One iteration operator by operator, for one model of each family: calls, FLOPs and bytes, written out.

The iteration has a prompt's chunk of 100 tokens behind 50 others and 3 decodes with 1,000 tokens of KV each: 103 tokens
and 4 sequences that sample. Everything is in bf16 (2 bytes).
"""

from __future__ import annotations

import numpy as np
import pytest

from gnomon import catalog
from gnomon.catalog import Parallelism
from gnomon.timing import Batch, Context, Timer, TimingConfig, breakdown, stage_operators
from gnomon.timing.operators import Decode, Gemm

T, PROMPT, BEFORE, D, KV, S = 103, 100, 50, 3, 1000, 4
BATCH = Batch(prefill=PROMPT, prefill_kv=BEFORE, decode=D, kv=KV)
PAIRS = PROMPT * (BEFORE + PROMPT / 2)  # Each token of the chunk meets what is before it.
Work = tuple[int, float, float]
"""Calls, FLOPs and bytes of each."""


def gemm(calls: int, n: int, k: int, rows: float = T) -> Work:
    return calls, 2.0 * n * k * rows, 2.0 * (n * k + rows * (n + k))


def moved(calls: int, elements: float, rows: float = T) -> Work:
    return calls, 0.0, 2.0 * elements * rows


def message(calls: int, elements: float, rows: float = T) -> Work:
    return moved(calls, elements, rows)


def iteration(name: str, **degrees: int | bool) -> dict[str, Work]:
    device = catalog.device("h100")
    config = TimingConfig(source="roofline", dtype="bf16", kv_dtype="bf16", expert_load="balanced")
    context = Context(catalog.model(name), device, catalog.node("h100_dgx"), Parallelism(**degrees), config)
    rows = breakdown(Timer(context), BATCH)
    return {row.name: (row.calls, row.flops / row.calls, row.bytes / row.calls) for row in rows}


def check_work(found: dict[str, Work], expected: dict[str, Work]) -> None:
    assert list(found) == list(expected), "in order of execution"
    for name, work in expected.items():
        assert found[name] == pytest.approx(work), name


def test_dense_with_grouped_queries_on_two_ranks() -> None:
    """Llama-3-8B: 32 layers of 4096, 32 query and 8 KV heads of 128, a gated MLP of 14336, 128,256 words."""
    h, heads, kv_heads, ffn, vocab = 4096, 16, 4, 7168, 64128  # Of each rank.
    kv_bytes = 2 * kv_heads * 128 * 2
    queries_and_outputs = 2 * heads * 128 * 2
    expected = {
        "embedding": moved(1, 2 * h),
        "embedding_all_reduce": message(1, h),
        "attn_norm": moved(32, 4 * h),
        "qkv_proj": gemm(32, (heads + 2 * kv_heads) * 128, h),
        "rotary": moved(32, 2 * (heads + kv_heads) * 128),
        "kv_write": moved(32, 2 * 2 * kv_heads * 128),
        "attention_prefill": (
            32,
            4.0 * heads * 128 * PAIRS,
            PROMPT * queries_and_outputs + (PROMPT + BEFORE) * kv_bytes,
        ),
        "attention_decode": (32, 4.0 * heads * 128 * D * KV, D * (KV * kv_bytes + queries_and_outputs)),
        "o_proj": gemm(32, h, heads * 128),
        "attn_all_reduce": message(32, h),
        "mlp_norm": moved(32, 4 * h),
        "up_proj": gemm(32, 2 * ffn, h),
        "act": moved(32, 3 * ffn),
        "down_proj": gemm(32, h, ffn),
        "mlp_all_reduce": message(32, h),
        "final_norm": moved(1, 4 * h),
        "lm_head": gemm(1, vocab, h, S),
        "logits_all_gather": message(1, vocab, S),
        "sampler": (1, 0.0, 16.0 * 128256 * S),
    }
    check_work(iteration("llama-3-8b", tensor_parallel=2), expected)


def experts(num: int, local: int, top: int, h: int, ffn: int, tokens: float = T) -> tuple[float, float]:
    """FLOPs, and bytes: the weights of those that some token chose, and each row in and out of three products."""
    rows = tokens * top * local / num
    touched = local * (1 - (1 - top / num) ** tokens)
    return 2.0 * rows * 3 * h * ffn, 2.0 * (touched * 3 * h * ffn + rows * (3 * h + 6 * ffn))


def test_mixture_of_experts_alone() -> None:
    """Mixtral: Llama's attention, and 8 experts of 14336 of which a token takes 2; 32,000 words."""
    h = 4096
    found = iteration("mixtral-8x7b")
    expected = {
        "mlp_norm": moved(32, 4 * h),
        "router": gemm(32, 8, h),
        "experts": (32, *experts(8, 8, 2, h, 14336)),
        "final_norm": moved(1, 4 * h),
        "lm_head": gemm(1, 32000, h, S),
        "sampler": (1, 0.0, 16.0 * 32000 * S),
    }
    names = [
        "embedding",
        "attn_norm",
        "qkv_proj",
        "rotary",
        "kv_write",
        "attention_prefill",
        "attention_decode",
        "o_proj",
    ]
    assert list(found) == [*names, *expected]
    check_work({name: found[name] for name in expected}, expected)


def test_latent_attention_and_experts_spread_over_a_group() -> None:
    """DeepSeek-V3 on 8 attention groups of one rank: 61 layers of 7168, the first 3 dense (18432); 128 heads over
    latents of 512 + 64, 256 experts of 2048 (8 for a token) and a shared one. All ranks have as many tokens."""
    h, heads, ranks = 7168, 128, 8
    q_rank, latent, rope, nope, v = 1536, 512, 64, 128, 128
    width = latent + rope
    expected = {
        "embedding": moved(1, 2 * h),
        "attn_norm": moved(61, 4 * h),
        "qkv_a_proj": gemm(61, q_rank + width, h),
        "latent_norm": moved(61, 2 * (q_rank + latent)),
        "q_b_proj": gemm(61, heads * (nope + rope), q_rank),
        "kv_b_proj": gemm(61, heads * (nope + v), latent, PROMPT),  # Expanded for prompts only,
        "absorb_q": (61, 2.0 * heads * latent * nope * D, 2.0 * heads * (latent * nope + D * (latent + nope))),
        "absorb_v": (61, 2.0 * heads * v * latent * D, 2.0 * heads * (v * latent + D * (v + latent))),  # absorbed else.
        "rotary": moved(61, 2 * (heads + 1) * rope),
        "kv_write": moved(61, 2 * width),
        "attention_prefill": (
            61,
            2.0 * heads * (nope + rope + v) * PAIRS,
            PROMPT * heads * (nope + rope + v) * 2 + (PROMPT + BEFORE) * width * 2,
        ),
        "attention_decode": (
            61,
            2.0 * heads * (width + latent) * D * KV,
            D * (KV * width * 2 + heads * (width + latent) * 2),
        ),
        "o_proj": gemm(61, h, heads * v),
        "mlp_norm": moved(61, 4 * h),
        "up_proj": gemm(3, 2 * 18432, h),
        "act": moved(3, 3 * 18432),
        "down_proj": gemm(3, h, 18432),
        "router": gemm(58, 256, h),
        "expert_dispatch": message(58, 8 * h),  # Each token of one's own to its 8 experts.
        "experts": (58, *experts(256, 256 // ranks, 8, h, 2048, ranks * T)),
        "expert_combine": message(58, 8 * h),
        "final_norm": moved(1, 4 * h),
        "lm_head": gemm(1, 129280, h, S),
        "sampler": (1, 0.0, 16.0 * 129280 * S),
    }
    check_work(iteration("deepseek-v3", data_parallel=ranks, expert_parallel=True), expected)
    # The shared expert runs beside the routed ones, and takes no time of its own while tokens are this few.
    beside = {
        "shared_up_proj": gemm(58, 2 * 2048, h),
        "shared_act": moved(58, 3 * 2048),
        "shared_down_proj": gemm(58, h, 2048),
    }
    cut, tokens = Parallelism(data_parallel=ranks, expert_parallel=True), np.array([float(T)])
    shared = [one for one in stage_operators(catalog.model("deepseek-v3"), cut, dtype="bf16") if one.is_beside]
    check_work({one.name: (one.count, one.flops(tokens)[0], one.bytes(tokens)[0]) for one in shared}, beside)


def test_linear_attention_keeps_a_state() -> None:
    """Qwen3-Next: three of four layers have 16 key and 32 value heads of 128 and states of 128 x 128 in 32 bits."""
    graph = {one.name: one for one in stage_operators(catalog.model("qwen3-next-80b-a3b"), Parallelism())}
    prompt, step = graph["linear_prefill"], graph["linear_decode"]
    state, one = 32 * 128 * 128, np.array([1.0])
    through = 2 * 2 * 2 * (2 * 16 * 128 + 2 * 32 * 128)  # In and out of convolution and recurrence: q, k; v, output.
    assert (prompt.count, step.count) == (36, 36)
    assert prompt.flops(one)[0] == 6 * state + 2 * 64 * 32 * (128 + 128)  # Chunks of 64 meet themselves.
    assert prompt.bytes(one)[0] == through
    assert step.flops(one)[0] == 6 * state
    assert step.bytes(one)[0] == through + 2 * 4 * state  # The state is read and written.


def test_shapes_by_which_measured_kernels_are_found() -> None:
    latent = {one.name: one.work for one in stage_operators(catalog.model("deepseek-v3"), Parallelism())}
    decode = latent["attention_decode"]
    assert isinstance(decode, Decode)
    assert (decode.num_heads, decode.num_kv_heads, decode.qk_dim, decode.v_dim) == (128, 1, 512 + 64, 512)
    # Kimi Linear: 32 heads of 128; decay and output gate go through a rank of 128 each.
    kda = {one.name: one.work for one in stage_operators(catalog.model("kimi-linear-48b-a3b"), Parallelism())}
    down, up = kda["linear_gate_down_proj"], kda["linear_gate_proj"]
    assert isinstance(down, Gemm) and isinstance(up, Gemm)
    assert (down.n, down.k, up.n, up.k) == (2 * 128, 2304, 32 * 128 + 32 * 128, 128)


# Monotonicity: more of anything takes longer, fewer bits and more ranks less.

FAMILIES = ["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "qwen3-next-80b-a3b", "gpt-oss-20b"]


def total_s(name: str, batch: Batch, dtype: str = "bf16", kv_dtype: str = "bf16", **degrees: int) -> float:
    config = TimingConfig.model_validate({"source": "roofline", "dtype": dtype, "kv_dtype": kv_dtype})
    device = catalog.device("h100")
    context = Context(catalog.model(name), device, catalog.default_node(device), Parallelism(**degrees), config)
    return sum(row.seconds for row in breakdown(Timer(context), batch))


@pytest.mark.parametrize("name", FAMILIES)
def test_more_tokens_more_sequences_and_more_kv_take_longer(name: str) -> None:
    for batches in (
        [Batch(prefill=n) for n in (1, 64, 512, 2048, 8192)],
        [Batch(prefill=512, prefill_kv=n) for n in (0, 1024, 16384, 65536)],
        [Batch(decode=n, kv=1000) for n in (1, 8, 64, 512)],
        [Batch(decode=32, kv=n) for n in (16, 1024, 16384)],
    ):
        taken = [total_s(name, batch, tensor_parallel=2) for batch in batches]
        assert taken == sorted(taken)


@pytest.mark.parametrize("name", FAMILIES)
def test_more_ranks_take_less_for_large_batches_and_no_less_than_their_share(name: str) -> None:
    taken = [total_s(name, Batch(prefill=8192), tensor_parallel=ranks) for ranks in (1, 2, 4, 8)]
    assert taken == sorted(taken, reverse=True)
    assert all(seconds * ranks > taken[0] for seconds, ranks in zip(taken[1:], (2, 4, 8), strict=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_fewer_bits_take_less(name: str) -> None:
    for batch in (Batch(prefill=8192), Batch(decode=64, kv=4096)):
        assert total_s(name, batch, "fp8", tensor_parallel=2) < total_s(name, batch, "bf16", tensor_parallel=2)
    cached = Batch(decode=64, kv=16384)
    assert total_s(name, cached, "bf16", "fp8") < total_s(name, cached)


@pytest.mark.parametrize("name", FAMILIES)
def test_pipeline_stages_share_the_work_and_hand_over(name: str) -> None:
    batch = Batch(prefill=2048)
    alone, cut = total_s(name, batch), total_s(name, batch, pipeline_parallel=4)
    assert alone < cut < 1.1 * alone
