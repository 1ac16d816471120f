"""KV beyond the GPU: prefix blocks in host memory, on SSDs, in a store that all replicas share, and in other replicas.

A shelf is one tier of one replica (or the shared store): a set of block keys with an order of eviction. What a request
computed is written to the first tier when it ends or leaves; a tier below gets the same at once (write through), or
what the tier above evicts (write back). An arriving request whose prefix goes on in one of these places beyond what its
replica's GPU holds waits for that part to be loaded, where loading is sooner than computing it. Loads over one link
share it fairly (`gnomon.serving.features.transfers`).
"""

from typing import Any, NamedTuple

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.jit import borrow, feature, inlined, jit, noinline
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.state import NONE, Cluster, Replica, replica_view
from gnomon.serving.features.transfers import Transfers, load_s, start_load
from gnomon.timing.iteration import IterationTables
from gnomon.timing.lookup import Shape, iteration_s


class BlockSet(NamedTuple):
    """Entries, as the functions of `prefix_cache` see blocks. All zero is an empty one."""

    block_key: Ints
    newer: Ints
    older: Ints
    slot_key: Ints
    slot_block: Ints
    used: Ints  # [1]: entries in use.


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
            prefix_cache.unlink(blocks, entry)
            prefix_cache.append(blocks, entry)
        return 0
    if blocks.used[0] < max_keys:
        entry = blocks.used[0]
        blocks.used[0] += 1
    else:
        entry = blocks.newer[end]
        evicted = blocks.block_key[entry]
        prefix_cache.unlink(blocks, entry)
        prefix_cache.forget(blocks, entry)
    prefix_cache.append(blocks, entry)
    prefix_cache.remember(blocks, key, entry)
    return evicted


HOST, SSD, REMOTE, PEERS = range(4)
NUM_SOURCES = 4
SOURCES = ("host memory", "SSD", "shared store", "another replica")  # As a reader knows them.

TIER = np.dtype(
    [
        ("is_there", np.int64), ("is_shared", np.int64), ("max_blocks", np.int64), ("latency_s", np.float64),
        ("is_fifo", np.int64), ("writes_back", np.int64), ("down_from_s", np.float64), ("down_to_s", np.float64),
    ],
    align=True,
)  # fmt: skip


class Tiers(NamedTuple):
    """All shelves. Those of tier t are `t * num_replicas + replica`, the shared one that of replica 0."""

    tiers: Any  # [source] `TIER` records: host, SSD, remote store, other replicas.
    block_key: Ints
    newer: Ints
    older: Ints
    slot_key: Ints
    slot_block: Ints
    used: Ints  # [shelf, 1]: entries in use.
    loading: Ints  # [request, place]: the blocks of its prefix, held while the last of them are loaded.
    num_loading: Ints  # [request]
    source: Ints  # [request]: where the last of its loads came from.
    loaded_tokens: Ints
    """[replica, source + 1]: prompt tokens loaded from each source; and found somewhere, but computed."""
    block_bytes: Floats  # [replica]
    always_loads: Ints  # [1]: loads whatever computing would take.


def new_tiers(num_replicas: int, num_requests: int, max_keys: int, blocks_per_request: int) -> Tiers:
    """Empty shelves for at most so many keys; none at all for `max_keys` 0."""
    count = REMOTE * num_replicas + 1 if max_keys else 0
    slots = num_slots(max_keys) if max_keys else 0

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, np.int64)

    return Tiers(
        np.zeros(NUM_SOURCES, TIER).view(np.recarray), ints(count, max_keys), ints(count, max_keys + 1),
        ints(count, max_keys + 1), ints(count, slots), ints(count, slots), ints(count, 1),
        ints(num_requests if max_keys else 0, blocks_per_request), ints(num_requests if max_keys else 0),
        ints(num_requests if max_keys else 0), ints(num_replicas, NUM_SOURCES + 1), np.zeros(num_replicas), ints(1),
    )  # fmt: skip


@inlined
def _blocks(tiers: Tiers, number: int) -> BlockSet:
    return BlockSet(
        tiers.block_key[number], tiers.newer[number], tiers.older[number], tiers.slot_key[number],
        tiers.slot_block[number], tiers.used[number],
    )  # fmt: skip


@inlined
def _number(tiers: Tiers, tier: int, r: int, num_replicas: int) -> int:
    """The shelf of replica `r` in a tier."""
    return tier * num_replicas + (0 if tiers.tiers[tier].is_shared != 0 else r)


@inlined
def _is_up(tier: Any, now: float) -> bool:
    return tier.is_there != 0 and not tier.down_from_s <= now < tier.down_to_s


@noinline
def _put(tiers: Tiers, tier: int, number: int, key: int) -> int:
    """Write a key to a shelf; returns the key that it evicts, or 0."""
    kind = tiers.tiers[tier]
    return put(_blocks(tiers, number), key, kind.max_blocks, kind.is_fifo != 0)


@inlined
def _write(tiers: Tiers, r: int, num_replicas: int, key: int, now: float) -> None:
    """Write a key to the first tier, and on from there."""
    offered, spilled = key, 0
    for tier in range(REMOTE + 1):
        kind = tiers.tiers[tier]
        if not _is_up(kind, now):
            continue
        given = spilled if kind.writes_back != 0 else offered
        spilled = _put(tiers, tier, _number(tiers, tier, r, num_replicas), given) if given != 0 else 0


@inlined
def _full_blocks(replica: Replica, request: Any) -> int:
    """Leading blocks that a request has computed and that others may find."""
    state = replica.state
    return min(request.prefix_count * state.blocks_per_hash, request.processed // state.block_size)


@feature
def write_prefix(cluster: Cluster, tiers: Tiers, r: int, request_id: int, now: float) -> None:
    """Request `request_id` has ended in replica `r`, or leaves it: its shared blocks are written."""
    replica = replica_view(cluster, r)
    for position in range(_full_blocks(replica, cluster.requests[request_id])):
        _write(tiers, r, cluster.replicas.size, prefix_cache.key_of(replica, request_id, position), now)


@jit
def store_prefixes(cluster: Cluster, tiers: Tiers, ids: Ints, now: float) -> None:
    """What these requests have computed so far is in the shared store, whatever becomes of their replicas; a store that
    is down takes nothing."""
    lent, shelves = borrow(cluster), borrow(tiers)
    if not _is_up(shelves.tiers[REMOTE], now):
        return
    for request_id in ids:
        request = lent.requests[request_id]
        if request.replica == NONE:
            continue
        replica = replica_view(lent, request.replica)
        number = _number(shelves, REMOTE, request.replica, lent.replicas.size)
        for position in range(_full_blocks(replica, request)):
            _put(shelves, REMOTE, number, prefix_cache.key_of(replica, request_id, position))


def forget_tiers(tiers: Tiers, r: int, num_replicas: int) -> None:
    """Host memory and SSDs of replica `r` hold nothing, as at the start."""
    if tiers.used.size:
        for array in (tiers.block_key, tiers.newer, tiers.older, tiers.slot_key, tiers.slot_block, tiers.used):
            array[[HOST * num_replicas + r, SSD * num_replicas + r]] = 0


@noinline
def _run_in(cluster: Cluster, tiers: Tiers, source: int, r: int, request_id: int, first: int, last: int) -> int:
    """How far the prefix goes on, from block `first`, on a shelf (or in the GPU of replica `r`, a peer)."""
    replica = replica_view(cluster, r)
    if source == PEERS:
        if replica.state.tracks_blocks == 0:
            return first
        for position in range(first, last):
            if prefix_cache.find(replica, prefix_cache.key_of(replica, request_id, position)) == NONE:
                return position
        return last
    blocks = _blocks(tiers, _number(tiers, source, r, cluster.replicas.size))
    for position in range(first, last):
        if prefix_cache.find(blocks, prefix_cache.key_of(replica, request_id, position)) == NONE:
            return position
    return last


@inlined
def _prefill_s(tables: IterationTables, replica: Replica, tokens: int, before: int) -> float:
    """Seconds to compute so many tokens behind those before them, alone, in chunks."""
    state = replica.state
    chunk = float(min(tokens, state.max_batch_tokens, tables.token_s.shape[1] - 1))
    kv = before + 0.5 * (tokens - chunk)
    shape = Shape(int(chunk), 1, chunk * chunk, chunk * kv, 0, 0.0, 0.0, 0, kv)
    return iteration_s(tables, state.row, state.num_stages, shape, int(chunk)) * tokens / chunk


@feature
def begin_load(
    cluster: Cluster, tables: IterationTables, tiers: Tiers, transfers: Transfers, book: Any, r: int, request_id: int,
    now: float,
) -> bool:  # fmt: skip
    """Start to load what other places hold of a request's prefix beyond replica `r`'s GPU, from the place that has most
    of it; returns whether anything is loaded."""
    request, state = cluster.requests[request_id], cluster.replicas[r]
    if request.prefix_count == 0 or state.prefix_cache == 0:
        return False
    replica = replica_view(cluster, r)
    if state.tracks_blocks == 0:
        prefix_cache.track_blocks(replica)
    first = prefix_cache.count_hits(replica, request_id)
    last = min(request.prefix_count * state.blocks_per_hash, (request.prefill_tokens - 1) // state.block_size)
    best, source, owner = first, NONE, r
    for tier in range(NUM_SOURCES):
        kind = tiers.tiers[tier]
        if not _is_up(kind, now):
            continue
        if tier != PEERS:
            reach = _run_in(cluster, tiers, tier, r, request_id, first, last)
            if reach > best:
                best, source, owner = reach, tier, r
            continue
        for peer in range(cluster.replicas.size):
            other = cluster.replicas[peer]
            same = tiers.block_bytes[peer] == tiers.block_bytes[r] and other.block_size == state.block_size
            same = same and other.frozen == 0
            reach = _run_in(cluster, tiers, tier, peer, request_id, first, last) if same and peer != r else first
            if reach > best:
                best, source, owner = reach, tier, peer
    count = best - first
    held = prefix_cache.count_free_hits(replica, request_id, first)
    if source == NONE or count + held > state.free_blocks - state.watermark_blocks:
        return False
    tokens, kind = count * state.block_size, tiers.tiers[source]
    link = link_of(cluster, source, 0 if kind.is_shared != 0 else owner)
    num_bytes = count * tiers.block_bytes[r]
    if tiers.always_loads[0] == 0:
        loading_s = load_s(transfers, book, link, num_bytes, now) + kind.latency_s
        if loading_s > _prefill_s(tables, replica, tokens, first * state.block_size):
            tiers.loaded_tokens[r, NUM_SOURCES] += tokens
            return False
    start_load(transfers, book, request_id, link, num_bytes, now)
    tiers.loaded_tokens[r, source] += tokens
    for i in range(first):  # What is here already must not be evicted meanwhile.
        tiers.loading[request_id, i] = prefix_cache.find(replica, prefix_cache.key_of(replica, request_id, i))
        prefix_cache.share(replica, tiers.loading[request_id, i])
    for i in range(first, best):
        tiers.loading[request_id, i] = prefix_cache.take_oldest(replica)
    tiers.num_loading[request_id] = best
    tiers.source[request_id] = source
    state.free_blocks -= count
    state.peak_blocks = max(state.peak_blocks, state.num_blocks - state.free_blocks)
    state.num_landing += 1
    state.num_coming += 1
    for i in range(count):
        if source != PEERS and kind.is_fifo == 0:  # It was used: it is evicted later.
            key = prefix_cache.key_of(replica, request_id, first + i)
            _put(tiers, source, _number(tiers, source, r, cluster.replicas.size), key)
    request.loaded_from = first
    return True


@inlined
def link_of(cluster: Cluster, source: int, owner: int) -> int:
    """The link over which replica `owner`'s part of a source is loaded: behind those between replicas."""
    return (1 + source) * cluster.replicas.size + owner


@feature
def latency_s(cluster: Cluster, tiers: Tiers, link: int) -> float:
    """From the last byte over this link until it can be used."""
    return tiers.tiers[link // cluster.replicas.size - 1].latency_s


@feature
def end_load(cluster: Cluster, tiers: Tiers, request_id: int, now: float) -> None:
    """What was loaded for a request can be found in its replica's GPU from now on."""
    request = cluster.requests[request_id]
    request.loaded_s = now
    replica = replica_view(cluster, request.replica)
    for i in range(request.loaded_from, tiers.num_loading[request_id]):
        key = prefix_cache.key_of(replica, request_id, i)
        prefix_cache.remember(replica, key, tiers.loading[request_id, i])
    for i in range(tiers.num_loading[request_id] - 1, -1, -1):
        prefix_cache.release(replica, tiers.loading[request_id, i])
    tiers.num_loading[request_id] = 0
    replica.state.num_landing -= 1
    replica.state.num_coming -= 1
    request.loaded_from = NONE
