"""Language models as shapes: what a layer multiplies, and what it keeps."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from pydantic import model_validator

from gnomon.catalog.attention import AttentionKind, Indexer, LatentAttention, LinearAttention, MlpKind, SlidingWindow
from gnomon.catalog.devices import DTYPE_BYTES
from gnomon.catalog.quantization import Quantization, WeightFormat, WeightGroup, scheme
from gnomon.catalog.weights import Weights, attention_weights, layer_weights, mlp_weights
from gnomon.core.config import Config
from gnomon.core.errors import ConfigError
from gnomon.core.sizes import Count, CountOrNone, Layers, Tokens

if TYPE_CHECKING:
    from gnomon.catalog.parallelism import Parallelism


class Model(Config):
    """The shape of one decoder-only transformer."""

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
    def _kinds_have_shapes(self) -> Model:
        for kind, shape in (("sliding", self.sliding), ("linear", self.linear)):
            if (kind in self.attention_layers) != (shape is not None):
                raise ValueError(f"{kind} layers and their shape are given together")
        return self

    # Layers

    def attention_kind(self, layer: int) -> AttentionKind:
        """What kind of attention a layer has."""
        return self.attention_layers[layer % len(self.attention_layers)]

    def mlp_kind(self, layer: int) -> MlpKind:
        """What kind of MLP a layer has."""
        if self.mlp_layers:
            return self.mlp_layers[layer % len(self.mlp_layers)]
        return "experts" if self.is_moe and layer >= self.num_dense_layers else "dense"

    def has_experts(self, layer: int) -> bool:
        """Whether this layer's MLP is a mixture of experts."""
        return self.mlp_kind(layer) == "experts"

    def kinds(self, layers: range | None = None) -> Counter[tuple[AttentionKind, MlpKind]]:
        """How many of `layers` (all, if not given) have which attention and MLP."""
        layers = range(self.num_layers) if layers is None else layers
        return Counter((self.attention_kind(layer), self.mlp_kind(layer)) for layer in layers)

    def num_attention_layers(self, kind: AttentionKind, layers: range | None = None) -> int:
        """How many of `layers` (all, if not given) have this kind of attention."""
        return sum(count for (attention, _), count in self.kinds(layers).items() if attention == kind)

    # Shapes

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

    # Number formats

    def precision(self, dtype: str = "auto") -> Quantization:
        """The number formats that `dtype` means for this model.

        auto: the checkpoint's own. A number format (fp8) or scheme (nvfp4) means the checkpoint that is published in
        it, where one is known, else the scheme of that name in `data/quantization.yaml`.
        """
        own = self.checkpoint
        if dtype in ("auto", own.name, own.dtype) or own.name.startswith(f"{dtype}_"):
            return own
        for name in self.schemes:
            if dtype in (name, scheme(name).dtype) or name.startswith(f"{dtype}_"):
                return scheme(name)
        wanted = scheme(dtype)
        if not self.is_moe and wanted["dense_mlp"].bytes_per_weight == 2.0 and wanted.dtype not in ("bf16", "fp16"):
            raise ConfigError(
                f"{dtype} quantises routed experts only, and {self.name} has none.",
                where="dtype",
                fix="Use a number format for all layers, such as fp8 or int4.",
            )
        return wanted

    def format_of(self, group: WeightGroup, dtype: str = "auto") -> WeightFormat:
        """How the weights of one group are stored and multiplied."""
        return self.precision(dtype)[group]

    def kv_precision(self, kv_dtype: str = "auto", dtype: str = "auto") -> str:
        """The KV cache's number format; auto: what the checkpoint asks for, else bf16."""
        return (self.precision(dtype).kv_dtype or "bf16") if kv_dtype == "auto" else kv_dtype

    # Parameters

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

    def num_layer_parameters(self, layer: int, *, active: bool = False) -> int:
        """Parameters of one layer; with `active`, only of the experts that one token passes."""
        attention = attention_weights(self, self.attention_kind(layer))
        mlp = mlp_weights(self, self.mlp_kind(layer), active=active)
        return sum(one.count for one in (*attention, *mlp))

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
        """All parameters of the model proper, without its MTP layers."""
        layers = sum(self.num_layer_parameters(layer) for layer in range(self.num_layers))
        return layers + self.num_embedding_parameters + self.num_head_parameters

    @property
    def num_active_parameters(self) -> int:
        """Parameters that take part in computing one token."""
        layers = sum(self.num_layer_parameters(layer, active=True) for layer in range(self.num_layers))
        return layers + self.num_embedding_parameters + self.num_head_parameters

    @property
    def num_mtp_parameters(self) -> int:
        """Parameters of the layers that predict later tokens; embedding and head are the model's."""
        join = 2 * self.hidden_size**2 + 3 * self.num_norm_parameters
        layer = layer_weights(self, "full", "experts" if self.is_moe else "dense")
        return self.num_mtp_layers * (join + sum(one.count for one in layer))

    # Bytes

    def kv_bytes_per_layer(self, dtype: str = "auto", tensor_parallel: int = 1, kind: AttentionKind = "full") -> float:
        """KV cache bytes of one token in one layer of a kind on one rank; KV heads are replicated where too few."""
        if kind not in ("full", "sliding"):
            return 0.0
        each = DTYPE_BYTES[self.kv_precision(dtype)]
        if self.mla and kind == "full":  # One latent vector, which every rank needs whole.
            index = self.indexer.cache_bytes if self.indexer else 0.0
            return (self.mla.kv_rank + self.mla.rope_dim) * each + index
        _, kv_heads, qk, v = self.heads_of(kind)
        return math.ceil(kv_heads / tensor_parallel) * (qk + v) * each

    def kv_bytes_per_token(self, dtype: str = "auto", tensor_parallel: int = 1, layers: range | None = None) -> float:
        """KV cache bytes of one token in all full layers (of `layers`) on one tensor-parallel rank."""
        return self.num_attention_layers("full", layers) * self.kv_bytes_per_layer(dtype, tensor_parallel)

    def window_bytes_per_token(
        self, dtype: str = "auto", tensor_parallel: int = 1, layers: range | None = None
    ) -> float:
        """KV cache bytes of one token in all sliding layers, which keep those of the last `sliding.window` tokens."""
        return self.num_attention_layers("sliding", layers) * self.kv_bytes_per_layer(dtype, tensor_parallel, "sliding")

    def state_bytes_per_sequence(self, tensor_parallel: int = 1, layers: range | None = None) -> float:
        """Bytes of one sequence's states in all linear layers on one rank, whatever its length."""
        each = self.linear.state_bytes(tensor_parallel) if self.linear else 0.0
        return self.num_attention_layers("linear", layers) * each

    def sequence_bytes(
        self, tokens: int, dtype: str = "auto", tensor_parallel: int = 1, layers: range | None = None
    ) -> float:
        """All that one rank keeps of a sequence of `tokens` tokens: full layers, windows and states."""
        inside = min(tokens, self.sliding.window) if self.sliding else 0
        return (
            tokens * self.kv_bytes_per_token(dtype, tensor_parallel, layers)
            + inside * self.window_bytes_per_token(dtype, tensor_parallel, layers)
            + self.state_bytes_per_sequence(tensor_parallel, layers)
        )

    def weight_bytes_of_stage(self, parallelism: Parallelism, stage: int, dtype: str = "auto") -> float:
        """Bytes of weights on one rank of one pipeline stage."""
        t, formats = parallelism.tensor_parallel, self.precision(dtype)
        body = 0.0
        for (attention, mlp), count in self.kinds(parallelism.layers_of_stage(self, stage)).items():
            for one in layer_weights(self, attention, mlp):
                is_expert = one.group == "routed_experts"
                held = one.count / parallelism.num_expert_ranks if is_expert else one.per_rank(t)
                body += count * held * formats[one.group].bytes_per_weight
        return body + sum(
            one.per_rank(t) * formats[one.group].bytes_per_weight for one in self._ends(parallelism, stage)
        )

    def _ends(self, parallelism: Parallelism, stage: int) -> list[Weights]:
        """Embedding and head, on the stages that have them."""
        is_last = stage == parallelism.pipeline_parallel - 1
        ends = [Weights("embedding", self.num_embedding_parameters)] if stage == 0 else []
        if is_last and self.tied_embeddings and stage > 0:
            ends.append(Weights("embedding", self.num_embedding_parameters))
        if is_last:
            ends.append(Weights("other", self.num_norm_parameters, 1))
            ends.append(Weights("head", self.num_head_parameters - self.num_norm_parameters))
        return ends

    def weight_bytes_per_rank(self, parallelism: Parallelism, dtype: str = "auto") -> float:
        """Bytes of weights on the fullest rank."""
        stages = range(parallelism.pipeline_parallel)
        return max(self.weight_bytes_of_stage(parallelism, stage, dtype) for stage in stages)
