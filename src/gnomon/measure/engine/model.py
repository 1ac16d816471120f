"""The forward pass of a Llama-shaped decoder over fixed buffers, as a sequence of kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnomon.measure.engine.inputs import Inputs
from gnomon.measure.engine.shape import EngineConfig, ModelShape
from gnomon.measure.kernels import sampling
from gnomon.measure.kernels.attention import PagedAttention
from gnomon.measure.kernels.elementwise import implementation, random_signs, rotary_table
from gnomon.measure.kernels.work import Layout

EPSILON = 1e-5
ROTARY_BASE = 500_000.0
SCALE = 2.0**-6


@dataclass(frozen=True)
class Layer:
    """Weights of one layer, each [outputs, inputs]."""

    attn_norm: torch.Tensor
    qkv: torch.Tensor
    q_norm: torch.Tensor
    out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Model:
    """Random weights, KV cache and activation buffers on one device.

    `body(tokens)` leaves the normed hidden states of the first `tokens` rows in `normed`; `head(sequences)` samples
    from the rows that the inputs name, as the configuration says.
    """

    def __init__(
        self, shape: ModelShape, config: EngineConfig, num_blocks: int, device: torch.device, dtype: torch.dtype,
        seed: int = 0,
    ) -> None:  # fmt: skip
        self.shape, self.config, self.device = shape, config, device
        torch.manual_seed(seed)
        self._weights(shape, device, dtype)
        tokens, seqs = config.max_num_batched_tokens, config.max_num_seqs

        def buffer(*size: int, kind: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(*size, dtype=kind, device=device)

        cache = (shape.num_layers, num_blocks, shape.num_kv_heads, config.block_size, shape.head_dim)
        self.k_cache, self.v_cache = buffer(*cache), buffer(*cache)
        self.residual, self.normed, self.hidden = (buffer(tokens, shape.hidden_size) for _ in range(3))
        self.qkv = buffer(tokens, shape.qkv_size)
        self.attended = buffer(tokens, shape.num_heads * shape.head_dim)
        self.gate_up, self.activated = buffer(tokens, 2 * shape.ffn_size), buffer(tokens, shape.ffn_size)
        self.sampled_hidden = buffer(seqs, shape.hidden_size)
        self.logits = buffer(seqs, shape.vocab_size)
        self.sampled = buffer(seqs, kind=torch.int64)
        self.token_ids = buffer(tokens, kind=torch.int32)
        self.cos_sin = rotary_table(config.max_model_len, shape.head_dim, ROTARY_BASE, device)
        self.said = buffer(seqs + 1, config.max_model_len, kind=torch.int64)
        layout = Layout(seqs, seqs, tokens, shape.num_heads, shape.num_kv_heads)
        self.inputs = Inputs(config, layout, device)
        self.attention = PagedAttention(layout, shape.head_dim, self.inputs.work)

    def body(self, tokens: int, *, with_chunks: bool, with_decodes: bool) -> None:
        """All layers over the first `tokens` rows; the batch has prefill chunks, decodes, or both."""
        parts = {"with_chunks": with_chunks, "with_decodes": with_decodes}
        k = implementation(self.residual)
        residual, normed, hidden = self.residual[:tokens], self.normed[:tokens], self.hidden[:tokens]
        ids = self.token_ids[:tokens]
        k.resolve_ids(self.inputs.token_ids[:tokens], self.sampled, ids)
        if self.config.repetition_penalty != 1.0:
            self.said[self.inputs.row_slots[:tokens], self.inputs.positions[:tokens]] = ids.long()
        torch.index_select(self.embedding, 0, ids, out=residual)
        k.norm(residual, self.layers[0].attn_norm, EPSILON, normed)
        for index, layer in enumerate(self.layers):
            self._attention(index, layer, normed, hidden, parts)
            k.add_norm(hidden, residual, layer.mlp_norm, EPSILON, normed)
            torch.mm(normed, layer.gate_up.t(), out=self.gate_up[:tokens])
            k.activation(self.gate_up[:tokens], self.activated[:tokens])
            torch.mm(self.activated[:tokens], layer.down.t(), out=hidden)
            last = index + 1 == len(self.layers)
            following = self.final_norm if last else self.layers[index + 1].attn_norm
            k.add_norm(hidden, residual, following, EPSILON, normed)

    def head(self, sequences: int) -> None:
        """Logits and the choice of a token for the first `sequences` sampled rows."""
        rows = self.sampled_hidden[:sequences]
        torch.index_select(self.normed, 0, self.inputs.sample_rows[:sequences], out=rows)
        logits = self.logits[:sequences]
        torch.mm(rows, self.lm_head.t(), out=logits)
        if self.config.repetition_penalty != 1.0:
            logits = self._penalised(logits)
        if self.config.temperature == 0.0:
            torch.argmax(logits, -1, out=self.sampled[:sequences])
            return
        each = torch.ones(sequences, device=self.device)
        logits = logits.float()
        if self.config.top_p < 1.0:
            logits = sampling.top_k_top_p(logits, None, self.config.top_p * each)
        self.sampled[:sequences] = sampling.random(logits, self.config.temperature * each)

    def _penalised(self, logits: torch.Tensor) -> torch.Tensor:
        """With what each sequence has said, its prompt and its output, less likely."""
        sequences, rows = len(logits), self.inputs.sample_rows[: len(logits)].long()
        said = self.said[self.inputs.row_slots[rows].long()]
        at, prompt = torch.arange(said.shape[1], device=self.device), self.inputs.prompt_lengths[:sequences, None]
        last, nothing = self.inputs.positions[rows, None], self.shape.vocab_size
        prompts = said.masked_fill(at >= prompt, nothing)
        outputs = said.masked_fill((at < prompt) | (at > last), nothing)
        each = torch.ones(sequences, device=self.device)
        return sampling.penalties(logits.float(), prompts, outputs, self.config.repetition_penalty * each, 0.0 * each)

    def _attention(
        self, index: int, layer: Layer, normed: torch.Tensor, hidden: torch.Tensor, parts: dict[str, bool]
    ) -> None:
        k, shape, tokens = implementation(normed), self.shape, normed.shape[0]
        qkv, attended = self.qkv[:tokens], self.attended[:tokens]
        torch.mm(normed, layer.qkv.t(), out=qkv)
        rotated = shape.num_heads + shape.num_kv_heads
        if shape.qk_norm:
            k.head_norm(qkv, layer.q_norm, EPSILON, rotated)
        k.rotary(qkv, self.inputs.positions[:tokens], self.cos_sin, rotated)
        k.kv_write(qkv, self.inputs.slots[:tokens], self.k_cache[index], self.v_cache[index], shape.num_heads)
        self.attention(qkv, self.k_cache[index], self.v_cache[index], self.inputs.tables, attended, **parts)
        torch.mm(attended, layer.out.t(), out=hidden)

    def _weights(self, shape: ModelShape, device: torch.device, dtype: torch.dtype) -> None:
        def weight(*size: int) -> torch.Tensor:
            return random_signs(torch.empty(*size, dtype=dtype, device=device), SCALE)

        def ones(size: int) -> torch.Tensor:
            return torch.ones(size, dtype=dtype, device=device)

        h, heads = shape.hidden_size, shape.num_heads * shape.head_dim
        self.embedding, self.lm_head = weight(shape.vocab_size, h), weight(shape.vocab_size, h)
        self.final_norm = ones(h)
        self.layers = [
            Layer(
                attn_norm=ones(h), qkv=weight(shape.qkv_size, h), q_norm=ones(shape.head_dim), out=weight(h, heads),
                mlp_norm=ones(h), gate_up=weight(2 * shape.ffn_size, h), down=weight(h, shape.ffn_size),
            )
            for _ in range(shape.num_layers)
        ]  # fmt: skip
