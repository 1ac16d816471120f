"""The operator graph of a transformer under tensor, pipeline and expert parallelism, as plain data.

`stage_operators` lists what one rank of one pipeline stage runs in one iteration. An operator knows its name, by
which measured sources look it up, and its shape, from which `flops` and `bytes` follow for any batch.

| kind                | sizes that its time depends on                              |
|---------------------|-------------------------------------------------------------|
| `token`             | tokens of the iteration                                      |
| `sequence`          | sequences of the iteration                                   |
| `attention_prefill` | chunk, KV tokens before it                                   |
| `attention_decode`  | sequences, KV tokens of each                                 |
| `attention_mixed`   | chunk, KV before it, sequences, KV tokens of each            |
| `communication`     | bytes that one rank contributes (`bytes_each` x tokens or sequences) |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from gnomon.catalog.models import Model
from gnomon.catalog.parallelism import Parallelism
from gnomon.catalog.quantization import BF16, Quantization, WeightFormat, WeightGroup
from gnomon.catalog.topology import Group
from gnomon.core.arrays import Floats

Kind = Literal["token", "sequence", "attention_prefill", "attention_decode", "attention_mixed", "communication"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]

ACTIVATION_BYTES = 2.0  # Activations are bf16 or fp16 whatever the weights are.


@dataclass(frozen=True)
class Gemm:
    """[tokens, k] x [k, n]."""

    n: int
    k: int
    format: WeightFormat = BF16
    """How its weights are stored and multiplied."""

    def flops(self, rows: Floats) -> Floats:
        """Multiplications and additions."""
        return 2.0 * rows * self.n * self.k

    def bytes(self, rows: Floats) -> Floats:
        """Weights once, inputs and outputs once."""
        return self.n * self.k * self.format.bytes_per_weight + rows * (self.n + self.k) * ACTIVATION_BYTES


@dataclass(frozen=True)
class Elementwise:
    """Anything that only moves bytes: norms, activations, rotary embedding, copies."""

    bytes_each: float
    """Bytes read and written per token (or sequence)."""

    def flops(self, rows: Floats) -> Floats:
        """Not counted."""
        return np.zeros_like(rows)

    def bytes(self, rows: Floats) -> Floats:
        """Bytes read and written."""
        return rows * self.bytes_each


@dataclass(frozen=True)
class Experts:
    """The routed experts of one rank: a grouped matrix multiplication over those that some token chose."""

    num_experts: int
    """Of the layer."""
    num_local: int
    """On this rank."""
    per_token: int
    hidden: int
    ffn: int
    """Width of each on this rank."""
    projections: int
    format: WeightFormat = BF16

    def touched(self, tokens: Floats) -> Floats:
        """Expected number of local experts that at least one of `tokens` chooses, choices being even."""
        return self.num_local * (1.0 - (1.0 - self.per_token / self.num_experts) ** tokens)

    def routed(self, tokens: Floats) -> Floats:
        """Expected rows over all local experts."""
        return tokens * self.per_token * self.num_local / self.num_experts

    def flops(self, tokens: Floats) -> Floats:
        """Multiplications and additions."""
        return 2.0 * self.routed(tokens) * self.projections * self.hidden * self.ffn

    def bytes(self, tokens: Floats) -> Floats:
        """The touched experts' weights, and each row through up-projection, activation, down-projection and sum."""
        weights = self.touched(tokens) * self.projections * self.hidden * self.ffn * self.format.bytes_per_weight
        return weights + self.routed(tokens) * (3 * self.hidden + 2 * self.projections * self.ffn) * ACTIVATION_BYTES


@dataclass(frozen=True)
class Attention:
    """Scaled dot-product attention of one rank's heads against paged keys and values."""

    num_heads: int
    num_kv_heads: int
    qk_dim: int
    v_dim: int
    kv_bytes: float
    """Bytes per token that decoding reads from the cache."""

    @property
    def flops_per_pair(self) -> float:
        """FLOPs of one query position meeting one key position, over all heads."""
        return 2.0 * self.num_heads * (self.qk_dim + self.v_dim)

    @property
    def io_bytes(self) -> float:
        """Bytes of queries in and outputs out, per token."""
        return self.num_heads * (self.qk_dim + self.v_dim) * ACTIVATION_BYTES


@dataclass(frozen=True)
class Prefill(Attention):
    """Attention of a chunk of a prompt: causal within the chunk, full over what lies before."""

    def flops(self, chunk: Floats, kv: Floats) -> Floats:
        """Half of the chunk's own square, and all pairs with the KV before it."""
        return self.flops_per_pair * chunk * (kv + 0.5 * chunk)

    def bytes(self, chunk: Floats, kv: Floats) -> Floats:
        """Queries, outputs, and the KV once."""
        return chunk * self.io_bytes + (chunk + kv) * self.kv_bytes


@dataclass(frozen=True)
class Decode(Attention):
    """Attention of one new token per sequence."""

    def flops(self, sequences: Floats, kv: Floats) -> Floats:
        """Every sequence meets its own KV."""
        return self.flops_per_pair * sequences * kv

    def bytes(self, sequences: Floats, kv: Floats) -> Floats:
        """Every sequence reads its own KV."""
        return sequences * (kv * self.kv_bytes + self.io_bytes)


@dataclass(frozen=True)
class Mixed(Attention):
    """A chunk and some decodes in one kernel."""

    def flops(self, chunk: Floats, kv: Floats, sequences: Floats, decode_kv: Floats) -> Floats:
        """Both parts."""
        return self.flops_per_pair * (chunk * (kv + 0.5 * chunk) + sequences * decode_kv)

    def bytes(self, chunk: Floats, kv: Floats, sequences: Floats, decode_kv: Floats) -> Floats:
        """Both parts."""
        return (chunk + sequences) * self.io_bytes + (chunk + kv + sequences * decode_kv) * self.kv_bytes


@dataclass(frozen=True)
class Communication:
    """A collective (or a transfer to the next stage) between the ranks of a group."""

    collective: Collective
    group: Group
    bytes_each: float
    """Bytes that one rank contributes per token or sequence."""
    per: Literal["token", "sequence"] = "token"

    def flops(self, num_bytes: Floats) -> Floats:
        """None."""
        return np.zeros_like(num_bytes)

    def bytes(self, num_bytes: Floats) -> Floats:
        """The message itself."""
        return num_bytes


Work = Gemm | Elementwise | Experts | Prefill | Decode | Mixed | Communication


@dataclass(frozen=True)
class Operator:
    """One kernel of one rank, and how often an iteration runs it."""

    name: str
    kind: Kind
    count: int
    """Calls per iteration in this stage."""
    work: Work
    is_fused: bool = False
    """Part of a neighbour's kernel in today's engines: free unless a source measured it on its own."""
    is_shared: bool = False
    """Runs on the tokens of the whole data-parallel group, in lockstep."""

    def flops(self, *sizes: Floats) -> Floats:
        """FLOPs of one call."""
        return self.work.flops(*sizes)

    def bytes(self, *sizes: Floats) -> Floats:
        """Bytes of memory traffic (or of the message) of one call."""
        return self.work.bytes(*sizes)


def stage_operators(
    model: Model, parallelism: Parallelism, stage: int = 0, *, dtype: str = "auto", kv_dtype: str = "auto"
) -> list[Operator]:
    """What one rank of pipeline stage `stage` runs in one iteration, in order of execution."""
    kinds = model.kinds(parallelism.layers_of_stage(model, stage))
    num_attention = sum(count for (attention, _), count in kinds.items() if attention != "none")
    num_dense, num_moe = (sum(n for (_, mlp), n in kinds.items() if mlp == kind) for kind in ("dense", "experts"))
    cached = model.kv_bytes_per_layer(model.kv_precision(kv_dtype, dtype), parallelism.tensor_parallel)
    graph = _Graph(model, parallelism, stage, model.precision(dtype), cached)
    is_last = stage == parallelism.pipeline_parallel - 1
    operators = [
        *(graph.embedding() if stage == 0 else ()),
        *(replace(one, count=one.count * num_attention) for one in graph.attention()),
        *(replace(one, count=one.count * num_dense) for one in graph.mlp()),
        *(replace(one, count=one.count * num_moe) for one in graph.experts() if model.is_moe),
        *(graph.head() if is_last else graph.handover()),
    ]
    return [one for one in operators if one.count > 0]


@dataclass(frozen=True)
class _Graph:
    """The parts of the graph; counts are per layer."""

    model: Model
    parallelism: Parallelism
    stage: int
    formats: Quantization
    kv_bytes: float

    @property
    def _ranks(self) -> int:
        return self.parallelism.tensor_parallel

    def _gemm(self, name: str, n: int, k: int, group: WeightGroup) -> Operator:
        return Operator(name, "token", 1, Gemm(n, k, self.formats[group]))

    def _move(self, name: str, elements: float, *, fused: bool = False) -> Operator:
        return Operator(name, "token", 1, Elementwise(elements * ACTIVATION_BYTES), is_fused=fused)

    def _reduce(self, name: str) -> Iterator[Operator]:
        if self._ranks > 1:
            hidden = self.model.hidden_size * ACTIVATION_BYTES
            group = self.parallelism.tensor_group(self.stage)
            yield Operator(name, "communication", 1, Communication("all_reduce", group, hidden))

    def embedding(self) -> Iterator[Operator]:
        yield self._move("embedding", 2 * self.model.hidden_size)
        yield from self._reduce("embedding_all_reduce")

    def attention(self) -> Iterator[Operator]:
        """Norm, projections, attention and its all-reduce."""
        m, ranks = self.model, self._ranks
        heads, kv_heads = m.num_heads // ranks, -(-m.num_kv_heads // ranks)
        yield self._move("attn_norm", 4 * m.hidden_size)
        if m.mla:
            yield from self._latent_projections(heads)
        else:
            queries = heads * (2 if m.output_gate else 1)
            yield self._gemm("qkv_proj", (queries + 2 * kv_heads) * m.head_dim, m.hidden_size, "attention")
            if m.qk_norm:
                yield self._move("qk_norm", 2 * (heads + kv_heads) * m.head_dim)
            yield self._move("rotary", 2 * (heads + kv_heads) * m.head_dim)
        yield self._move("kv_write", 2 * self.kv_bytes / ACTIVATION_BYTES)
        yield Operator("attention_prefill", "attention_prefill", 1, self._prefill(heads, kv_heads))
        yield Operator("attention_decode", "attention_decode", 1, self._decode(heads, kv_heads))
        yield self._gemm("o_proj", m.hidden_size, heads * m.v_head_dim, "attention_output")
        if not m.parallel_attention:  # Else attention and MLP are summed before one all-reduce.
            yield from self._reduce("attn_all_reduce")

    def _latent_projections(self, heads: int) -> Iterator[Operator]:
        m = self.model
        latent = m.mla
        assert latent is not None
        q_in = latent.q_rank or m.hidden_size
        if latent.q_rank:
            yield self._gemm("q_a_proj", latent.q_rank, m.hidden_size, "attention")
        yield self._gemm("q_b_proj", heads * m.qk_head_dim, q_in, "attention")
        yield self._gemm("kv_a_proj", latent.kv_rank + latent.rope_dim, m.hidden_size, "attention")
        # Prefill expands the latent; decoding applies the same weights to queries and outputs instead.
        yield self._gemm("kv_b_proj", heads * (latent.nope_dim + latent.v_dim), latent.kv_rank, "attention")
        yield self._move("rotary", 2 * (heads + 1) * latent.rope_dim)

    def _prefill(self, heads: int, kv_heads: int) -> Prefill:
        return Prefill(heads, kv_heads, self.model.qk_head_dim, self.model.v_head_dim, self.kv_bytes)

    def _decode(self, heads: int, kv_heads: int) -> Decode:
        latent = self.model.mla
        if latent:  # Absorbed: every head attends over the latent itself.
            return Decode(heads, 1, latent.kv_rank + latent.rope_dim, latent.kv_rank, self.kv_bytes)
        return Decode(heads, kv_heads, self.model.head_dim, self.model.head_dim, self.kv_bytes)

    def mlp(self) -> Iterator[Operator]:
        """A dense MLP with its norm and all-reduce."""
        m = self.model
        ffn = m.ffn_size // self._ranks
        if not m.parallel_attention:
            yield self._move("mlp_norm", 4 * m.hidden_size)
        ups = m.num_projections - 1
        yield self._gemm("up_proj", ups * ffn, m.hidden_size, "dense_mlp")
        yield self._move("act", (ups + 1) * ffn)
        yield self._gemm("down_proj", m.hidden_size, ffn, "dense_mlp")
        yield self._move("residual_add", 3 * m.hidden_size, fused=True)
        yield from self._reduce("mlp_all_reduce")

    def experts(self) -> Iterator[Operator]:
        """A mixture of experts with its norm, router and communication."""
        m, p = self.model, self.parallelism
        yield self._move("mlp_norm", 4 * m.hidden_size)
        yield self._gemm("router", m.num_experts, m.hidden_size, "router")
        if m.shared_ffn_size:
            yield from self._shared_experts()
        is_grouped = p.data_parallel > 1
        if is_grouped:
            yield self._exchange("expert_dispatch", "all_to_all" if p.expert_parallel else "all_gather")
        local = m.num_experts // p.num_expert_ranks if p.expert_parallel else m.num_experts
        ffn = m.expert_ffn_size if p.expert_parallel else m.expert_ffn_size // p.num_expert_ranks
        hidden = m.expert_hidden_size or m.hidden_size
        each = (hidden, ffn, m.num_projections, self.formats["routed_experts"])
        work = Experts(m.num_experts, local, m.experts_per_token, *each)
        yield Operator("experts", "token", 1, work, is_shared=is_grouped)
        if is_grouped:
            yield self._exchange("expert_combine", "all_to_all" if p.expert_parallel else "reduce_scatter")
        else:
            yield from self._reduce("mlp_all_reduce")
        yield self._move("residual_add", 3 * m.hidden_size, fused=True)

    def _shared_experts(self) -> Iterator[Operator]:
        m = self.model
        ffn, ups = m.shared_ffn_size // self._ranks, m.num_projections - 1
        yield self._gemm("shared_up_proj", ups * ffn, m.hidden_size, "shared_experts")
        yield self._move("shared_act", (ups + 1) * ffn)
        yield self._gemm("shared_down_proj", m.hidden_size, ffn, "shared_experts")

    def _exchange(self, name: str, collective: Collective) -> Operator:
        """Tokens to their experts and back. The group's tokens are spread evenly over the ranks."""
        m, group = self.model, self.parallelism.expert_group(self.stage)
        ranks = group.size
        copies = {"all_to_all": min(m.experts_per_token, ranks), "all_gather": 1}.get(collective, ranks)
        hidden = m.hidden_size * ACTIVATION_BYTES * copies / ranks
        return Operator(name, "communication", 1, Communication(collective, group, hidden), is_shared=True)

    def head(self) -> Iterator[Operator]:
        """Last norm, head and sampler."""
        m, vocab = self.model, -(-self.model.vocab_size // self._ranks)
        yield self._move("final_norm", 4 * m.hidden_size)
        yield Operator("lm_head", "sequence", 1, Gemm(vocab, m.hidden_size, self.formats["head"]))
        if self._ranks > 1:
            group = self.parallelism.tensor_group(self.stage)
            gather = Communication("all_gather", group, vocab * ACTIVATION_BYTES, "sequence")
            yield Operator("logits_all_gather", "communication", 1, gather)
        # Logits to float32, log-softmax, arg-max: about four passes of four bytes.
        yield Operator("sampler", "sequence", 1, Elementwise(16.0 * m.vocab_size))

    def handover(self) -> Iterator[Operator]:
        """Activations to the next pipeline stage."""
        hidden = self.model.hidden_size * ACTIVATION_BYTES
        group = self.parallelism.handover_group(self.stage)
        yield Operator("send_recv", "communication", 1, Communication("send_recv", group, hidden))


def mixed_attention(operators: list[Operator]) -> Operator:
    """The operator for a chunk and decodes in one kernel, to ask a source that measured such batches."""
    prefill = next(one for one in operators if one.kind == "attention_prefill")
    w = prefill.work
    assert isinstance(w, Prefill)
    work = Mixed(w.num_heads, w.num_kv_heads, w.qk_dim, w.v_dim, w.kv_bytes)
    return replace(prefill, name="attention_mixed", kind="attention_mixed", work=work)
