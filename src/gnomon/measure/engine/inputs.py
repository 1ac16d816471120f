"""The inputs of one iteration in pinned memory, and their twins on the device.

There are two host buffers, so that the next iteration's inputs can be written while this one's are being copied. A
token id below zero stands for a token that only the GPU knows yet: -1 - r is what row r of the previous batch sampled.
"""

from __future__ import annotations

import numpy as np
import torch

from gnomon.measure.engine.scheduler import Batch, Ints, Request
from gnomon.measure.engine.shape import EngineConfig
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
        host.slots[:tokens] = self._slots_of(slot, position)

    def _slots_of(self, slot: Ints | int, position: Ints) -> Ints:
        block, offset = np.divmod(position, self._block_size)
        slots: Ints = self.host_tables[slot, block] * self._block_size + offset
        return slots


def _next_id(request: Request, batch_number: int) -> int:
    """The one token that a request runs next: known, or still on the GPU."""
    if request.produced_in == batch_number - 1:
        return -1 - request.produced_row
    return int(request.token_ids(1)[0])


def _slices(sizes: dict[str, int]) -> dict[str, slice]:
    ends = np.cumsum(list(sizes.values())).tolist()
    return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}
