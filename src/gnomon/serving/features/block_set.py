"""A set of block keys with a limit and an order of eviction: what a tier of KV, or an index of prefixes, remembers."""

from __future__ import annotations

from typing import NamedTuple

from gnomon.core.arrays import Ints
from gnomon.jit import inner
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.state import NONE


class Shelf(NamedTuple):
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


@inner
def put(shelf: Shelf, key: int, max_keys: int, is_fifo: bool) -> int:
    """Write a key; returns the one that it evicts, or 0. One that is there counts as used, but for `is_fifo`."""
    end = shelf.newer.size - 1
    if shelf.used[0] == 0:
        shelf.newer[end] = shelf.older[end] = end
    entry, evicted = prefix_cache.find(shelf, key), 0
    if entry != NONE:
        if not is_fifo:
            _unlink(shelf, entry)
            _append(shelf, entry)
        return 0
    if shelf.used[0] < max_keys:
        entry = shelf.used[0]
        shelf.used[0] += 1
    else:
        entry = shelf.newer[end]
        evicted = shelf.block_key[entry]
        _unlink(shelf, entry)
        prefix_cache.forget(shelf, entry)
    _append(shelf, entry)
    prefix_cache.remember(shelf, key, entry)
    return evicted


@inner
def _append(shelf: Shelf, entry: int) -> None:
    """Put an entry behind all others: it is evicted last."""
    end = shelf.newer.size - 1
    newest = shelf.older[end]
    shelf.newer[newest] = entry
    shelf.older[entry] = newest
    shelf.newer[entry] = end
    shelf.older[end] = entry


@inner
def _unlink(shelf: Shelf, entry: int) -> None:
    shelf.newer[shelf.older[entry]] = shelf.newer[entry]
    shelf.older[shelf.newer[entry]] = shelf.older[entry]
