"""Language models as shapes: what a layer multiplies, and what it keeps."""

import math

from gnomon.catalog.attention import AttentionKind
from gnomon.catalog.devices import DTYPE_BYTES
from gnomon.catalog.parallelism import Parallelism
from gnomon.catalog.quantization import Quantization, scheme
from gnomon.catalog.shape import ModelShape
from gnomon.catalog.weights import Weights, attention_weights, layer_weights, mlp_weights
from gnomon.core.errors import ConfigError


class Model(ModelShape):
    """One decoder-only transformer: its shape, number formats, parameters and bytes."""

    def precision(self, dtype: str = "auto") -> Quantization:
        """The number formats that `dtype` means for this model.

        auto: the checkpoint's own. A number format (fp8) or scheme (nvfp4) means the checkpoint that is published in
        it, where one is known (of several that of the very name), else the scheme of that name in
        `data/quantization.yaml`.
        """
        own = self.checkpoint
        if dtype in ("auto", own.name, own.dtype) or own.name.startswith(f"{dtype}_"):
            return own
        for name in sorted(self.schemes, key=lambda one: one != dtype):
            if dtype in (name, scheme(name).dtype) or name.startswith(f"{dtype}_"):
                return scheme(name)
        wanted = scheme(dtype)
        if not self.is_moe and wanted["dense_mlp"].bytes_per_weight == 2.0 and wanted.dtype not in ("bf16", "fp16"):
            what = f"{dtype} quantises routed experts only, and {self.name} has none."
            raise ConfigError(what, where="dtype", fix="Use a number format for all layers, such as fp8 or int4.")
        return wanted

    def kv_precision(self, kv_dtype: str = "auto", dtype: str = "auto") -> str:
        """The KV cache's number format; auto: what the checkpoint asks for, else bf16."""
        return (self.precision(dtype).kv_dtype or "bf16") if kv_dtype == "auto" else kv_dtype

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
        return self.num_mtp_layers * sum(one.count for one in self._drafting_layer())

    @property
    def _drafting_attention(self) -> AttentionKind:
        return "sliding" if self.compressed else "full"

    def _drafting_layer(self) -> list[Weights]:
        """A layer that predicts a later token, with what joins a token's embedding and its hidden state before it."""
        join = Weights("other", 2 * self.hidden_size**2 + 3 * self.num_norm_parameters, 1)
        return [join, *layer_weights(self, self._drafting_attention, "experts" if self.is_moe else "dense")]

    @property
    def window_tokens(self) -> int:
        """Tokens of a window; 0 where no layer has one."""
        return self.compressed.window if self.compressed else self.sliding.window if self.sliding else 0

    def kv_bytes_per_layer(self, dtype: str = "auto", tensor_parallel: int = 1, kind: AttentionKind = "full") -> float:
        """KV cache bytes of one token in one layer of a kind on one rank; KV heads are replicated where too few."""
        if kind in ("linear", "none"):
            return 0.0
        if self.compressed:
            return self._compressed_bytes(self.kv_precision(dtype), kind)
        each = DTYPE_BYTES[self.kv_precision(dtype)]
        if self.mla and kind == "full":  # One latent vector, which every rank needs whole.
            index = self.indexer.cache_bytes if self.indexer else 0.0
            return (self.mla.kv_rank + self.mla.rope_dim) * each + index
        _, kv_heads, qk, v = self.heads_of(kind)
        index = self.indexer.cache_bytes if self.indexer and kind == "full" else 0.0
        return math.ceil(kv_heads / tensor_parallel) * (qk + v) * each + index

    def _compressed_bytes(self, dtype: str, kind: AttentionKind) -> float:
        """Of one token: its own vector in the window, or its part of an entry (and of the index)."""
        assert self.compressed is not None
        entry = self.compressed.entry_bytes(self.head_dim, dtype)
        if kind == "sliding":
            return entry
        if kind == "compressed_sparse":
            assert self.indexer is not None
            entry += self.indexer.cache_bytes if DTYPE_BYTES[dtype] < 2.0 else self.indexer.head_dim * 2.0
        return entry / self.compressed.ratio_of(kind)

    def kv_bytes_per_token(self, dtype: str = "auto", tensor_parallel: int = 1, layers: range | None = None) -> float:
        """KV cache bytes of one token in all full or compressed layers (of `layers`) on one tensor-parallel rank."""
        kinds: tuple[AttentionKind, ...] = ("compressed", "compressed_sparse") if self.compressed else ("full",)
        return sum(
            self.num_attention_layers(kind, layers) * self.kv_bytes_per_layer(dtype, tensor_parallel, kind)
            for kind in kinds
        )

    def window_bytes_per_token(
        self, dtype: str = "auto", tensor_parallel: int = 1, layers: range | None = None
    ) -> float:
        """KV cache bytes of one token in all layers that keep those of the last `window_tokens` tokens."""
        count = sum(self.kinds(layers).values()) if self.compressed else self.num_attention_layers("sliding", layers)
        return count * self.kv_bytes_per_layer(dtype, tensor_parallel, "sliding") if count else 0.0

    def state_bytes_per_sequence(self, tensor_parallel: int = 1, layers: range | None = None) -> float:
        """Bytes of one sequence's states in all linear or compressed layers on one rank, whatever its length."""
        if self.compressed:
            index = self.indexer.head_dim if self.indexer else 0
            states = {kind: self.compressed.state_bytes(self.head_dim, index, kind) for kind in self.attention_layers}
            return sum(self.num_attention_layers(kind, layers) * each for kind, each in states.items())
        each = self.linear.state_bytes(tensor_parallel) if self.linear else 0.0
        return self.num_attention_layers("linear", layers) * each

    def sequence_bytes(
        self, tokens: int, dtype: str = "auto", tensor_parallel: int = 1, layers: range | None = None
    ) -> float:
        """All that one rank keeps of a sequence of `tokens` tokens: full layers, windows and states."""
        inside = min(tokens, self.window_tokens)
        return (
            tokens * self.kv_bytes_per_token(dtype, tensor_parallel, layers)
            + inside * self.window_bytes_per_token(dtype, tensor_parallel, layers)
            + self.state_bytes_per_sequence(tensor_parallel, layers)
        )

    def weight_bytes_of_stage(self, parallelism: Parallelism, stage: int, dtype: str = "auto") -> float:
        """Bytes of weights on one rank of one pipeline stage."""
        body = 0.0
        for (attention, mlp), count in self.kinds(parallelism.layers_of_stage(self, stage)).items():
            body += count * self._bytes_held(layer_weights(self, attention, mlp), parallelism, dtype)
        return body + self._bytes_held(self._ends(parallelism, stage), parallelism, dtype)

    def _bytes_held(self, weights: list[Weights], parallelism: Parallelism, dtype: str) -> float:
        formats, total = self.precision(dtype), 0.0
        for one in weights:
            is_expert = one.group == "routed_experts"
            held = one.count / parallelism.num_expert_ranks if is_expert else one.per_rank(parallelism.tensor_parallel)
            total += held * formats[one.group].bytes_per_weight
        return total

    def drafting_layer_bytes(self, parallelism: Parallelism, dtype: str = "auto") -> float:
        """Bytes of weights of one layer that predicts later tokens, on one rank."""
        return self._bytes_held(self._drafting_layer(), parallelism, dtype)

    def drafting_sequence_bytes(self, tokens: int, dtype: str = "auto", tensor_parallel: int = 1) -> float:
        """What one rank keeps of a sequence of `tokens` tokens in such a layer."""
        inside = min(tokens, self.window_tokens) if self.compressed else tokens
        return inside * self.kv_bytes_per_layer(dtype, tensor_parallel, self._drafting_attention)

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
