"""The forward pass of a Llama-shaped decoder over fixed buffers, as a sequence of kernels.

The inputs of an iteration lie in pinned memory, with twins on the device. There are two host buffers, so that the next
iteration's inputs can be written while this one's are being copied. A token id below zero stands for a token that only
the GPU knows yet: -1 - r is what row r of the previous batch sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gnomon.measure.engine.scheduler import Batch, Ints, Request
from gnomon.measure.engine.shape import EngineConfig, ModelShape
from gnomon.measure.kernels import sampling
from gnomon.measure.kernels.attention import PagedAttention
from gnomon.measure.kernels.elementwise import implementation, random_signs, rotary_table
from gnomon.measure.kernels.work import Layout, WorkList


class HostInputs:
    """One pinned buffer with a view for each input."""

    def __init__(self, sizes: dict[str, int], layout: Layout, *, pinned: bool) -> None:
        self.memory = torch.zeros(sum(sizes.values()), dtype=torch.int32, pin_memory=pinned)
        views = {name: self.memory.numpy()[view] for name, view in _slices(sizes).items()}
        self.token_ids, self.positions, self.slots = (views[n] for n in ("token_ids", "positions", "slots"))
        self.sample_rows, self.row_slots, self.prompt_lengths = (
            views[n] for n in ("sample_rows", "row_slots", "prompt_lengths")
        )
        self.work_list = WorkList(layout, views["work"])


class Inputs:
    """Token ids, positions, KV slots, rows to sample from, attention's work list, page tables.

    For the sampler: the running sequence of every row (`max_num_seqs` for padding), and the prompt's length for each
    row to sample from.

    `tables` is not doubled: what the scheduler adds to it for a later iteration lies beyond what this one reads.
    """

    def __init__(self, config: EngineConfig, layout: Layout, device: torch.device) -> None:
        self._block_size = config.block_size
        tokens, seqs, pinned = config.max_num_batched_tokens, config.max_num_seqs, device.type == "cuda"
        sizes = {"token_ids": tokens, "positions": tokens, "slots": tokens, "sample_rows": seqs, "work": layout.size}
        sizes |= {"row_slots": tokens, "prompt_lengths": seqs}
        self._no_sequence = seqs
        self._host = [HostInputs(sizes, layout, pinned=pinned) for _ in range(2)]
        self._filled = 0
        self._every_position = np.arange(config.max_model_len, dtype=np.int32)
        self._block_of, self._offset_of = np.divmod(self._every_position, np.int32(config.block_size))
        self._device = torch.zeros(sum(sizes.values()), dtype=torch.int32, device=device)
        on_device = {name: self._device[view] for name, view in _slices(sizes).items()}
        self.token_ids, self.positions, self.slots = (on_device[n] for n in ("token_ids", "positions", "slots"))
        self.sample_rows, self.work = on_device["sample_rows"], on_device["work"]
        self.row_slots, self.prompt_lengths = on_device["row_slots"], on_device["prompt_lengths"]
        self._host_tables = torch.zeros(seqs, config.blocks_per_sequence, dtype=torch.int32, pin_memory=pinned)
        self.host_tables: Ints = self._host_tables.numpy()
        self.tables = torch.zeros(seqs, config.blocks_per_sequence, dtype=torch.int32, device=device)

    def fill(self, batch: Batch, num_rows: Ints, position: Ints, *, again: bool = False) -> int:
        """Write a batch into the buffer that is not in use (`again`: the same as last time); returns its tokens."""
        if not again:
            self._filled = 1 - self._filled
        host = self._host[self._filled]
        slot = np.array([request.slot for request in batch.requests], np.int32)
        sequences = len(slot)
        end = np.cumsum(num_rows, dtype=np.int32)
        first, tokens = end - num_rows, int(end[-1])
        if tokens == sequences:
            self._place(host, tokens, slot, position)
            host.token_ids[:tokens] = [_next_id(request, batch.number) for request in batch.requests]
        else:
            sequence = np.repeat(np.arange(sequences), num_rows)
            at = np.arange(tokens, dtype=np.int32) - first[sequence] + position[sequence]
            self._place(host, tokens, slot[sequence], at)
            for request, start, count in zip(batch.requests, first.tolist(), batch.num_tokens, strict=True):
                ids = _next_id(request, batch.number) if count == 1 else request.token_ids(count)
                host.token_ids[start : start + count] = ids
        host.slots[tokens:] = -1
        host.row_slots[tokens:] = self._no_sequence
        host.prompt_lengths[:sequences] = [len(request.prompt) for request in batch.requests]
        host.sample_rows[:sequences] = end - 1
        host.work_list.fill(first, num_rows, position, slot)
        return tokens

    def append(self, requests: list[Request], counts: list[int], sequences: int, tokens: int) -> None:
        """Add chunks that were admitted after `sequences` requests with `tokens` tokens had been filled."""
        host = self._host[self._filled]
        for request, count in zip(requests, counts, strict=True):
            here, there = slice(tokens, tokens + count), slice(request.computed, request.computed + count)
            host.positions[here] = self._every_position[there]
            blocks = self.host_tables[request.slot, self._block_of[there]]
            host.slots[here] = blocks * self._block_size + self._offset_of[there]
            host.row_slots[here] = request.slot
            host.prompt_lengths[sequences] = len(request.prompt)
            host.token_ids[here] = request.token_ids(count)
            host.work_list.append_chunk(tokens, count, request.computed, request.slot)
            tokens += count
            host.sample_rows[sequences] = tokens - 1
            sequences += 1

    def upload(self) -> None:
        """Copy what was filled last to the device, in stream order."""
        self._device.copy_(self._host[self._filled].memory, non_blocking=True)
        self.tables.copy_(self._host_tables, non_blocking=True)

    def _place(self, host: HostInputs, tokens: int, slot: Ints, position: Ints) -> None:
        """Positions, and where in the cache each token's keys and values go."""
        host.positions[:tokens] = position
        host.row_slots[:tokens] = slot
        block, offset = np.divmod(position, self._block_size)
        host.slots[:tokens] = self.host_tables[slot, block] * self._block_size + offset


def _next_id(request: Request, batch_number: int) -> int:
    """The one token that a request runs next: known, or still on the GPU."""
    if request.produced_in == batch_number - 1:
        return -1 - request.produced_row
    return int(request.token_ids(1)[0])


def _slices(sizes: dict[str, int]) -> dict[str, slice]:
    ends = np.cumsum(list(sizes.values())).tolist()
    return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}


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
        self.history = buffer(seqs + 1, config.max_model_len, kind=torch.int64)
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
            self.history[self.inputs.row_slots[:tokens], self.inputs.positions[:tokens]] = ids.long()
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
        history = self.history[self.inputs.row_slots[rows].long()]
        at, prompt = torch.arange(history.shape[1], device=self.device), self.inputs.prompt_lengths[:sequences, None]
        last, nothing = self.inputs.positions[rows, None], self.shape.vocab_size
        prompts = history.masked_fill(at >= prompt, nothing)
        outputs = history.masked_fill((at < prompt) | (at > last), nothing)
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
