"""The work list of one attention call: which tiles of which sequences, built on the host with NumPy.

A batch is described by arrays with one entry per sequence: its first row among the iteration's tokens, how many
rows (1 = a decode), the position of the first of them, and its row in the page tables. Lists are laid out in one
int32 array at fixed offsets, so that one copy moves them and a captured CUDA graph finds them again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

MIN_SPLIT_TOKENS = 256
"""Fewest keys of one part of a decode: shorter parts cost more in combining than they gain in parallelism."""
DECODE_UNITS = 2048
"""Parts x KV heads of a decode batch that fill a large GPU several times over, so that the last round is short."""
ROWS_PER_TILE = 128
"""Query rows (tokens x heads that share a KV head) of one prefill tile."""


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
        """Tokens of one prefill tile."""
        return ROWS_PER_TILE // (self.heads // self.kv_heads)

    @property
    def max_items(self) -> int:
        """Most parts of decodes."""
        return self.max_decodes + -(-DECODE_UNITS // self.kv_heads)

    @property
    def max_tiles(self) -> int:
        """Most prefill tiles."""
        return -(-self.max_tokens // self.tile_tokens) + self.max_chunks

    def fields(self) -> dict[str, tuple[int, int, int]]:
        """Name -> (offset, rows, columns)."""
        sizes = {
            "counts": (1, 4),
            "items": (self.max_items, 5),
            "splits": (self.max_decodes, 3),
            "tiles": (self.max_tiles, 4),
        }
        fields, offset = {}, 0
        for name, (rows, columns) in sizes.items():
            fields[name] = (offset, rows, columns)
            offset += rows * columns
        return fields

    @property
    def size(self) -> int:
        """Length of the array."""
        offset, rows, columns = self.fields()["tiles"]
        return offset + rows * columns


def fill(into: Ints, layout: Layout, first_row: Ints, num_rows: Ints, position: Ints, table_row: Ints) -> None:
    """Write the work list of a batch into `into` (of `layout.size`)."""
    fields = layout.fields()
    is_decode = num_rows == 1
    items, splits = _decode_items(
        first_row[is_decode], table_row[is_decode], position[is_decode] + 1, layout.kv_heads
    )
    chunks = ~is_decode
    tiles = _tiles(first_row[chunks], num_rows[chunks], position[chunks], table_row[chunks], layout.tile_tokens)
    into[:4] = (len(items), len(tiles), len(splits), 0)
    for name, rows in (("items", items), ("splits", splits), ("tiles", tiles)):
        offset, most, columns = fields[name]
        assert len(rows) <= most, f"{len(rows)} {name}, room for {most}"
        into[offset : offset + rows.size].reshape(-1, columns)[:] = rows


def _decode_items(row: Ints, table_row: Ints, kv: Ints, kv_heads: int) -> tuple[Ints, Ints]:
    """Parts (row, table row, first key, end, slot or -1) longest first, and (row, first slot, slots) to combine."""
    if len(row) == 0:
        return np.empty((0, 5), np.int32), np.empty((0, 3), np.int32)
    split = max(MIN_SPLIT_TOKENS, -(-int(kv.sum()) * kv_heads // (DECODE_UNITS * 64)) * 64)
    parts = -(-kv // split)
    sequence = np.repeat(np.arange(len(row), dtype=np.int32), parts)
    first_part = np.cumsum(parts) - parts
    start = (np.arange(len(sequence), dtype=np.int32) - first_part[sequence]) * split
    end = np.minimum(start + split, kv[sequence])
    shared = parts > 1
    slots = np.where(shared, parts, 0)
    first_slot = np.cumsum(slots) - slots
    slot = np.where(shared[sequence], first_slot[sequence] + start // split, -1)
    items = np.stack([row[sequence], table_row[sequence], start, end, slot], 1)
    longest_first = np.argsort(start - end, kind="stable")
    splits = np.stack([row, first_slot, parts], 1)[shared]
    return items[longest_first].astype(np.int32), splits.astype(np.int32)


def _tiles(row: Ints, num_rows: Ints, position: Ints, table_row: Ints, tile: int) -> Ints:
    """Tiles (first row, table row, first position, tokens), those that see most keys first."""
    tiles_of = -(-num_rows // tile)
    sequence = np.repeat(np.arange(len(row), dtype=np.int32), tiles_of)
    offset = (np.arange(len(sequence), dtype=np.int32) - (np.cumsum(tiles_of) - tiles_of)[sequence]) * tile
    count = np.minimum(num_rows[sequence] - offset, tile)
    first = position[sequence] + offset
    tiles = np.stack([row[sequence] + offset, table_row[sequence], first, count], 1)
    return tiles[np.argsort(-(first + count), kind="stable")].astype(np.int32)
