"""The matrices of a model, counted: how many weights of which group a layer has, and how they are split."""

from collections.abc import Iterator
from dataclasses import dataclass

from gnomon.catalog.attention import AttentionKind, LinearAttention, MlpKind
from gnomon.catalog.quantization import WeightGroup
from gnomon.catalog.shape import ModelShape


@dataclass(frozen=True)
class Weights:
    """Parameters of one layer that lie in one group."""

    group: WeightGroup
    count: int
    ways: int | None = None
    """Into how many parts tensor parallelism can cut them; 1 where every rank holds all, None where any number does."""

    def per_rank(self, tensor_parallel: int) -> float:
        """How many of them one tensor-parallel rank holds."""
        return self.count / (tensor_parallel if self.ways is None else min(tensor_parallel, self.ways))


def layer_weights(model: ModelShape, attention: AttentionKind, mlp: MlpKind) -> list[Weights]:
    """All weights of a layer with these kinds of attention and MLP."""
    return [*attention_weights(model, attention), *mlp_weights(model, mlp)]


def attention_weights(model: ModelShape, kind: AttentionKind) -> Iterator[Weights]:
    """Weights of one layer's attention with its norm."""
    if kind == "none":
        return
    yield Weights("other", model.num_norm_parameters * (2 if model.post_norm else 1), 1)
    if kind == "linear":
        assert model.linear is not None
        yield from _linear(model.linear, model.hidden_size)
    elif kind == "full" and model.mla:
        yield from _latent(model)
    elif model.compressed:
        yield from _compressed(model, kind)
    else:
        yield from _heads(model, kind)


def _heads(model: ModelShape, kind: AttentionKind) -> Iterator[Weights]:
    h = model.hidden_size
    heads, kv_heads, qk, v = model.heads_of(kind)
    values = 0 if model.shared_kv and kind == "full" else v
    yield Weights("attention", h * heads * qk * (2 if model.output_gate else 1))
    yield Weights("attention", h * kv_heads * (qk + values), kv_heads)
    yield Weights("attention_output", heads * v * h)
    if model.qkv_bias:
        yield Weights("other", heads * qk + kv_heads * (qk + v))
    if model.o_bias:
        yield Weights("other", h)
    if model.qk_norm:
        yield Weights("other", (heads + kv_heads if model.joint_qk_norm else 2) * qk, 1)
    if model.indexer and kind == "full":  # MiniMax: one for each group of heads.
        i = model.indexer
        yield Weights("indexer", h * i.num_heads * i.head_dim, i.num_heads)
        yield Weights("indexer", h * i.head_dim, 1)
        yield Weights("other", 2 * i.head_dim, 1)


def _latent(model: ModelShape) -> Iterator[Weights]:
    m, h, heads = model.mla, model.hidden_size, model.num_heads
    assert m is not None
    if m.q_rank:
        yield Weights("attention", h * m.q_rank, 1)
        yield Weights("other", m.q_rank, 1)
    yield Weights("attention", (m.q_rank or h) * model.q_size)
    yield Weights("attention", h * (m.kv_rank + m.rope_dim), 1)
    yield Weights("other", m.kv_rank, 1)
    yield Weights("attention", m.kv_rank * heads * (m.nope_dim + m.v_dim))
    yield Weights("attention_output", heads * m.v_dim * h)
    if model.indexer:
        i = model.indexer
        yield Weights("indexer", (m.q_rank or h) * i.num_heads * i.head_dim + h * i.head_dim, 1)
        yield Weights("other", h * i.num_heads + 2 * i.head_dim, 1)


def _compressed(model: ModelShape, kind: AttentionKind) -> Iterator[Weights]:
    c, h, heads, d = model.compressed, model.hidden_size, model.num_heads, model.head_dim
    assert c is not None
    yield Weights("attention", h * (c.q_rank + d), 1)
    yield Weights("attention", c.q_rank * heads * d)
    yield Weights("attention_output", heads * d * c.o_rank)
    yield Weights("attention_output", c.o_groups * c.o_rank * h, c.o_groups)
    yield Weights("other", c.q_rank + d + heads, 1)
    ratio, copies = c.ratio_of(kind), 2 if kind == "compressed_sparse" else 1
    widths = [d] if ratio else []
    if kind == "compressed_sparse":
        i = model.indexer
        assert i is not None
        widths.append(i.head_dim)
        yield Weights("indexer", c.q_rank * i.num_heads * i.head_dim, 1)
        yield Weights("other", h * i.num_heads, 1)
    for width in widths:  # Values and gates of the compressor, its positions, its norm.
        yield Weights("other", copies * width * (2 * h + ratio) + width, 1)
    n = model.residual_streams
    if n > 1:  # How streams are mixed: before, after and among them, at both halves of the layer.
        yield Weights("other", 2 * ((2 + n) * n * (n * h + 1) + 3), 1)


def _linear(linear: LinearAttention, h: int) -> Iterator[Weights]:
    keys, values, heads = linear.key_size, linear.value_size, linear.num_value_heads
    biases = keys if linear.kind == "kda" else heads  # Of the decay, which KDA has for every channel of a key.
    yield Weights("other", linear.conv_channels * linear.conv_kernel + heads + biases)
    yield Weights("linear_attention", h * 2 * keys, linear.num_key_heads)
    if linear.kind == "kda":  # Decay and output gate each go through a low rank, as wide as a head, whole on each rank.
        yield Weights("linear_attention", h * (values + heads))
        yield Weights("linear_attention", 2 * h * linear.value_dim, 1)
        yield Weights("linear_attention", linear.value_dim * (keys + values))
    else:  # Values and gate; a step size per head (Mamba-2), or that and a decay (Gated DeltaNet).
        scalars = heads if linear.kind == "mamba2" else 2 * heads
        yield Weights("linear_attention", h * (2 * values + scalars))
    if linear.kind == "mamba2":  # Bias of the convolution, skip connection, norm over all heads.
        yield Weights("other", linear.conv_channels + heads + values)
    else:
        yield Weights("other", linear.value_dim, 1)
    yield Weights("linear_attention", values * h)


def mlp_weights(model: ModelShape, kind: MlpKind, *, active: bool = False) -> Iterator[Weights]:
    """Weights of one layer's MLP or experts with their norm; with `active`, of the experts that one token passes."""
    if kind == "none":
        return
    h = model.hidden_size
    if not model.parallel_attention:
        yield Weights("other", model.num_norm_parameters * (2 if model.post_norm else 1), 1)
    if kind == "dense":
        yield from _mlp(model, "dense_mlp", h, model.ffn_size)
        return
    yield Weights("router", model.num_experts * h, 1)
    yield Weights("other", model.num_experts if model.router_bias else 0, 1)
    experts = model.experts_per_token if active else model.num_experts
    yield Weights("routed_experts", experts * model.num_expert_parameters)
    if model.expert_hidden_size:
        yield Weights("shared_experts", 2 * h * model.expert_hidden_size, 1)
    if model.shared_ffn_size:
        yield from _mlp(model, "shared_experts", h, model.shared_ffn_size)
        yield Weights("router", h if model.shared_gate else 0, 1)


def _mlp(model: ModelShape, group: WeightGroup, hidden: int, ffn: int) -> Iterator[Weights]:
    yield Weights(group, model.num_projections * hidden * ffn)
    if model.mlp_bias:
        yield Weights("other", ffn * (model.num_projections - 1) + hidden)
