"""Decodes that step together, at a cost that does not depend on how many there are.

When every running decode gets its token in every iteration, nothing has to be done for each of them: their lengths are
known from one clock (`state.steps`), the sum of their lengths grows by their number, and how many need one more block
at a step follows from their lengths modulo the block size. Only joining, finishing and running out of memory touch
single requests. A member's own record is therefore out of date until it is settled.

A policy places them with `place_together`. Where it cannot (memory is short, or the batch cap), they go back to the
running list with up-to-date records and are handled one by one. Results are the same either way.
"""

from gnomon.jit import inlined
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.batch_operations import blocks_missing, defer, finish, is_decoding
from gnomon.serving.engine.log import Log, log_gap
from gnomon.serving.engine.state import IN_FLIGHT, RUNNING, Replica

NEVER_STEP = 1 << 62

# Columns of `replica.grouped`: the request, the step after which it is done, and its length less the steps so far.
ID, DUE, LENGTH = range(3)


@inlined
def join(replica: Replica, r: int) -> None:
    """Let a decoding request step with the others from now on."""
    state, request = replica.state, replica.requests[r]
    request.joined = state.steps
    request.status = IN_FLIGHT
    due = state.steps + request.total_tokens - request.processed  # One token a step: known now, never touched again.
    replica.grouped[state.num_grouped, ID] = r
    replica.grouped[state.num_grouped, DUE] = due
    # Less the clock, a length never changes: the longest can be found again without asking the requests.
    replica.grouped[state.num_grouped, LENGTH] = request.processed - state.steps
    state.num_grouped += 1
    state.step_kv += request.processed
    state.step_kv_max = max(state.step_kv_max, request.processed)
    state.next_finish = min(state.next_finish, due)
    state.last_admitted_grouped = max(state.last_admitted_grouped, request.admission)
    if request.last_token_s != state.last_step_s:
        state.num_off_beat += 1
    if request.num_blocks * state.block_size < request.total_tokens:
        replica.growth[_growth_class(replica, r, state.steps)] += 1


@inlined
def _growth_class(replica: Replica, r: int, joined: int) -> int:
    """The steps, modulo the block size, at which a request that joined at step `joined` needs one more block."""
    state, request = replica.state, replica.requests[r]
    # Its next block is due when its tokens overflow those held, then every `block_size` steps: always in one class.
    until_growth = request.num_blocks * state.block_size - request.processed + 1
    return (joined + until_growth) % state.block_size


@inlined
def may_join(replica: Replica, r: int) -> bool:
    """Whether its next block is less than a block's worth of steps away, or never needed."""
    state, request = replica.state, replica.requests[r]
    # One that holds more is due in a later round of the same class, which `growth` cannot tell from the next.
    room = request.num_blocks * state.block_size
    return 0 <= room - request.processed + 1 < state.block_size or room >= request.total_tokens


@inlined
def place_together(replica: Replica) -> int:
    """Place all requests that step together, one token each; returns how many. Call before placing others.

    Each has a free block at hand when its turn comes, whether it needs it or not; otherwise none is placed and all
    return to the running list.
    """
    state = replica.state
    if state.num_grouped == 0:
        return 0
    needed = replica.growth[state.steps % state.block_size]
    # One block more than needed: policies want a free one at hand for the last decode, too.
    if needed + 1 > state.free_blocks or state.num_grouped > min(state.max_in_batch, state.max_batch_tokens):
        dissolve(replica, 0)
        return 0
    grow(replica, needed)
    state.in_step = 1
    state.batch_size = state.num_grouped
    return state.num_grouped


@inlined
def grow(replica: Replica, needed: int) -> None:
    """Take the blocks that those who step together need for their next token."""
    state = replica.state
    if state.tracks_blocks != 0:
        for i in range(needed):
            replica.loose_blocks[state.num_loose + i] = prefix_cache.take_oldest(replica)
    state.num_loose += needed
    state.free_blocks -= needed
    state.peak_blocks = max(state.peak_blocks, state.num_blocks - state.free_blocks)


@inlined
def processed_now(replica: Replica, r: int) -> int:
    """`processed` of a request, whether it steps with others or not."""
    request = replica.requests[r]
    if request.status == IN_FLIGHT and is_decoding(replica, r):
        return request.processed + replica.state.steps - request.joined
    return request.processed


@inlined
def _settle(replica: Replica, r: int) -> None:
    """Bring the record of a member up to date, and give it the blocks that were taken for it."""
    state, request = replica.state, replica.requests[r]
    done = state.steps - request.joined
    request.processed += done
    request.joined = state.steps
    if done > 0:
        request.last_token_s = state.last_step_s
    # The block for a token is taken when its step is placed: that of the next one may be there already.
    missing = blocks_missing(replica, r, request.processed - 1 + state.in_step)
    state.num_loose -= missing
    if state.tracks_blocks != 0:
        for i in range(missing):
            replica.tables[request.table, request.num_blocks + i] = replica.loose_blocks[state.num_loose + i]
    request.num_blocks += missing


@inlined
def dissolve(replica: Replica, position: int) -> None:
    """Put all members back into the running list at `position`."""
    state, running, count = replica.state, replica.running, replica.state.num_grouped
    for i in range(state.num_running - 1, position - 1, -1):
        running[i + count] = running[i]
    for i in range(count):
        r = replica.grouped[i, ID]
        _settle(replica, r)
        replica.requests[r].status = RUNNING
        running[position + i] = r
    state.num_running += count
    _forget_all(replica)


@inlined
def _forget_all(replica: Replica) -> None:
    state = replica.state
    state.num_grouped = 0
    state.step_kv = 0
    state.step_kv_max = 0
    state.num_off_beat = 0
    state.next_finish = NEVER_STEP
    state.last_admitted_grouped = 0
    for i in range(state.block_size):
        replica.growth[i] = 0


@inlined
def end_step(replica: Replica, log: Log, now: float) -> int:
    """All members have produced a token. Returns how many are done with it, whose ids lead the list of the batch."""
    state = replica.state
    if state.num_off_beat > 0:
        _log_each_gap(replica, log, now)
    else:
        log_gap(log, now - state.last_step_s, state.num_grouped)
    state.steps += 1
    state.stalled = 0
    state.in_step = 0
    state.step_kv += state.num_grouped
    state.step_kv_max += 1
    state.decode_left -= state.num_grouped
    state.num_produced += state.num_grouped
    state.last_step_s = now
    state.num_off_beat = 0
    return _finish_due(replica, now) if state.steps >= state.next_finish else 0


@inlined
def _log_each_gap(replica: Replica, log: Log, now: float) -> None:
    """Some members' last token came at another moment: those that joined since the last step."""
    state = replica.state
    for i in range(state.num_grouped):
        request = replica.requests[replica.grouped[i, ID]]
        last = request.last_token_s if request.joined == state.steps else state.last_step_s
        log_gap(log, now - last, 1)


@inlined
def _finish_due(replica: Replica, now: float) -> int:
    """Finish the members that have all their tokens; the others keep their order. Returns how many they are; their ids
    are written where the batch is formed, which has no need of the ids of members."""
    state, members = replica.state, replica.grouped
    kept, next_finish, longest = 0, NEVER_STEP, -NEVER_STEP
    count = state.num_grouped
    for i in range(count):
        due, length = members[i, DUE], members[i, LENGTH]
        if due <= state.steps:
            replica.batch[i - kept] = members[i, ID]
            _finish_member(replica, members[i, ID], now)
            continue
        members[kept, ID] = members[i, ID]
        members[kept, DUE] = due
        members[kept, LENGTH] = length
        kept += 1
        next_finish = min(next_finish, due)
        longest = max(longest, length)
    state.num_grouped = kept
    state.next_finish = next_finish
    state.step_kv_max = longest + state.steps if kept > 0 else 0  # `longest` is less the clock.
    return count - kept


@inlined
def _finish_member(replica: Replica, r: int, now: float) -> None:
    state, request = replica.state, replica.requests[r]
    if request.num_blocks * state.block_size < request.total_tokens:
        replica.growth[_growth_class(replica, r, request.joined)] -= 1
    _settle(replica, r)
    state.step_kv -= request.processed
    if state.overlaps != 0:
        defer(replica, r, RUNNING)
    else:
        finish(replica, r, now)
