"""The shape of a language model: its layers, their kinds and widths."""

from __future__ import annotations

from collections import Counter

from pydantic import model_validator

from gnomon.catalog.attention import (
    AttentionFamily,
    AttentionKind,
    CompressedAttention,
    Indexer,
    LatentAttention,
    LinearAttention,
    MlpKind,
    SlidingWindow,
)
from gnomon.catalog.quantization import Quantization, scheme
from gnomon.core.config import Config
from gnomon.core.sizes import Count, CountOrNone, Layers, Tokens


class ModelShape(Config):
    """The widths and kinds of layers of one decoder-only transformer."""

    name: str
    hf_id: str = ""
    """The model's name on Hugging Face."""
    model_type: str = ""
    num_layers: Layers
    hidden_size: Count
    num_heads: Count
    num_kv_heads: Count
    head_dim: Count
    ffn_size: CountOrNone
    """Width of the dense MLP; 0 where every layer has experts only."""
    is_gated: bool = True
    """Two up-projections whose outputs are multiplied (SwiGLU), rather than one."""
    vocab_size: Count
    max_context_tokens: Tokens
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
    joint_qk_norm: bool = False
    """They are normalised over all heads together instead (MiniMax): tensor-parallel ranks add up their squares."""
    parallel_attention: bool = False
    """Attention and MLP read the same normalised input (Phi), so a layer has one norm."""
    num_experts: CountOrNone = 0
    experts_per_token: CountOrNone = 0
    expert_ffn_size: CountOrNone = 0
    expert_hidden_size: CountOrNone = 0
    """Width to which tokens are projected before their experts (and back after); 0 where experts read them whole."""
    shared_ffn_size: CountOrNone = 0
    """Width of the experts that every token passes, all of them together."""
    shared_gate: bool = False
    """The shared experts' output is scaled by a gate of its own (Qwen)."""
    num_dense_layers: CountOrNone = 0
    """First layers that have a dense MLP instead of experts."""
    router_bias: bool = False
    attention_layers: tuple[AttentionKind, ...] = ("full",)
    """Kinds of the layers' attention, repeated until the last layer."""
    mlp_layers: tuple[MlpKind, ...] = ()
    """Kinds of the layers' MLPs, repeated; empty: experts after the first dense layers, or dense ones only."""
    mla: LatentAttention | None = None
    """The full layers keep a compressed vector."""
    indexer: Indexer | None = None
    """The full layers look at the tokens that it picks."""
    sliding: SlidingWindow | None = None
    linear: LinearAttention | None = None
    compressed: CompressedAttention | None = None
    """All layers keep one vector per token or for several (DeepSeek-V4)."""
    residual_streams: Count = 1
    """Residual streams side by side, mixed before and after every half of a layer (DeepSeek-V4)."""
    output_gate: bool = False
    """Attention's output is multiplied by a gate as wide as the queries, from the same projection (Qwen3.5)."""
    shared_kv: bool = False
    """The full layers' values come from the keys' projection (Gemma 4); the cache keeps both."""
    post_norm: bool = False
    """Outputs of attention and MLP are normalised too (Gemma)."""
    num_mtp_layers: CountOrNone = 0
    """Further layers that predict later tokens (speculative decoding); not part of the model proper."""
    checkpoint: Quantization = scheme("bf16")
    """Number formats in which its weights are published."""
    schemes: tuple[str, ...] = ()
    """How other published checkpoints of it are quantised."""
    notes: tuple[str, ...] = ()
    """What of its `config.json` is not modelled."""

    @model_validator(mode="after")
    def _kinds_have_shapes(self) -> ModelShape:
        for kind, shape in (("sliding", self.sliding), ("linear", self.linear)):
            if (kind in self.attention_layers) != (shape is not None):
                raise ValueError(f"{kind} layers and their shape are given together")
        if any(kind.startswith("compressed") for kind in self.attention_layers) != (self.compressed is not None):
            raise ValueError("compressed layers and their shape are given together")
        return self

    def attention_kind(self, layer: int) -> AttentionKind:
        """What kind of attention a layer has."""
        return self.attention_layers[layer % len(self.attention_layers)]

    def mlp_kind(self, layer: int) -> MlpKind:
        """What kind of MLP a layer has."""
        if self.mlp_layers:
            return self.mlp_layers[layer % len(self.mlp_layers)]
        return "experts" if self.is_moe and layer >= self.num_dense_layers else "dense"

    def kinds(self, layers: range | None = None) -> Counter[tuple[AttentionKind, MlpKind]]:
        """How many of `layers` (all, if not given) have which attention and MLP."""
        layers = range(self.num_layers) if layers is None else layers
        return Counter((self.attention_kind(layer), self.mlp_kind(layer)) for layer in layers)

    def num_attention_layers(self, kind: AttentionKind, layers: range | None = None) -> int:
        """How many of `layers` (all, if not given) have this kind of attention."""
        return sum(count for (attention, _), count in self.kinds(layers).items() if attention == kind)

    @property
    def attention_family(self) -> AttentionFamily:
        """What is peculiar in its attention, by which engine presets may tell models apart."""
        if self.indexer or self.compressed:
            return "sparse"
        if self.linear:
            return "linear"
        if self.mla:
            return "latent"
        return "window" if self.sliding else "grouped"

    @property
    def is_moe(self) -> bool:
        """Whether (some) layers have experts."""
        return self.num_experts > 0

    @property
    def num_projections(self) -> int:
        """Matrices of one MLP: up (and gate) and down."""
        return 3 if self.is_gated else 2

    @property
    def q_size(self) -> int:
        """Width of all heads' queries in a full layer."""
        return self.num_heads * self.qk_head_dim

    @property
    def qk_head_dim(self) -> int:
        """Width over which one head's query meets a key."""
        return self.mla.nope_dim + self.mla.rope_dim if self.mla else self.head_dim

    @property
    def v_head_dim(self) -> int:
        """Width of one head's output."""
        return self.mla.v_dim if self.mla else self.head_dim

    def heads_of(self, kind: AttentionKind) -> tuple[int, int, int, int]:
        """Query heads, KV heads, width of a key and of a value in layers of a kind (full or sliding)."""
        if kind == "sliding" and self.sliding:
            s = self.sliding
            return s.num_heads, s.num_kv_heads, s.head_dim, s.v_head_dim
        return self.num_heads, self.num_kv_heads, self.qk_head_dim, self.v_head_dim

    @property
    def num_norm_parameters(self) -> int:
        """Parameters of one norm over the hidden size."""
        return self.hidden_size * (2 if self.norm_bias else 1)

    @property
    def num_expert_parameters(self) -> int:
        """Parameters of one routed expert."""
        hidden = self.expert_hidden_size or self.hidden_size
        bias = (self.expert_ffn_size * (self.num_projections - 1) + hidden) if self.mlp_bias else 0
        return self.num_projections * hidden * self.expert_ffn_size + bias
