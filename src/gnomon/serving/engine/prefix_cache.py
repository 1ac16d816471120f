"""KV blocks that can be found again by what they hold.

A full block carries a key: the workload's prefix hash where requests share a prefix (prompts, and the answers that a
conversation goes on from), else one of the request's own (so that a pre-empted request finds its blocks again). Blocks
of prompts can be found once they are computed (vLLM's policies: as soon as they are placed), those of an answer when it
is complete. Free blocks keep their key and wait in a list, oldest first, until they are taken for something else;
whoever asks for the key before that gets the block back. This is the automatic prefix caching of vLLM v1.

Until the first request with a shared prefix arrives, or the first pre-emption, nothing can be found, so blocks are only
counted; then `track_blocks` gives an identity to those held. Results are the same as if they always had one.
"""

from typing import Any

from gnomon.jit import inlined, noinline
from gnomon.serving.engine.state import NONE, Replica

_PRIME = 2_147_483_647


@noinline
def track_blocks(replica: Replica) -> None:
    """From now on blocks have an identity: those held are numbered through, the others form the list of free ones."""
    state, tables = replica.state, replica.tables
    state.tracks_blocks = 1
    block = 0
    for row in range(replica.free_rows.size):
        r = tables[row, 0]
        request = replica.requests[r]
        if request.replica == state.id and request.table == row:
            for position in range(request.num_blocks):
                tables[row, position] = block
                replica.block_users[block] = 1
                block += 1
    for i in range(state.num_loose):
        replica.loose_blocks[i] = block
        replica.block_users[block] = 1
        block += 1
    assert block == state.num_blocks - state.free_blocks
    end = replica.newer.size - 1
    replica.newer[end] = replica.older[end] = end
    for free in range(block, state.num_blocks):
        append(replica, free)


@inlined
def key_of(replica: Replica, r: int, position: int) -> int:
    """The key of block `position` of request `r`: negative for shared prefixes, positive for its own."""
    request = replica.requests[r]
    per_hash = replica.state.blocks_per_hash
    if position < request.prefix_count * per_hash:
        if per_hash == 1:  # As below, without divisions.
            return -replica.prefix_hashes[request.prefix_first + position] - 1
        shared = replica.prefix_hashes[request.prefix_first + position // per_hash]
        return -(shared * per_hash + position % per_hash) - 1
    return (int(r) + 1) * 16_777_216 + int(position) + 1  # Plain Python would stay in their 32 bits.


@inlined
def _home(replica: Any, key: int) -> int:
    """The slot where the search for `key` starts. Products stay below 2**63: plain Python must agree."""
    return (key % _PRIME * 1_000_003) % _PRIME & (replica.slot_key.size - 1)


@inlined
def _slot_of(replica: Any, key: int) -> int:
    """The slot that holds `key`, or the empty one where it belongs."""
    mask = replica.slot_key.size - 1
    slot = _home(replica, key)
    while replica.slot_key[slot] != 0 and replica.slot_key[slot] != key:
        slot = (slot + 1) & mask
    return slot


@inlined
def find(replica: Any, key: int) -> int:
    """The block that holds `key`, or NONE. (Anything with such a table will do: `gnomon.serving.features.tiers`.)"""
    slot = _slot_of(replica, key)
    return replica.slot_block[slot] if replica.slot_key[slot] == key else NONE


@inlined
def remember(replica: Any, key: int, block: int) -> None:
    """Let `block` be found under `key`, unless another block already is."""
    slot = _slot_of(replica, key)
    if replica.slot_key[slot] == 0:
        replica.slot_key[slot] = key
        replica.slot_block[slot] = block
        replica.block_key[block] = key


@inlined
def forget(replica: Any, block: int) -> None:
    """The block is about to hold something else. Entries behind the hole move up, so that probing stays unbroken."""
    key = replica.block_key[block]
    if key == 0:
        return
    replica.block_key[block] = 0
    mask = replica.slot_key.size - 1
    hole = _slot_of(replica, key)
    slot = (hole + 1) & mask
    while replica.slot_key[slot] != 0:
        home = _home(replica, replica.slot_key[slot])
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            replica.slot_key[hole] = replica.slot_key[slot]
            replica.slot_block[hole] = replica.slot_block[slot]
            hole = slot
        slot = (slot + 1) & mask
    replica.slot_key[hole] = 0


@inlined
def unlink(replica: Any, block: int) -> None:
    """Take a block out of the list of free ones."""
    replica.newer[replica.older[block]] = replica.newer[block]
    replica.older[replica.newer[block]] = replica.older[block]


@inlined
def append(replica: Any, block: int) -> None:
    """Put a block behind all others in the list of free ones: it is taken last."""
    end = replica.newer.size - 1
    newest = replica.older[end]
    replica.newer[newest] = block
    replica.older[block] = newest
    replica.newer[block] = end
    replica.older[end] = block


@inlined
def take_oldest(replica: Replica) -> int:
    """Take the free block that has waited longest; what it held is forgotten."""
    end = replica.newer.size - 1
    block = replica.newer[end]
    assert block != end
    unlink(replica, block)
    forget(replica, block)
    replica.block_users[block] = 1
    return block


@inlined
def share(replica: Replica, block: int) -> None:
    """Hold a block that was found by its key."""
    if replica.block_users[block] == 0:
        unlink(replica, block)
        replica.state.free_blocks -= 1
    replica.block_users[block] += 1


@inlined
def release(replica: Replica, block: int) -> None:
    """Let go of a block; the last holder puts it behind all other free ones."""
    replica.block_users[block] -= 1
    if replica.block_users[block] > 0:
        return
    append(replica, block)
    replica.state.free_blocks += 1
    replica.state.lacks_blocks = 0


@inlined
def count_hits(replica: Replica, r: int) -> int:
    """How many leading blocks of request `r` are there already. At least one token is left to compute."""
    if replica.state.tracks_blocks == 0:
        return 0
    full = (replica.requests[r].prefill_tokens - 1) // replica.state.block_size
    for position in range(full):
        if find(replica, key_of(replica, r, position)) == NONE:
            return position
    return full


@inlined
def count_free_hits(replica: Replica, r: int, hits: int) -> int:
    """How many of these hits nobody holds: taking them uses up free blocks."""
    free = 0
    for position in range(hits):
        if replica.block_users[find(replica, key_of(replica, r, position))] == 0:
            free += 1
    return free


@inlined
def key_full_blocks(replica: Replica, r: int, num_tokens: int) -> None:
    """Make the blocks of a shared prefix (or an answer to go on from) that `num_tokens` tokens fill findable."""
    if replica.state.tracks_blocks == 0:
        return
    request = replica.requests[r]
    shared = request.prefix_count * replica.state.blocks_per_hash
    full = min(num_tokens // replica.state.block_size, shared, request.num_blocks)
    for position in range(request.keyed_blocks, full):
        remember(replica, key_of(replica, r, position), replica.tables[request.table, position])
    if full > request.keyed_blocks:
        request.keyed_blocks = full
        replica.state.lacks_blocks = 0


@inlined
def key_own_blocks(replica: Replica, r: int, num_tokens: int) -> None:
    """Make all full blocks findable. Only a request that will come back needs that for those it shares with nobody."""
    request = replica.requests[r]
    for position in range(request.keyed_blocks, num_tokens // replica.state.block_size):
        remember(replica, key_of(replica, r, position), replica.tables[request.table, position])
        replica.state.lacks_blocks = 0
