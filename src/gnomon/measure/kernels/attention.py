"""Attention over a paged KV cache for one batch of chunks and decodes."""

from __future__ import annotations

import os

import torch

from gnomon.measure.kernels import plain
from gnomon.measure.kernels.work import Layout


class PagedAttention:
    """One attention call whose batch can change between calls, or between replays of a captured graph.

    The batch is what the work list in `work` says (int32, on the device, filled by
    `gnomon.measure.kernels.work.WorkList`). Which kernels are launched is fixed (`with_chunks`, `with_decodes`); an
    empty list costs one short wave.
    """

    def __init__(self, layout: Layout, head_dim: int, work: torch.Tensor) -> None:
        self.layout = layout
        self._lists = {name: work[view] for name, view in layout.fields.items()}
        parts = layout.max_items * layout.heads
        self._part = torch.empty(parts, head_dim, dtype=torch.float32, device=work.device)
        self._part_lse = torch.empty(parts, dtype=torch.float32, device=work.device)
        self._uses_triton = work.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"

    def __call__(
        self, qkv: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, tables: torch.Tensor, out: torch.Tensor,
        *, with_chunks: bool = True, with_decodes: bool = True,
    ) -> None:  # fmt: skip
        """Attend: queries are the first `heads` heads of each row of `qkv`."""
        if not self._uses_triton:
            self._plainly(qkv, k_cache, v_cache, tables, out)
            return
        from gnomon.measure.kernels import gpu_attention

        lists = self._lists
        if with_decodes:
            gpu_attention.decode(
                qkv, out, k_cache, v_cache, tables, lists["items"], lists["splits"], lists["counts"],
                self._part, self._part_lse,
            )  # fmt: skip
        if with_chunks:
            gpu_attention.prefill(qkv, out, k_cache, v_cache, tables, lists["tiles"], lists["counts"])

    def _plainly(
        self, qkv: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, tables: torch.Tensor, out: torch.Tensor
    ) -> None:
        """The attention of these lists on a CPU: tiles as they are, decodes once each (at the part that ends them)."""
        num_items, num_tiles = self._lists["counts"][:2].tolist()
        last: dict[int, tuple[int, int]] = {}
        for row, table_row, _, end, _ in self._lists["items"].view(-1, 5)[:num_items].tolist():
            last[row] = max(last.get(row, (0, 0)), (end, table_row))
        for row, (end, table_row) in last.items():
            plain.attend(qkv, range(row, row + 1), end - 1, tables[table_row], k_cache, v_cache, self.layout.heads, out)
        for row, table_row, position, count in self._lists["tiles"].view(-1, 4)[:num_tiles].tolist():
            mine = range(row, row + count)
            plain.attend(qkv, mine, position, tables[table_row], k_cache, v_cache, self.layout.heads, out)
