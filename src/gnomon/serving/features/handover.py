"""From the replica that prefills a request to the one that decodes it.

    prefilled ──(hop)──> waits for blocks there ──> its KV moves ──> runs there
    holds its blocks here ─────────────────────────────────> freed

The decode replica takes in requests in the order in which they were prefilled, when it has a place and blocks for the
whole prompt (back-pressure: until then the prefill replica's memory stays taken). What its prefix cache holds does not
move. Batching policies know nothing of all this: a request whose KV has landed is simply one of those that run.
"""

from gnomon.jit import inlined, noinline
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.batch_operations import (
    blocks_for,
    blocks_missing,
    defer,
    hold,
    hold_found,
    is_late,
    keep_for_move,
    push_waiting,
)
from gnomon.serving.engine.state import FROM_DECODE, FROM_PREFILL, FROM_TRANSFER, MOVING, NONE, RUNNING, Replica


@inlined
def leaves(replica: Replica, r: int) -> bool:
    """Whether request `r` goes elsewhere once it is prefilled. One that is done with its first token stays."""
    request, state = replica.requests[r], replica.state
    if request.decode_replica == NONE or request.decode_replica == state.id:
        return False
    return state.first_token_at == FROM_DECODE or request.prefill_tokens + 1 < request.total_tokens


@noinline
def hand_over(replica: Replica, r: int, now: float) -> None:
    """Request `r` is prefilled, and goes to where it decodes."""
    state, request = replica.state, replica.requests[r]
    state.decode_left -= request.total_tokens - request.prefill_tokens
    if state.first_token_at != FROM_DECODE:
        request.processed += 1
        state.num_produced += 1
    if state.first_token_at == FROM_PREFILL:
        _stamp_first_token(replica, r, now)
    keep_for_move(replica, r, now)


@inlined
def _stamp_first_token(replica: Replica, r: int, now: float) -> None:
    request = replica.requests[r]
    request.last_token_s = now
    if request.first_token_s < 0.0:  # One that was sent again has had it before.
        request.first_token_s = now
        request.first_reply_s = replica.state.reply_s


@noinline
def free_held(replica: Replica, r: int) -> None:
    """The KV of request `r` is needed here no more."""
    state, request = replica.state, replica.requests[r]
    if request.held_counts != 0:
        state.num_holding -= 1
    else:
        state.num_moving -= 1
    if state.prefix_cache != 0:
        replica.free_rows[state.num_holding + state.num_moving] = request.held_table
    if state.tracks_blocks != 0:
        for position in range(request.held_blocks - 1, -1, -1):
            prefix_cache.release(replica, replica.tables[request.held_table, position])
    else:
        state.free_blocks += request.held_blocks
    request.held_blocks = 0
    state.num_held -= 1


@inlined
def push_ready(replica: Replica, r: int) -> None:
    """Request `r` waits here for blocks, behind the others that do."""
    state, request = replica.state, replica.requests[r]
    request.replica = state.id
    request.next_waiting = NONE
    if state.num_ready == 0:
        state.first_ready = r
    else:
        replica.requests[state.last_ready].next_waiting = r
    state.last_ready = r
    state.num_ready += 1
    if request.prefix_count > 0 and state.prefix_cache != 0 and state.tracks_blocks == 0:
        prefix_cache.track_blocks(replica)


@inlined
def pop_ready(replica: Replica) -> int:
    """Take out the first request that waits for blocks."""
    state = replica.state
    r = state.first_ready
    state.first_ready = replica.requests[r].next_waiting
    state.num_ready -= 1
    return r


@noinline
def unlink_ready(replica: Replica, r: int) -> None:
    """Take request `r` out of those that wait for blocks, wherever it stands among them."""
    state, before, one = replica.state, NONE, replica.state.first_ready
    while one != r:
        before, one = one, replica.requests[one].next_waiting
    if before == NONE:
        state.first_ready = replica.requests[r].next_waiting
    else:
        replica.requests[before].next_waiting = replica.requests[r].next_waiting
    if state.last_ready == r:
        state.last_ready = before
    state.num_ready -= 1


@inlined
def may_land(replica: Replica) -> bool:
    """Whether the first request that waits for blocks can have them."""
    state = replica.state
    if state.num_ready == 0 or state.num_holding >= state.max_running:
        return False
    r = state.first_ready
    hits = prefix_cache.count_hits(replica, r)
    taken = prefix_cache.count_free_hits(replica, r, hits)
    needed = blocks_for(replica, replica.requests[r].prefill_tokens) - hits + taken
    return needed <= state.free_blocks - state.watermark_blocks


@inlined
def never_lands(replica: Replica) -> bool:
    """Whether all memory is not enough for the first request that waits for blocks."""
    state = replica.state
    if state.num_ready == 0:
        return False
    needed = blocks_for(replica, replica.requests[state.first_ready].prefill_tokens)
    return needed > state.num_blocks - state.watermark_blocks


@noinline
def begin_landing(replica: Replica, now: float) -> int:
    """Give the first request that waits for blocks its blocks; what this cache holds is there already
    (`request.processed` tokens). Returns the request."""
    state = replica.state
    r = pop_ready(replica)
    request = replica.requests[r]
    hits = prefix_cache.count_hits(replica, r)
    request.status = RUNNING
    if hits > 0:
        hold_found(replica, r, hits)
    hold(replica, r, blocks_missing(replica, r, request.prefill_tokens))
    request.moving_s = now
    request.processed = hits * state.block_size
    request.status = MOVING
    state.num_landing += 1
    return r


@noinline
def land(replica: Replica, r: int, now: float) -> None:
    """The KV of request `r` is here: it runs from now on."""
    state, request = replica.state, replica.requests[r]
    prefix_cache.key_full_blocks(replica, r, request.prefill_tokens)
    state.num_landing -= 1
    state.num_coming -= 1
    state.num_taken += 1
    state.num_outstanding += 1
    state.stalled = 0
    request.landed_s = now
    if state.first_token_at == FROM_DECODE:  # The last prompt token is computed once more, for its logits.
        request.processed = request.prefill_tokens - 1
        state.prefill_left += 1
    else:
        request.processed = request.prefill_tokens + 1
    state.decode_left += request.total_tokens - max(request.processed, request.prefill_tokens)
    if state.first_token_at == FROM_TRANSFER:
        _stamp_first_token(replica, r, now)
    if is_late(state, now):
        defer(replica, r, RUNNING)
        return
    request.status = RUNNING
    replica.running[state.num_running] = r
    state.num_running += 1


@noinline
def prefill_here(replica: Replica) -> None:
    """The first request that waits for blocks has waited too long: its KV is dropped, and it is prefilled here."""
    state = replica.state
    r = pop_ready(replica)
    request = replica.requests[r]
    state.num_coming -= 1
    state.num_taken += 1
    state.num_outstanding += 1
    state.stalled = 0
    if state.first_token_at == FROM_TRANSFER:  # Nobody has seen the first token, which is lost with the KV.
        replica.ranks[request.prefill_replica].num_produced -= 1
    elif state.first_token_at == FROM_PREFILL:
        request.prefill_tokens = request.processed
    request.processed = 0
    request.decode_replica = state.id
    request.num_restarts += 1
    state.prefill_left += request.prefill_tokens
    state.decode_left += request.total_tokens - request.prefill_tokens
    push_waiting(replica, r)
