"""What batching policies do: look at the queue, hold blocks, place requests into the batch, pre-empt.

Every verb keeps the books (free blocks, queue lengths, work left), so that a policy is only its decision. What it is
asked for is checked where a user's own policy asks, and in plain Python for everybody.
"""

from typing import Any

from gnomon.jit import inlined, is_checked, noinline
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.state import (
    FINISHED,
    IN_FLIGHT,
    LEAVES,
    MOVING,
    NONE,
    OUTPUT_TOKENS,
    QUEUED,
    RUNNING,
    WAITING,
    Replica,
)


@inlined
def blocks_for(replica: Replica, tokens: int) -> int:
    """Blocks that `tokens` tokens need."""
    return (tokens + replica.state.block_size - 1) // replica.state.block_size


@inlined
def is_decoding(replica: Replica, r: int) -> bool:
    """Whether the prefill of request `r` is complete."""
    return replica.requests[r].processed > replica.requests[r].prefill_tokens


@inlined
def prefill_left(replica: Replica, r: int) -> int:
    """Prefill tokens of request `r` that are not computed yet."""
    return replica.requests[r].prefill_tokens - replica.requests[r].processed


@inlined
def computed(replica: Replica, r: int) -> int:
    """Tokens of request `r` whose KV is there: of those processed, the newest is only sampled yet."""
    processed = replica.requests[r].processed
    return processed - 1 if is_decoding(replica, r) else processed


# The waiting queue.


@inlined
def push_waiting(replica: Replica, r: int) -> None:
    """Put request `r` at the end of the waiting queue."""
    state = replica.state
    replica.requests[r].next_waiting = NONE
    if state.num_waiting == 0:
        state.first_waiting = r
    else:
        replica.requests[state.last_waiting].next_waiting = r
    state.last_waiting = r
    _count_waiting(replica, r)


@inlined
def push_waiting_front(replica: Replica, r: int) -> None:
    """Put request `r` before all others that wait."""
    state = replica.state
    replica.requests[r].next_waiting = state.first_waiting if state.num_waiting > 0 else NONE
    if state.num_waiting == 0:
        state.last_waiting = r
    state.first_waiting = r
    _count_waiting(replica, r)


@inlined
def _count_waiting(replica: Replica, r: int) -> None:
    replica.requests[r].status = WAITING
    replica.service[replica.requests[r].user_class, QUEUED] += 1.0
    replica.state.num_waiting += 1
    replica.state.waiting_tokens += replica.requests[r].prefill_tokens
    if replica.state.tracks_blocks != 0:
        _foresee(replica, r)


@noinline
def _foresee(replica: Replica, r: int) -> None:
    """Do not count as work left what request `r`, which begins to wait, would find in the prefix cache now."""
    request = replica.requests[r]
    request.foreseen = prefix_cache.count_hits(replica, r) * replica.state.block_size
    replica.state.prefill_left -= request.foreseen


@inlined
def pop_waiting(replica: Replica) -> int:
    """Take the first request out of the waiting queue; it is scheduled now."""
    state = replica.state
    if is_checked(replica):
        assert state.num_waiting > 0, "pop_waiting() was called although no request waits"
    r = state.first_waiting
    request = replica.requests[r]
    state.first_waiting = request.next_waiting
    state.num_waiting -= 1
    replica.service[request.user_class, QUEUED] -= 1.0
    state.waiting_tokens -= request.prefill_tokens
    state.prefill_left += request.foreseen  # What it finds now, `hold_cached` takes off.
    request.foreseen = 0
    request.status = RUNNING
    if request.scheduled_s < 0.0:
        request.scheduled_s = state.now_s
    if request.preempted_at_s >= 0.0:
        request.preempted_s += state.now_s - request.preempted_at_s
        request.preempted_at_s = -1.0
    return r


# Blocks.


@inlined
def hold(replica: Replica, r: int, blocks: int) -> None:
    """Give request `r` this many more blocks; the policy has checked that they are free."""
    state, request = replica.state, replica.requests[r]
    assert 0 <= blocks <= state.free_blocks, "hold() was asked for more blocks than are free (state.free_blocks)"
    if is_checked(replica):
        assert request.status == RUNNING, "hold() was called for a request that is neither from the queue nor running"
    if request.num_blocks == 0:
        _begin_holding(replica, r)
    if state.tracks_blocks != 0:
        for position in range(request.num_blocks, request.num_blocks + blocks):
            replica.tables[request.table, position] = prefix_cache.take_oldest(replica)
    state.free_blocks -= blocks
    request.num_blocks += blocks
    state.peak_blocks = max(state.peak_blocks, state.num_blocks - state.free_blocks)


@inlined
def blocks_missing(replica: Replica, r: int, tokens: int) -> int:
    """Blocks that request `r` lacks to hold `tokens` tokens."""
    held = replica.requests[r].num_blocks
    if tokens <= held * replica.state.block_size:
        return 0
    return blocks_for(replica, tokens) - held


@inlined
def hold_cached(replica: Replica, r: int, hits: int) -> None:
    """Give request `r` its first `hits` blocks from the prefix cache: that much prefill is done."""
    state, request = replica.state, replica.requests[r]
    state.cache_queries += request.prefill_tokens
    state.cache_hits += hits * state.block_size
    if request.num_restarts == 0:
        request.cached_tokens = hits * state.block_size
    if hits == 0:
        return
    hold_found(replica, r, hits)
    request.processed = hits * state.block_size
    state.prefill_left -= request.processed


@inlined
def hold_found(replica: Replica, r: int, hits: int) -> None:
    """Give request `r` the blocks of its first `hits` keys, which the prefix cache holds."""
    request = replica.requests[r]
    _begin_holding(replica, r)
    for position in range(hits):
        block = prefix_cache.find(replica, prefix_cache.key_of(replica, r, position))
        prefix_cache.share(replica, block)
        replica.tables[request.table, position] = block
    request.num_blocks = hits
    request.keyed_blocks = hits


@inlined
def _begin_holding(replica: Replica, r: int) -> None:
    state, request = replica.state, replica.requests[r]
    if state.prefix_cache != 0:
        request.table = replica.free_rows[state.num_holding + state.num_moving]
        replica.tables[request.table, 0] = r
    request.keyed_blocks = 0
    request.admission = state.num_admitted
    state.num_admitted += 1
    state.num_holding += 1


@inlined
def let_go(replica: Replica, r: int) -> None:
    """Free all blocks of request `r`, its last one first."""
    state, request = replica.state, replica.requests[r]
    if request.num_blocks == 0:
        return
    state.num_holding -= 1
    if state.prefix_cache != 0:
        replica.free_rows[state.num_holding + state.num_moving] = request.table
    if state.tracks_blocks != 0:
        for position in range(request.num_blocks - 1, -1, -1):
            prefix_cache.release(replica, replica.tables[request.table, position])
    else:
        state.free_blocks += request.num_blocks
    request.num_blocks = 0


@inlined
def grow_for_decode(replica: Replica, r: int) -> None:
    """Hold one more block when the tokens so far overflow those held."""
    request = replica.requests[r]
    if request.processed > request.num_blocks * replica.state.block_size:
        hold(replica, r, 1)


# The batch, and the list of running requests.


@inlined
def place(replica: Replica, r: int, tokens: int) -> None:
    """Add request `r` to the batch, computing `tokens` tokens."""
    state, request = replica.state, replica.requests[r]
    if is_checked(replica):
        assert state.batch_size < replica.batch.size, "place() found the batch full (state.max_in_batch)"
        assert request.status == RUNNING, "place() was called for a request that waits, was placed already or has ended"
        assert tokens > 0, "place() was called with no tokens to compute"
    replica.batch[state.batch_size] = r
    replica.batch_tokens[state.batch_size] = tokens
    state.batch_size += 1
    request.joined = state.steps  # It does not step with the others: its record is up to date.
    request.status = IN_FLIGHT


@inlined
def tokens_placed(replica: Replica) -> int:
    """Tokens of the batch so far."""
    state = replica.state
    together = state.num_grouped if state.in_step != 0 else 0
    tokens = together
    for i in range(together, state.batch_size):
        tokens += replica.batch_tokens[i]
    return tokens


@inlined
def finish(replica: Replica, r: int, now: float) -> None:
    """Request `r` has all its tokens: stamp it and free its blocks. One that makes the rest elsewhere leaves."""
    state, request = replica.state, replica.requests[r]
    if request.held_counts == LEAVES:
        _leave(replica, r, now)
        return
    if state.tracks_blocks != 0:
        # The answer, too, can be found again, but for its last token, whose KV is never computed.
        hashed = state.block_size * state.blocks_per_hash
        prefix_cache.key_full_blocks(replica, r, (request.total_tokens - 1) // hashed * hashed)
    replica.service[request.user_class, OUTPUT_TOKENS] += request.output_tokens - request.charged
    request.status = FINISHED
    request.finished_s = now
    # Never before its first token, which another replica may have sent.
    request.last_reply_s = max(state.reply_s, request.first_token_s + request.first_reply_s - now)
    state.num_finished += 1
    state.num_outstanding -= 1
    let_go(replica, r)
    if state.reports != 0:
        report(replica, r)


@noinline
def _leave(replica: Replica, r: int, now: float) -> None:
    """Request `r` decodes elsewhere from now on (`gnomon.serving.features.migration`)."""
    request = replica.requests[r]
    request.total_tokens = request.prompt_tokens + request.output_tokens
    request.prefill_tokens = request.processed - 1  # The newest token is only sampled yet.
    request.moving_s = request.landed_s = -1.0
    keep_for_move(replica, r, now)


@inlined
def keep_for_move(replica: Replica, r: int, now: float) -> None:
    """Request `r` runs here no more, but its blocks are held until its KV has moved."""
    state, request = replica.state, replica.requests[r]
    state.stalled = 0
    request.status = MOVING
    request.prefilled_s = now
    request.held_blocks = request.num_blocks
    request.held_table = request.table
    request.held_counts = 1 if state.num_moving >= state.max_moving else 0
    request.num_blocks = 0
    if request.held_counts == 0:
        state.num_holding -= 1
        state.num_moving += 1
    state.num_outstanding -= 1
    state.num_held += 1
    report(replica, r)


@inlined
def report(replica: Replica, r: int) -> None:
    """Tell the loop outside that request `r` has ended here."""
    state = replica.state
    if state.num_reported == 0:
        state.first_reported = r
    else:
        replica.requests[state.last_reported].next_waiting = r
    state.last_reported = r
    state.num_reported += 1


@inlined
def preempt(replica: Replica, r: int) -> None:
    """Free the blocks of request `r` and send it to the front of the queue, to be prefilled again with its output."""
    _give_up(replica, r, computed(replica, r))
    push_waiting_front(replica, r)


@inlined
def retract(replica: Replica, r: int) -> None:
    """Free the blocks of request `r` and send it to the end of the queue; only what it prefilled can be found again."""
    _give_up(replica, r, min(computed(replica, r), replica.requests[r].prefill_tokens))
    push_waiting(replica, r)


@inlined
def _give_up(replica: Replica, r: int, findable: int) -> None:
    """Free the blocks of request `r`; the prefix cache keeps its first `findable` tokens."""
    state, request = replica.state, replica.requests[r]
    if is_checked(replica):
        assert request.status == RUNNING, "preempt() was called for a request that is not running"
    if state.prefix_cache != 0:
        if state.tracks_blocks == 0:
            prefix_cache.track_blocks(replica)
        prefix_cache.key_own_blocks(replica, r, findable)
    state.prefill_left -= max(0, request.prefill_tokens - request.processed)
    request.prefill_tokens = max(request.prefill_tokens, request.processed)
    request.processed = 0
    request.num_restarts += 1
    request.num_preemptions += 1
    state.prefill_left += request.prefill_tokens
    state.num_preemptions += 1
    let_go(replica, r)
    if blocks_for(replica, request.prefill_tokens) > state.num_blocks:
        request.never_fits = 1
    request.preempted_at_s = state.now_s


# What a replica hears of while a batch runs, and acts on one batch later (`gnomon.serving.features.overlap`).


@inlined
def is_late(state: Any, now: float) -> bool:
    """Whether what a replica hears of now comes after the next batch was formed."""
    return bool(state.overlaps != 0 and state.num_in_flight > 0 and now > state.forms_s)


@inlined
def defer(replica: Replica, r: int, status: int) -> None:
    """Something has happened to request `r` that its replica acts on one batch later; it waits or runs meanwhile."""
    state = replica.state
    replica.requests[r].status = status
    if state.num_deferred == 0:
        state.first_deferred = r
    else:
        replica.requests[state.last_deferred].next_waiting = r
    state.last_deferred = r
    state.num_deferred += 1


@inlined
def keep_running(replica: Replica, first: int, last: int) -> None:
    """Only `running[first:last]` stay in the list of running requests."""
    if is_checked(replica):
        assert first >= 0 and last <= replica.state.num_running, "keep_running() was given more than `running` holds"
    for i in range(first, last):
        replica.running[i - first] = replica.running[i]
    replica.state.num_running = max(0, last - first)


@inlined
def sort_running_by_arrival(replica: Replica) -> None:
    """Order the running list by arrival (ids are given in order of arrival). It is nearly sorted already."""
    running = replica.running
    for i in range(1, replica.state.num_running):
        r, j = running[i], i - 1
        while j >= 0 and running[j] > r:
            running[j + 1] = running[j]
            j -= 1
        running[j + 1] = r


@inlined
def sort_running_by_admission(replica: Replica) -> None:
    """Order the running list by admission. It is nearly sorted already."""
    running, requests = replica.running, replica.requests
    for i in range(1, replica.state.num_running):
        r, j = running[i], i - 1
        while j >= 0 and requests[running[j]].admission > requests[r].admission:
            running[j + 1] = running[j]
            j -= 1
        running[j + 1] = r
