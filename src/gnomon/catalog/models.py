"""Language models as shapes: what a layer multiplies, and what it keeps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import NonNegativeInt, PositiveInt

from gnomon.catalog.devices import DTYPE_BYTES
from gnomon.core.config import Config

if TYPE_CHECKING:
    from gnomon.catalog.parallelism import Parallelism


class LatentAttention(Config):
    """Multi-head latent attention (DeepSeek): keys and values are kept as one compressed vector."""

    q_rank: NonNegativeInt
    """Width of the compressed query; 0 where queries are not compressed."""
    kv_rank: PositiveInt
    """Width of the compressed keys and values."""
    rope_dim: PositiveInt
    """Part of a key that carries the position and is shared by all heads."""
    nope_dim: PositiveInt
    """Part of each head's key without position."""
    v_dim: PositiveInt
    """Width of each head's value."""


class Model(Config):
    """The shape of one decoder-only transformer."""

    name: str
    hf_id: str = ""
    """The model's name on Hugging Face."""
    model_type: str = ""
    num_layers: PositiveInt
    hidden_size: PositiveInt
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    ffn_size: NonNegativeInt
    """Width of the dense MLP; 0 where every layer has experts only."""
    is_gated: bool = True
    """Two up-projections whose outputs are multiplied (SwiGLU), rather than one."""
    vocab_size: PositiveInt
    max_context_tokens: PositiveInt
    tied_embeddings: bool = False
    """The head uses the embedding's weights."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    norm_bias: bool = False
    """LayerNorm (weight and bias) rather than RMSNorm (weight)."""
    qk_norm: bool = False
    """Queries and keys are normalised per head."""
    parallel_attention: bool = False
    """Attention and MLP read the same normalised input (Phi), so a layer has one norm."""
    num_experts: NonNegativeInt = 0
    experts_per_token: NonNegativeInt = 0
    expert_ffn_size: NonNegativeInt = 0
    num_shared_experts: NonNegativeInt = 0
    """Experts that every token passes, each `expert_ffn_size` wide."""
    num_dense_layers: NonNegativeInt = 0
    """First layers that have a dense MLP instead of experts."""
    router_bias: bool = False
    mla: LatentAttention | None = None
    notes: tuple[str, ...] = ()
    """What of its `config.json` is not modelled."""

    @property
    def is_moe(self) -> bool:
        """Whether (some) layers have experts."""
        return self.num_experts > 0

    @property
    def num_projections(self) -> int:
        """Matrices of one MLP: up (and gate) and down."""
        return 3 if self.is_gated else 2

    def has_experts(self, layer: int) -> bool:
        """Whether this layer's MLP is a mixture of experts."""
        return self.is_moe and layer >= self.num_dense_layers

    @property
    def q_size(self) -> int:
        """Width of all heads' queries."""
        return self.num_heads * self.qk_head_dim

    @property
    def qk_head_dim(self) -> int:
        """Width over which one head's query meets a key."""
        return self.mla.nope_dim + self.mla.rope_dim if self.mla else self.head_dim

    @property
    def v_head_dim(self) -> int:
        """Width of one head's output."""
        return self.mla.v_dim if self.mla else self.head_dim

    # Parameters

    @property
    def num_attention_parameters(self) -> int:
        """Parameters of one layer's attention."""
        h = self.hidden_size
        if self.mla:
            m, heads = self.mla, self.num_heads
            q = h * m.q_rank + m.q_rank + m.q_rank * self.q_size if m.q_rank else h * self.q_size
            kv = h * (m.kv_rank + m.rope_dim) + m.kv_rank + m.kv_rank * heads * (m.nope_dim + m.v_dim)
            return q + kv + heads * m.v_dim * h
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        bias = (q + 2 * kv if self.qkv_bias else 0) + (h if self.o_bias else 0)
        return h * (q + 2 * kv) + q * h + bias + (2 * self.head_dim if self.qk_norm else 0)

    def num_mlp_parameters(self, ffn: int) -> int:
        """Parameters of one MLP of width `ffn`."""
        bias = (ffn * (self.num_projections - 1) + self.hidden_size) if self.mlp_bias else 0
        return self.num_projections * self.hidden_size * ffn + bias

    @property
    def num_norm_parameters(self) -> int:
        """Parameters of one norm over the hidden size."""
        return self.hidden_size * (2 if self.norm_bias else 1)

    def num_layer_parameters(self, layer: int, *, active: bool = False) -> int:
        """Parameters of one layer; with `active`, only of the experts that one token passes."""
        norms = self.num_norm_parameters * (1 if self.parallel_attention else 2)
        if not self.has_experts(layer):
            return self.num_attention_parameters + norms + self.num_mlp_parameters(self.ffn_size)
        experts = self.experts_per_token if active else self.num_experts
        expert = self.num_mlp_parameters(self.expert_ffn_size)
        router = self.num_experts * (self.hidden_size + (1 if self.router_bias else 0))
        return self.num_attention_parameters + norms + router + expert * (experts + self.num_shared_experts)

    @property
    def num_embedding_parameters(self) -> int:
        """Parameters of the embedding."""
        return self.vocab_size * self.hidden_size

    @property
    def num_head_parameters(self) -> int:
        """Parameters of the head and the last norm that are not the embedding's."""
        head = 0 if self.tied_embeddings else self.vocab_size * self.hidden_size
        return head + (self.vocab_size if self.head_bias else 0) + self.num_norm_parameters

    @property
    def num_parameters(self) -> int:
        """All parameters."""
        layers = sum(self.num_layer_parameters(layer) for layer in range(self.num_layers))
        return layers + self.num_embedding_parameters + self.num_head_parameters

    @property
    def num_active_parameters(self) -> int:
        """Parameters that take part in computing one token."""
        layers = sum(self.num_layer_parameters(layer, active=True) for layer in range(self.num_layers))
        return layers + self.num_embedding_parameters + self.num_head_parameters

    # Bytes

    def kv_bytes_per_layer(self, dtype: str = "bf16", tensor_parallel: int = 1) -> float:
        """KV cache bytes of one token in one layer on one rank; KV heads are replicated where they are too few."""
        if self.mla:  # One latent vector, which every rank needs whole.
            return (self.mla.kv_rank + self.mla.rope_dim) * DTYPE_BYTES[dtype]
        return 2 * math.ceil(self.num_kv_heads / tensor_parallel) * self.head_dim * DTYPE_BYTES[dtype]

    def kv_bytes_per_token(self, dtype: str = "bf16", tensor_parallel: int = 1) -> float:
        """KV cache bytes of one token in all layers on one tensor-parallel rank."""
        return self.num_layers * self.kv_bytes_per_layer(dtype, tensor_parallel)

    def weight_bytes_of_stage(self, parallelism: Parallelism, stage: int, dtype: str = "bf16") -> float:
        """Bytes of weights on one rank of one pipeline stage. Quantised formats keep embedding and head in bf16."""
        t = parallelism.tensor_parallel
        replicated = max(1.0, t / self.num_kv_heads) if not self.mla else 1.0
        kv = 0 if self.mla else 2 * self.hidden_size * self.num_kv_heads * self.head_dim
        body = 0.0
        for layer in parallelism.layers_of_stage(self, stage):
            attention = self.num_attention_parameters + kv * (replicated - 1.0)
            rest = self.num_layer_parameters(layer) - self.num_attention_parameters
            experts = self.num_experts * self.num_mlp_parameters(self.expert_ffn_size) if self.has_experts(layer) else 0
            body += (attention + rest - experts) / t + experts / parallelism.num_expert_ranks
        ends = self.num_embedding_parameters if stage == 0 else 0
        if stage == parallelism.pipeline_parallel - 1:
            ends += self.num_head_parameters
            if self.tied_embeddings and stage > 0:
                ends += self.num_embedding_parameters
        return body * DTYPE_BYTES[dtype] + ends / t * max(DTYPE_BYTES[dtype], 2.0)

    def weight_bytes_per_rank(self, parallelism: Parallelism, dtype: str = "bf16") -> float:
        """Bytes of weights on the fullest rank."""
        stages = range(parallelism.pipeline_parallel)
        return max(self.weight_bytes_of_stage(parallelism, stage, dtype) for stage in stages)
