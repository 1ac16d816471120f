"""Attention over a paged KV cache for one batch of chunks and decodes."""

from __future__ import annotations

import os

import numpy as np
import torch

from gnomon.kernels import plain
from gnomon.kernels.work import Ints, Layout, fill


class PagedAttention:
    """One attention call whose batch can change between calls, or between replays of a captured graph.

    `plan` describes the batch (host), `upload` moves it, `__call__` runs it for one layer. Buffers are fixed, so the
    call can be captured; which kernels are launched is fixed too (`with_chunks`), an empty list costs one short wave.
    """

    def __init__(self, layout: Layout, head_dim: int, device: torch.device | str) -> None:
        self.layout, self.head_dim, self.device = layout, head_dim, torch.device(device)
        pin = self.device.type == "cuda"
        self._host = torch.zeros(layout.size, dtype=torch.int32, pin_memory=pin)
        self._lists = torch.zeros(layout.size, dtype=torch.int32, device=device)
        parts = layout.max_items * layout.heads
        self._part = torch.empty(parts, head_dim, dtype=torch.float32, device=device)
        self._part_lse = torch.empty(parts, dtype=torch.float32, device=device)
        self._batch: list[tuple[range, int, int]] = []

    def plan(self, first_row: Ints, num_rows: Ints, position: Ints, table_row: Ints) -> None:
        """Describe the next batch; arrays have one entry per sequence (see `gnomon.kernels.work`)."""
        if self._uses_triton:
            fill(self._host.numpy(), self.layout, first_row, num_rows, position, table_row)
            return
        starts, counts = np.asarray(first_row).tolist(), np.asarray(num_rows).tolist()
        self._batch = [
            (range(start, start + count), at, row)
            for start, count, at, row in zip(starts, counts, position.tolist(), table_row.tolist(), strict=True)
        ]

    def upload(self) -> None:
        """Copy the plan to the device, in stream order."""
        if self._uses_triton:
            self._lists.copy_(self._host, non_blocking=True)

    def __call__(
        self,
        qkv: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        tables: torch.Tensor,
        out: torch.Tensor,
        *,
        with_chunks: bool = True,
        with_decodes: bool = True,
    ) -> None:
        """Attend: queries are the first `heads` heads of each row of `qkv`."""
        if not self._uses_triton:
            for rows, position, table_row in self._batch:
                plain.attend(qkv, rows, position, tables[table_row], k_cache, v_cache, self.layout.heads, out)
            return
        from gnomon.kernels import gpu_attention

        lists = {
            name: self._lists[offset : offset + rows * columns]
            for name, (offset, rows, columns) in self.layout.fields().items()
        }
        if with_decodes:
            gpu_attention.decode(
                qkv, out, k_cache, v_cache, tables, lists["items"], lists["splits"], lists["counts"],
                self._part, self._part_lse,
            )  # fmt: skip
        if with_chunks:
            gpu_attention.prefill(qkv, out, k_cache, v_cache, tables, lists["tiles"], lists["counts"])

    @property
    def _uses_triton(self) -> bool:
        return self.device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
