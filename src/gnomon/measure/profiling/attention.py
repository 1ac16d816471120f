"""Attention calls over a paged cache: prefill chunks with history, decodes (even or skewed), and both together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gnomon.measure.kernels.attention import PagedAttention
from gnomon.measure.kernels.work import Layout, WorkList
from gnomon.measure.profiling.operators import ASSUMED, PAGE_TOKENS
from gnomon.measure.profiling.pool import Pool
from gnomon.measure.profiling.timer import Call

TABLES = 4
"""Page tables among which calls rotate, each naming other pages of the cache."""


@dataclass(frozen=True)
class AttentionBatch:
    """A chunk of one prefill and some decodes of `decode_kv` tokens on average.

    The lengths of decodes are spread evenly between nothing and twice the average, as those of a server's batch are:
    equal ones fill the GPU in whole rounds or just not, which no server's batches do. Where `long_decodes` are given,
    so many have `long_kv` tokens, and the others `decode_kv` each.
    """

    chunk: int = 0
    kv: int = 0
    decodes: int = 0
    decode_kv: int = 0
    long_decodes: int = 0
    long_kv: int = 0

    def decode_lengths(self) -> list[int]:
        """KV tokens of each decode; the long ones are spread among the others."""
        if not self.long_decodes:
            return [max(1, round(self.decode_kv * (2 * i + 1) / self.decodes)) for i in range(self.decodes)]
        lengths = [self.decode_kv] * self.decodes
        for index in range(self.long_decodes):
            lengths[index * self.decodes // self.long_decodes] = self.long_kv
        return lengths

    @property
    def key_tokens(self) -> int:
        """Keys that are read."""
        return self.chunk + self.kv + sum(self.decode_lengths())


class AttentionShape:
    """One rank's heads, with a cache of random keys and values."""

    def __init__(
        self, pool: Pool, heads: int, kv_heads: int, head_dim: int, *, max_chunk: int, max_decodes: int
    ) -> None:
        self.pool, self.heads, self.kv_heads, self.head_dim = pool, heads, kv_heads, head_dim
        token_elements = kv_heads * head_dim
        caches = pool.rotating(4 * pool.cold_bytes // (token_elements * PAGE_TOKENS), kv_heads, PAGE_TOKENS, head_dim)
        self.k_cache, self.v_cache = caches[0], caches[1]
        self._layout = Layout(max_decodes, 1, max_chunk, heads, kv_heads)
        self._work = torch.zeros(self._layout.size, dtype=torch.int32, device=pool.device)
        self._attention = PagedAttention(self._layout, head_dim, self._work)

    def call(self, batch: AttentionBatch) -> tuple[Call, float]:
        """The call for `batch`, and how long to expect."""
        lengths = batch.decode_lengths()
        rows = np.array(([batch.chunk] if batch.chunk else []) + [1] * batch.decodes, np.int32)
        position = np.array(([batch.kv] if batch.chunk else []) + [n - 1 for n in lengths], np.int32)
        first_row = (np.cumsum(rows) - rows).astype(np.int32)
        work = np.zeros(self._layout.size, np.int32)
        WorkList(self._layout, work).fill(first_row, rows, position, np.arange(len(rows), dtype=np.int32))
        self._work.copy_(torch.from_numpy(work))
        tokens = int(rows.sum())
        qkv = self.pool.fixed("qkv", tokens, (self.heads + 2 * self.kv_heads) * self.head_dim)
        out = self.pool.fixed("attended", tokens, self.heads * self.head_dim)
        tables = self._tables(len(rows), int((position + rows).max()))

        def run(index: int) -> None:
            self._attention(
                qkv, self.k_cache, self.v_cache, tables[index % TABLES], out,
                with_chunks=batch.chunk > 0, with_decodes=batch.decodes > 0,
            )  # fmt: skip

        pairs = batch.chunk * (batch.kv + batch.chunk / 2) + sum(lengths)
        item = self.pool.dtype.itemsize
        return run, ASSUMED.expected_s(
            8.0 * self.heads * self.head_dim * pairs, 2.0 * item * self.kv_heads * self.head_dim * batch.key_tokens
        )

    def _tables(self, rows: int, longest: int) -> list[torch.Tensor]:
        """Random pages for every sequence; long batches use a page several times, far enough apart for the cache."""
        width = -(-longest // PAGE_TOKENS)
        pages = self.k_cache.shape[0]
        order = torch.randperm(pages, device=self.pool.device, dtype=torch.int32)
        needed = rows * width
        spread = order.repeat(-(-(needed + TABLES * 997) // pages) + 1)
        return [spread[i * 997 % pages :][:needed].view(rows, width) for i in range(TABLES)]
