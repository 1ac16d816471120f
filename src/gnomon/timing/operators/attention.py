"""The attention half of a layer: full, over a latent, over chosen tokens, within a window, and linear."""

from collections.abc import Iterator
from dataclasses import replace

from gnomon.catalog.attention import AttentionKind
from gnomon.catalog.devices import DTYPE_BYTES
from gnomon.timing.operators.parts import Parts
from gnomon.timing.operators.work import ACTIVATION_BYTES, Decode, Gemm, Operator, Prefill, Recurrence

SUMS_OF_SQUARES = 8
"""Bytes per token that ranks reduce for a norm over all heads: one 32-bit sum of queries, one of keys."""


def attention_operators(parts: Parts, kind: AttentionKind) -> Iterator[Operator]:
    """Norm, projections, attention and its all-reduce in one layer of a kind."""
    m = parts.model
    if m.residual_streams > 1:  # At both halves of the layer: streams in, one out; one and streams in, streams out.
        yield parts.move("streams_in", 2 * (m.residual_streams + 1) * m.hidden_size)
        yield parts.move("streams_out", 2 * (2 * m.residual_streams + 1) * m.hidden_size)
    yield parts.move("attn_norm", 4 * m.hidden_size)
    if kind == "linear":
        yield from _linear(parts)
    elif kind == "full" and m.mla:
        yield from _latent(parts)
    elif m.compressed:
        yield from _compressed(parts, kind)
    else:
        yield from _heads(parts, kind)
    if m.post_norm:
        yield parts.move("attn_post_norm", 4 * m.hidden_size)
    if not m.parallel_attention:  # Else attention and MLP are summed before one all-reduce.
        yield from parts.reduce("attn_all_reduce")


def _heads(parts: Parts, kind: AttentionKind) -> Iterator[Operator]:
    """Keys and values of every token, or of those in a window."""
    m, ranks = parts.model, parts.ranks
    all_heads, all_kv_heads, qk, v = m.heads_of(kind)
    heads, kv_heads = all_heads // ranks, -(-all_kv_heads // ranks)
    values = 0 if m.shared_kv and kind == "full" else v
    queries = heads * qk * (2 if m.output_gate else 1)
    yield parts.gemm("qkv_proj", queries + kv_heads * (qk + values), m.hidden_size, "attention")
    if m.joint_qk_norm and ranks > 1:  # Two sums, which no compiler joins with what follows their all-reduce.
        yield parts.move("qk_norm_queries", heads * qk)
        yield parts.move("qk_norm_keys", kv_heads * qk)
        yield from parts.reduce("qk_norm_all_reduce", SUMS_OF_SQUARES)
    if m.qk_norm:
        yield parts.move("qk_norm", 2 * (heads + kv_heads) * qk)
    yield parts.move("rotary", 2 * (heads + kv_heads) * qk)
    kv_bytes = kv_heads * (qk + v) * DTYPE_BYTES[parts.kv_dtype]
    yield parts.move("kv_write", 2 * kv_bytes / ACTIVATION_BYTES)
    window = m.sliding.window if kind == "sliding" and m.sliding else 0
    if m.indexer and kind == "full":
        yield from _indexer(parts, m.hidden_size, max(1, m.indexer.num_heads // ranks))
        window = m.indexer.top_k
    name = "window" if kind == "sliding" else "attention"
    shape = (heads, kv_heads, qk, v, kv_bytes, window)
    yield Operator(f"{name}_prefill", "attention_prefill", 1, Prefill(*shape))
    yield Operator(f"{name}_decode", "attention_decode", 1, Decode(*shape))
    if m.output_gate:
        yield parts.move("output_gate", 3 * heads * v)
    yield from parts.quantize("o_quantize", heads * v, "attention_output")
    yield parts.gemm("o_proj", m.hidden_size, heads * v, "attention_output")


def _latent(parts: Parts) -> Iterator[Operator]:
    """One compressed vector per token: prompts expand it, decoding attends over it directly."""
    m, heads = parts.model, parts.model.num_heads // parts.ranks
    latent = m.mla
    assert latent is not None
    # Engines run both down-projections as one product.
    yield parts.gemm("qkv_a_proj", latent.q_rank + latent.kv_rank + latent.rope_dim, m.hidden_size, "attention")
    yield parts.move("latent_norm", 2 * (latent.q_rank + latent.kv_rank))
    if latent.q_rank:
        yield parts.gemm("q_b_proj", heads * m.qk_head_dim, latent.q_rank, "attention")
    else:
        yield parts.gemm("q_proj", heads * m.qk_head_dim, m.hidden_size, "attention")
    # The same weights expand a prompt's latents, or are applied to queries and outputs, head by head.
    expand = (heads * (latent.nope_dim + latent.v_dim), latent.kv_rank)
    absorbed = [("absorb_q", latent.kv_rank, latent.nope_dim), ("absorb_v", latent.v_dim, latent.kv_rank)]
    if not m.indexer:
        yield parts.gemm("kv_b_proj", *expand, "attention", "prompt_token")
    for name, n, k in absorbed:
        product = Gemm(n, k, parts.formats["attention"], heads)
        yield Operator(name, "token" if m.indexer else "decode", 1, product)
    yield parts.move("rotary", 2 * (heads + 1) * latent.rope_dim)
    width = latent.kv_rank + latent.rope_dim
    kv_bytes = width * DTYPE_BYTES[parts.kv_dtype]
    yield parts.move("kv_write", 2 * kv_bytes / ACTIVATION_BYTES)
    over_latent = (heads, 1, width, latent.kv_rank, kv_bytes)
    if m.indexer:
        yield from _indexer(parts, latent.q_rank or m.hidden_size, m.indexer.num_heads)
        chosen = m.indexer.top_k
        yield Operator("attention_prefill", "attention_prefill", 1, Prefill(*over_latent, chosen))
        yield Operator("attention_decode", "attention_decode", 1, Decode(*over_latent, chosen))
    else:
        expanded = Prefill(heads, heads, m.qk_head_dim, m.v_head_dim, kv_bytes)
        yield Operator("attention_prefill", "attention_prefill", 1, expanded)
        yield Operator("attention_decode", "attention_decode", 1, Decode(*over_latent))
    yield from parts.quantize("o_quantize", heads * latent.v_dim, "attention_output")
    yield parts.gemm("o_proj", m.hidden_size, heads * latent.v_dim, "attention_output")


_COMPRESSED = {"sliding": "window", "compressed": "hca", "compressed_sparse": "csa"}
"""What DeepSeek-V4 calls its kinds of attention: within a window, heavily compressed, compressed and sparse."""


def _compressed(parts: Parts, kind: AttentionKind) -> Iterator[Operator]:
    """One vector is key and value of all heads: of the last tokens, and compressed of all before."""
    m, ranks, name = parts.model, parts.ranks, _COMPRESSED[kind]
    c, d = m.compressed, m.head_dim
    assert c is not None
    heads, groups, ratio = m.num_heads // ranks, max(1, c.o_groups // ranks), c.ratio_of(kind)
    yield parts.gemm("qkv_a_proj", c.q_rank + d, m.hidden_size, "attention")
    yield parts.move("latent_norm", 2 * (c.q_rank + d))
    yield parts.gemm("q_b_proj", heads * d, c.q_rank, "attention")
    yield parts.move("rotary", 2 * (heads + 1) * c.rope_dim)
    entry = c.entry_bytes(d, parts.kv_dtype)
    yield parts.move("kv_write", 2 * entry / ACTIVATION_BYTES)
    chosen = 0
    if kind == "compressed_sparse":
        i = m.indexer
        assert i is not None
        chosen = i.top_k
        yield parts.gemm("indexer_q_proj", i.num_heads * i.head_dim, c.q_rank, "indexer")
        yield parts.gemm("indexer_k_proj", i.num_heads, m.hidden_size, "other")
        scores = (i.num_heads, 1, i.head_dim, 0, i.cache_bytes, 0, ratio)
        yield Operator("indexer_prefill", "attention_prefill", 1, Prefill(*scores))
        yield Operator("indexer_decode", "attention_decode", 1, Decode(*scores))
        # Values and gates of entries and of their index keys; every entry is made twice, from two stretches.
        yield parts.gemm("csa_compressor_proj", 4 * (d + i.head_dim), m.hidden_size, "other")
    elif ratio:
        yield parts.gemm("hca_compressor_proj", 2 * d, m.hidden_size, "other")
    shape = (heads, 1, d, d, entry, chosen, ratio, c.window) if ratio else (heads, 1, d, d, entry, c.window)
    yield Operator(f"{name}_prefill", "attention_prefill", 1, Prefill(*shape))
    yield Operator(f"{name}_decode", "attention_decode", 1, Decode(*shape))
    low_rank = Gemm(c.o_rank, heads * d // groups, parts.formats["attention_output"], groups)
    yield Operator("o_a_proj", "token", 1, low_rank)
    yield parts.gemm("o_proj", m.hidden_size, groups * c.o_rank, "attention_output")


def _indexer(parts: Parts, query_width: int, heads: int) -> Iterator[Operator]:
    """The scorer that picks the tokens to attend to; over latents every rank runs all of its heads."""
    m = parts.model
    assert m.indexer is not None
    i = m.indexer
    yield parts.gemm("indexer_q_proj", heads * i.head_dim, query_width, "indexer")
    yield parts.gemm("indexer_k_proj", i.head_dim + (heads if m.mla else 0), m.hidden_size, "indexer")
    scores = (heads, 1, i.head_dim, 0, i.cache_bytes)
    yield Operator("indexer_prefill", "attention_prefill", 1, Prefill(*scores))
    yield Operator("indexer_decode", "attention_decode", 1, Decode(*scores))


_KERNELS = {"gated_delta_net": "gdn", "mamba2": "mamba2", "kda": "kda"}


def _linear(parts: Parts) -> Iterator[Operator]:
    """A state of fixed size: prompts run in chunks, decodes step by step."""
    m, ranks = parts.model, parts.ranks
    linear = m.linear
    assert linear is not None
    k_heads, v_heads = max(1, linear.num_key_heads // ranks), max(1, linear.num_value_heads // ranks)
    keys, values = k_heads * linear.key_dim, v_heads * linear.value_dim
    if linear.kind == "kda":  # Decay and output gate go through a low rank, as wide as a head.
        yield parts.gemm("linear_in_proj", 2 * keys + values + v_heads, m.hidden_size, "linear_attention")
        yield parts.gemm("linear_gate_down_proj", 2 * linear.value_dim, m.hidden_size, "linear_attention")
        yield parts.gemm("linear_gate_proj", keys + values, linear.value_dim, "linear_attention")
    else:
        scalars = v_heads if linear.kind == "mamba2" else 2 * v_heads
        yield parts.gemm("linear_in_proj", 2 * keys + 2 * values + scalars, m.hidden_size, "linear_attention")
    kernel = _KERNELS[linear.kind]
    work = Recurrence(kernel, k_heads, v_heads, linear.key_dim, linear.value_dim, linear.conv_kernel)
    yield Operator("linear_prefill", "prompt_token", 1, work)
    yield Operator("linear_decode", "decode", 1, replace(work, is_step=True))
    yield parts.move("linear_norm", 3 * values)
    yield from parts.quantize("linear_quantize", values, "linear_attention")
    yield parts.gemm("linear_out_proj", m.hidden_size, values, "linear_attention")
