"""The work list of one attention call: which tiles of which sequences, built on the host with NumPy.

A batch is described by arrays with one entry per sequence: its first row among the iteration's tokens, how many
rows (1 = a decode), the position of the first of them, and its row in the page tables. Lists are laid out in one
int32 array at fixed offsets, so that one copy moves them and a captured CUDA graph finds them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

MIN_SPLIT_TOKENS = 256
"""Fewest keys of one part of a decode: shorter parts cost more in combining than they gain in parallelism."""
DECODE_UNITS = 2048
"""Parts x KV heads of a decode batch that fill a large GPU several times over, so that the last round is short."""
ROWS_PER_TILE = 128  # Query rows (tokens x heads that share a KV head) of one prefill tile.


@dataclass(frozen=True)
class Layout:
    """Where the lists of one attention call lie in an int32 array. Sizes are the most there can be."""

    max_decodes: int
    max_chunks: int
    max_tokens: int
    heads: int
    kv_heads: int

    @property
    def tile_tokens(self) -> int:
        return ROWS_PER_TILE // (self.heads // self.kv_heads)

    @property
    def max_items(self) -> int:
        return self.max_decodes + -(-DECODE_UNITS // self.kv_heads)

    @property
    def max_tiles(self) -> int:
        return -(-self.max_tokens // self.tile_tokens) + self.max_chunks

    @cached_property
    def fields(self) -> dict[str, slice]:
        sizes = {"counts": 4, "items": 5 * self.max_items, "splits": 3 * self.max_decodes, "tiles": 4 * self.max_tiles}
        fields, offset = {}, 0
        for name, size in sizes.items():
            fields[name] = slice(offset, offset + size)
            offset += size
        return fields

    @property
    def size(self) -> int:
        return int(self.fields["tiles"].stop)


class WorkList:
    """The lists in an int32 array of `layout.size`, which may be pinned memory."""

    def __init__(self, layout: Layout, memory: Ints) -> None:
        assert memory.size == layout.size
        self.layout = layout
        fields = layout.fields
        self._counts = memory[fields["counts"]]
        self._items, self._splits = memory[fields["items"]], memory[fields["splits"]]
        self._tiles = memory[fields["tiles"]]
        self._offsets = np.arange(layout.max_tiles, dtype=np.int32) * np.int32(layout.tile_tokens)

    def fill(self, first_row: Ints, num_rows: Ints, position: Ints, table_row: Ints) -> None:
        is_decode = num_rows == 1
        num_decodes = int(np.count_nonzero(is_decode))
        self._counts[:] = 0
        if num_decodes == len(num_rows):
            self._decodes(first_row, table_row, position + 1)
            return
        if num_decodes:
            self._decodes(first_row[is_decode], table_row[is_decode], position[is_decode] + 1)
        chunks = ~is_decode
        self._chunks(first_row[chunks], num_rows[chunks], position[chunks], table_row[chunks])

    def append_chunk(self, first_row: int, num_rows: int, position: int, table_row: int) -> None:
        """Add one prefill chunk (of more than one row) to a list that was filled before."""
        tile, there = self.layout.tile_tokens, int(self._counts[1])
        count = -(-num_rows // tile)
        offset = self._offsets[count - 1 :: -1]
        tiles = self._tiles[4 * there : 4 * (there + count)].reshape(-1, 4)
        tiles[:, 0], tiles[:, 1] = offset + first_row, table_row
        tiles[:, 2], tiles[:, 3] = offset + position, tile
        tiles[0, 3] = num_rows - (count - 1) * tile
        self._counts[1] = there + count

    def _decodes(self, row: Ints, table_row: Ints, kv: Ints) -> None:
        """Parts (row, table row, first key, end, slot or -1) longest first, and (row, first slot, slots) to combine."""
        split = max(MIN_SPLIT_TOKENS, -(-int(kv.sum()) * self.layout.kv_heads // (DECODE_UNITS * 64)) * 64)
        parts = -(-kv // split)
        sequence = np.repeat(np.arange(len(row), dtype=np.int32), parts)
        start = (np.arange(len(sequence), dtype=np.int32) - (np.cumsum(parts) - parts)[sequence]) * split
        end = np.minimum(start + split, kv[sequence])
        shared = parts > 1
        slots = np.where(shared, parts, 0)
        first_slot = np.cumsum(slots) - slots
        order = np.argsort(start - end, kind="stable")
        items = self._items[: 5 * len(sequence)].reshape(-1, 5)  # Refused by NumPy if there is no room.
        sequence, start, end = sequence[order], start[order], end[order]
        items[:, 0], items[:, 1] = row[sequence], table_row[sequence]
        items[:, 2], items[:, 3] = start, end
        items[:, 4] = np.where(shared[sequence], first_slot[sequence] + start // split, -1)
        splits = self._splits[: 3 * int(np.count_nonzero(shared))].reshape(-1, 3)
        splits[:, 0], splits[:, 1], splits[:, 2] = row[shared], first_slot[shared], parts[shared]
        self._counts[0], self._counts[2] = len(items), len(splits)

    def _chunks(self, row: Ints, num_rows: Ints, position: Ints, table_row: Ints) -> None:
        """Add tiles (first row, table row, first position, tokens), those that see most keys first."""
        tile = self.layout.tile_tokens
        tiles_of = -(-num_rows // tile)
        sequence = np.repeat(np.arange(len(row), dtype=np.int32), tiles_of)
        offset = (np.arange(len(sequence), dtype=np.int32) - (np.cumsum(tiles_of) - tiles_of)[sequence]) * tile
        count = np.minimum(num_rows[sequence] - offset, tile)
        first = position[sequence] + offset
        order = np.argsort(-(first + count), kind="stable")
        there = int(self._counts[1])
        tiles = self._tiles[4 * there : 4 * (there + len(sequence))].reshape(-1, 4)
        sequence, offset = sequence[order], offset[order]
        tiles[:, 0], tiles[:, 1] = row[sequence] + offset, table_row[sequence]
        tiles[:, 2], tiles[:, 3] = first[order], count[order]
        self._counts[1] = there + len(tiles)
