"""A set of block keys with a limit and an order of eviction: what a tier of KV, or an index of prefixes, remembers."""

from __future__ import annotations

from typing import NamedTuple

from gnomon.core.arrays import Ints
from gnomon.jit import inlined
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.state import NONE


class BlockSet(NamedTuple):
    """Entries, as the functions of `prefix_cache` see blocks. All zero is an empty one."""

    block_key: Ints
    newer: Ints
    older: Ints
    slot_key: Ints
    slot_block: Ints
    used: Ints
    """[1]: entries in use."""


def num_slots(max_keys: int) -> int:
    """Slots of the table in which so many keys are found."""
    return 1 << (2 * max_keys).bit_length()


@inlined
def put(blocks: BlockSet, key: int, max_keys: int, is_fifo: bool) -> int:
    """Write a key; returns the one that it evicts, or 0. One that is there counts as used, but for `is_fifo`."""
    end = blocks.newer.size - 1
    if blocks.used[0] == 0:
        blocks.newer[end] = blocks.older[end] = end
    entry, evicted = prefix_cache.find(blocks, key), 0
    if entry != NONE:
        if not is_fifo:
            _unlink(blocks, entry)
            _append(blocks, entry)
        return 0
    if blocks.used[0] < max_keys:
        entry = blocks.used[0]
        blocks.used[0] += 1
    else:
        entry = blocks.newer[end]
        evicted = blocks.block_key[entry]
        _unlink(blocks, entry)
        prefix_cache.forget(blocks, entry)
    _append(blocks, entry)
    prefix_cache.remember(blocks, key, entry)
    return evicted


@inlined
def _append(blocks: BlockSet, entry: int) -> None:
    """Put an entry behind all others: it is evicted last."""
    end = blocks.newer.size - 1
    newest = blocks.older[end]
    blocks.newer[newest] = entry
    blocks.older[entry] = newest
    blocks.newer[entry] = end
    blocks.older[end] = entry


@inlined
def _unlink(blocks: BlockSet, entry: int) -> None:
    blocks.newer[blocks.older[entry]] = blocks.newer[entry]
    blocks.older[blocks.newer[entry]] = blocks.older[entry]
