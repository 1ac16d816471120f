"""Where every request's time went, in whole nanoseconds; written only when asked for.

Each request has an account of parts that together are its time, to the last nanosecond: whatever happens to it, the
time since its last entry is divided and booked. The seconds of a part come from the same tables as the iteration itself
(`gnomon.timing.lookup`): an iteration is looked up again without its prefills, with empty contexts, for one request
alone, and the differences are what the others cost.

Decodes that step together are not touched one by one. A replica has two running clocks instead: what its waiting
requests wait for, and what its decodes spend their time on. A request is charged with the clock's advance between the
moments at which it begins and ends to wait or to step, as a taxi is paid by its meter. What a decode costs alone
depends on its own length only, so that it comes from a table of sums over lengths.
"""

from typing import Any

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.jit import borrow, inlined, jit, noinline
from gnomon.serving.engine.batch_operations import tokens_placed
from gnomon.serving.engine.decode_group import ID
from gnomon.serving.engine.state import FAULT, Cluster, Replica, replica_view
from gnomon.serving.features import iteration_breakdown
from gnomon.serving.features.iteration_breakdown import NUM_COLUMNS, divide, gpu_s, nanoseconds
from gnomon.timing.iteration import IterationTables
from gnomon.timing.lookup import Shape

# Parts of a request's time; columns of `Cluster.parts_ns`. The last ones, from DECODE_ALONE on, are those into which an
# iteration is divided (`gnomon.serving.features.iteration_breakdown`), and the clock of decodes.
(
    FRONT_END, ROUTING, ITERATION, BATCH_CAP, KV_FULL, TOKEN_BUDGET, POLICY, PREFILL_ALONE, PREFILL_OTHERS, PREEMPTED,
    RECOMPUTED, TRANSFER, TIER, OUTAGE, ADAPTER, DECODE_ALONE, DECODE_PREFILLS, DECODE_BATCH, DECODE_CONTEXTS,
    DECODE_TURN, PIPELINE, HOST, STRAGGLER,
) = range(23)  # fmt: skip
NUM_PARTS = 23
_METER = DECODE_ALONE

# Columns of `Cluster.clocks`: after the parts (what the waiting wait for, what decodes spend time on), these.
(
    CAUSE, SINCE, DECODED_UNTIL, PREFILL_ONLY, PREEMPTIONS_SEEN, REFERENCE_ROW, REFERENCE_STAGES, NEEDS, CHUNKS,
) = range(NUM_PARTS, NUM_PARTS + 9)  # fmt: skip
NUM_CLOCKS = NUM_PARTS + 9
NEEDS_OF = {"prompt": 0, "request": 1, "longest": 2}  # `PolicySpec.reserves` as a number.

BEFORE, AFTER = range(2)  # Of the first token: the two rows of an account.

# What a request is doing, as far as its account knows.
UNKNOWN, COMES, WAITS, RUNS, STEPS, LOST = range(6)

ENTRY = np.dtype(
    [
        ("first_ns", np.int64),  # when it reached the scheduler, and up to when its account is written
        ("last_ns", np.int64),
        ("prefill_only_ns", np.int64),  # what the clock of that name showed at its last entry
        ("inflicted_ns", np.int64),  # by how much its prefill delayed the decodes of others, all of them together
        ("cached", np.int32),  # tokens that its first prefill found computed
        ("kv", np.int32),  # its length when it began to step with others
        ("restarts", np.int32),  # of those in its record, the ones that are booked
        ("doing", np.int16),
        ("moves", np.int16),  # it is on its way from the replica that prefilled it, and waits there for this (a part)
    ],
    align=True,
)


@inlined
def is_on(cluster: Cluster) -> bool:
    """Whether it is written in this run."""
    return cluster.breakdown.size > 0


@noinline
def come(cluster: Cluster, request_id: int, now: float, part: int) -> None:
    """A request is on its way to a queue: since it arrived, or since this was called last, it waited for `part`."""
    entry = cluster.breakdown[request_id]
    if entry.doing == UNKNOWN:
        entry.first_ns = nanoseconds(cluster.requests[request_id].arrival_s)
        _forget(cluster, request_id)
        entry.doing = COMES
    if entry.doing == COMES:
        now_ns = nanoseconds(now)
        cluster.parts_ns[request_id, BEFORE, part] += now_ns - entry.last_ns
        entry.last_ns = now_ns


@noinline
def arrive(cluster: Cluster, r: int, request_id: int, now: float) -> None:
    """A request joins the queue of replica `r`: from here on it waits for what the others wait for."""
    request, entry, clock = cluster.requests[request_id], cluster.breakdown[request_id], cluster.clocks[r]
    if entry.doing > COMES:  # It comes from a replica that went away, and pays for the detour when it runs again.
        if entry.doing == WAITS:
            _forget(cluster, request_id)
        entry.doing = LOST
        return
    come(cluster, request_id, now, TIER if request.loaded_s >= 0.0 else OUTAGE)
    entry.doing = WAITS
    _charge_wait(cluster, clock, request_id, entry.last_ns, -1)


@inlined
def _forget(cluster: Cluster, request_id: int) -> None:
    """Nothing is booked for a request yet."""
    before, after = cluster.parts_ns[request_id, BEFORE], cluster.parts_ns[request_id, AFTER]
    for part in range(NUM_PARTS):
        before[part] = 0
        after[part] = 0
    cluster.breakdown[request_id].last_ns = cluster.breakdown[request_id].first_ns


@inlined
def _charge_wait(cluster: Cluster, clock: Any, request_id: int, now_ns: int, sign: int) -> None:
    """Read the meter of the waiting at `now_ns`: taken off at the beginning (-1), added at the end (+1)."""
    parts = cluster.parts_ns[request_id, BEFORE]
    for cause in range(ITERATION, POLICY + 1):
        parts[cause] += sign * clock[cause]
    parts[clock[CAUSE]] += sign * (now_ns - clock[SINCE])


@inlined
def note_queue(cluster: Cluster, r: int, now: float) -> None:
    """Replica `r` has formed a batch, or none: until the next one, this is what its queue waits for."""
    clock, now_ns = cluster.clocks[r], nanoseconds(now)
    clock[clock[CAUSE]] += now_ns - clock[SINCE]
    clock[SINCE] = now_ns
    clock[CAUSE] = ITERATION if cluster.replicas[r].num_waiting == 0 else _why_waiting(cluster, r)
    clock[PREEMPTIONS_SEEN] = cluster.replicas[r].num_preemptions


@inlined
def _why_waiting(cluster: Cluster, r: int) -> int:
    """What keeps the first in the queue out of the batch just formed."""
    state, clock = cluster.replicas[r], cluster.clocks[r]
    tokens = tokens_placed(replica_view(cluster, r))
    first = cluster.requests[state.first_waiting]
    if state.num_holding >= state.max_running or state.batch_size >= state.max_in_batch:
        return BATCH_CAP
    if state.num_preemptions > clock[PREEMPTIONS_SEEN]:
        return KV_FULL
    if tokens >= state.max_batch_tokens:
        return TOKEN_BUDGET
    needed = first.prefill_tokens
    if clock[NEEDS] == 1:
        needed = first.total_tokens
    elif clock[NEEDS] == 2:
        needed = state.max_request_tokens
    if (needed + state.block_size - 1) // state.block_size > state.free_blocks - state.watermark_blocks:
        return KV_FULL
    if clock[CHUNKS] == 0 and tokens + first.prefill_tokens > state.max_batch_tokens:
        return TOKEN_BUDGET
    return POLICY


@inlined
def take_off(cluster: Cluster, tables: IterationTables, r: int, position: int, shape: Shape, group_tokens: int) -> None:
    """Divide the time of the batch just launched, and end the waiting of those it admits."""
    if cluster.control[FAULT] != 0:
        return
    state, flight, clock = cluster.replicas[r], cluster.flights[r, position], cluster.clocks[r]
    divide(cluster, tables, r, position, shape, group_tokens, clock[REFERENCE_ROW], clock[REFERENCE_STAGES])
    now_ns = nanoseconds(state.now_s)
    slowed = cluster.flight_ns[r, position, iteration_breakdown.PREFILLS] * shape.decodes
    for i in range(flight.num_grouped, flight.num_requests):
        request_id = cluster.flight_requests[r, position, i]
        request, entry = cluster.requests[request_id], cluster.breakdown[request_id]
        phase = int(request.first_token_s >= 0.0)
        if entry.doing == WAITS:
            _charge_wait(cluster, clock, request_id, now_ns, 1)
            entry.cached = request.processed
            entry.doing, entry.last_ns = RUNS, now_ns
        if entry.doing == LOST:
            cluster.parts_ns[request_id, phase, OUTAGE] += now_ns - entry.last_ns
            entry.doing, entry.last_ns = RUNS, now_ns
        if entry.moves != 0 and request.landed_s >= 0.0:
            _book_move(cluster, request_id, now_ns)
        if entry.restarts != request.num_restarts:
            cluster.parts_ns[request_id, phase, PREEMPTED] += now_ns - entry.last_ns
            entry.restarts, entry.last_ns = request.num_restarts, now_ns
        if slowed > 0 and flight.prefill_tokens > 0 and request.processed <= request.prefill_tokens:
            entry.inflicted_ns += slowed * cluster.flight_tokens[r, position, i] // flight.prefill_tokens


@inlined
def move(cluster: Cluster, request_id: int, now: float) -> None:
    """The replica that is to decode a request learns that it is prefilled: from here on it waits for room there."""
    request, entry = cluster.requests[request_id], cluster.breakdown[request_id]
    state, now_ns = cluster.replicas[request.decode_replica], nanoseconds(now)
    cluster.parts_ns[request_id, int(request.first_token_s >= 0.0), TRANSFER] += now_ns - entry.last_ns
    entry.last_ns = now_ns
    entry.moves = BATCH_CAP if state.num_holding >= state.max_running else KV_FULL


@inlined
def _book_move(cluster: Cluster, request_id: int, now_ns: int) -> None:
    """A request was prefilled elsewhere: it waited for room here, its KV moved, an iteration was under way."""
    request, entry = cluster.requests[request_id], cluster.breakdown[request_id]
    had_token = request.first_token_s >= 0.0 and request.first_token_s < request.landed_s
    parts = cluster.parts_ns[request_id, int(had_token)]
    moving_ns, landed_ns = nanoseconds(request.moving_s), nanoseconds(request.landed_s)
    parts[entry.moves] += moving_ns - entry.last_ns
    parts[TRANSFER] += landed_ns - moving_ns
    cluster.parts_ns[request_id, int(request.first_token_s >= 0.0), ITERATION] += now_ns - landed_ns
    entry.last_ns, entry.moves = now_ns, 0
    entry.prefill_only_ns = cluster.clocks[request.replica, PREFILL_ONLY]  # Not that of the replica it comes from.


@jit
def lose(cluster: Cluster, ids: Ints, keeps_tokens: bool) -> None:
    """The replica of these requests has died: book what they had until then, or, if their tokens are lost, forget it.
    To be called before their records are changed."""
    lent = borrow(cluster)
    for request_id in ids:
        entry, r = lent.breakdown[request_id], lent.requests[request_id].replica
        if entry.doing <= COMES:  # It was on its way to the queue: it pays for the detour when it comes to another.
            continue
        if entry.doing == STEPS:
            _leave(lent, r, request_id, lent.replicas[r].steps)
        elif entry.doing == WAITS:
            entry.last_ns = max(entry.last_ns, lent.clocks[r, SINCE])
            _charge_wait(lent, lent.clocks[r], request_id, entry.last_ns, 1)
        if not keeps_tokens:
            _forget(lent, request_id)
        entry.doing = LOST


@inlined
def end_batch(cluster: Cluster, r: int, position: int) -> None:
    """Advance the clock of decodes by a batch that ends, before anything else is done about that end."""
    state, flight, clock = cluster.replicas[r], cluster.flights[r, position], cluster.clocks[r]
    start_ns, end_ns = nanoseconds(flight.start_s), nanoseconds(flight.end_s)
    only_prefills = flight.decodes == 0 and flight.prefill_tokens > 0
    if state.num_grouped > 0:
        if flight.num_grouped > 0:
            clock[DECODE_TURN] += start_ns - clock[DECODED_UNTIL]
            columns = cluster.flight_ns[r, position]
            for i in range(NUM_COLUMNS):
                clock[_METER + i] += columns[i]
        else:
            clock[DECODE_PREFILLS if only_prefills else DECODE_TURN] += end_ns - clock[DECODED_UNTIL]
    clock[DECODED_UNTIL] = end_ns
    if only_prefills:
        clock[PREFILL_ONLY] += end_ns - start_ns


@inlined
def pass_steps(cluster: Cluster, r: int, steps: int, until_s: float, host_ns: int, slower_ns: int) -> None:
    """Advance the clock of decodes by so many steps in a row of the same decodes and nothing else, the last of which
    ends at `until_s`: as `divide` and `end_batch` for each of them."""
    clock, until_ns = cluster.clocks[r], nanoseconds(until_s)
    floors = cluster.floor_ns[clock[REFERENCE_ROW]]
    alone_ns = floors[1] * steps
    batch_ns = floors[cluster.replicas[r].num_grouped] * steps - alone_ns
    clock[DECODE_ALONE] += alone_ns
    clock[DECODE_BATCH] += batch_ns
    clock[HOST] += host_ns
    clock[STRAGGLER] += slower_ns
    clock[DECODE_CONTEXTS] += until_ns - clock[DECODED_UNTIL] - alone_ns - batch_ns - host_ns - slower_ns
    clock[DECODED_UNTIL] = until_ns


@inlined
def join(cluster: Cluster, r: int, request_id: int) -> None:
    """A request begins to step with the others, at the end of a batch."""
    request, parts = cluster.requests[request_id], cluster.parts_ns[request_id, AFTER]
    for part in range(_METER, NUM_PARTS):
        parts[part] -= cluster.clocks[r, part]
    cluster.breakdown[request_id].kv = request.processed
    cluster.breakdown[request_id].doing = STEPS


@inlined
def _leave(cluster: Cluster, r: int, request_id: int, steps: int) -> None:
    """A request ends to step with the others, after so many steps of the replica."""
    request, entry, parts = (
        cluster.requests[request_id], cluster.breakdown[request_id], cluster.parts_ns[request_id, AFTER],
    )  # fmt: skip
    clock = cluster.clocks[r]
    for part in range(_METER, NUM_PARTS):
        parts[part] += clock[part]
    sums = cluster.context_ns[clock[REFERENCE_ROW]]
    length = max(request.processed, request.prefill_tokens)  # The latter if it has just been pre-empted.
    own = sums[length + steps - request.joined] - sums[entry.kv]
    parts[DECODE_ALONE] += own
    parts[DECODE_CONTEXTS] -= own
    entry.doing, entry.last_ns, entry.prefill_only_ns = RUNS, clock[DECODED_UNTIL], clock[PREFILL_ONLY]


@inlined
def leave_done(cluster: Cluster, replica: Replica, r: int, count: int) -> None:
    """The first `count` in the list of the batch stepped with the others, and are done with this step."""
    for i in range(count):
        _leave(cluster, r, replica.batch[i], replica.state.steps)


@noinline
def leave_all(cluster: Cluster, r: int, count: int) -> None:
    """The first `count` that stepped together are no longer one."""
    for i in range(count):
        _leave(cluster, r, cluster.grouped[r, i, ID], cluster.replicas[r].steps)


@inlined
def end_member(cluster: Cluster, tables: IterationTables, r: int, position: int, i: int) -> None:
    """Book a batch for one that was in it by itself; to be called before its tokens are counted."""
    flight, clock, columns = cluster.flights[r, position], cluster.clocks[r], cluster.flight_ns[r, position]
    request_id, tokens = cluster.flight_requests[r, position, i], cluster.flight_tokens[r, position, i]
    request, entry = cluster.requests[request_id], cluster.breakdown[request_id]
    phase = int(request.first_token_s >= 0.0)
    parts = cluster.parts_ns[request_id, phase]
    start_ns, end_ns = nanoseconds(flight.start_s), nanoseconds(flight.end_s)
    gap = start_ns - entry.last_ns
    entry.last_ns = end_ns
    if request.processed > request.prefill_tokens:
        behind = min(gap, clock[PREFILL_ONLY] - entry.prefill_only_ns)
        parts[DECODE_PREFILLS] += behind
        parts[PIPELINE if cluster.replicas[r].num_stages > 1 else DECODE_TURN] += gap - behind
        for k in range(NUM_COLUMNS):
            parts[_METER + k] += columns[k]
        sums = cluster.context_ns[clock[REFERENCE_ROW]]
        own = sums[request.processed + 1] - sums[request.processed]
        parts[DECODE_ALONE] += own
        parts[DECODE_CONTEXTS] -= own
    else:
        rest = end_ns - start_ns
        for part in range(PIPELINE, NUM_PARTS):
            parts[part] += columns[part - _METER]
            rest -= columns[part - _METER]
        parts[_prefill_part(request, parts)] += rest
        parts[PIPELINE if cluster.replicas[r].num_stages > 1 else PREFILL_OTHERS] += gap
        if phase == 0 and parts[PREFILL_ALONE] == 0 and request.processed + tokens == request.prefill_tokens:
            _find_alone(cluster, tables, r, request_id, parts)
    entry.prefill_only_ns = clock[PREFILL_ONLY]


@inlined
def _prefill_part(request: Any, parts: Any) -> int:
    """What an iteration with a part of its prompt is for a request. Where KV has come from another replica, the last
    token is computed once more, for its logits."""
    if request.num_restarts == 0 and parts[PREFILL_ALONE] == 0:
        return PREFILL_OTHERS
    is_last = request.landed_s >= 0.0 and request.processed + 1 == request.prefill_tokens
    return TRANSFER if is_last and request.first_token_s < 0.0 else RECOMPUTED


@noinline
def _find_alone(cluster: Cluster, tables: IterationTables, r: int, request_id: int, parts: Any) -> None:
    """The first prefill is complete: of its time, so much it would have taken alone."""
    state, clock, request = cluster.replicas[r], cluster.clocks[r], cluster.requests[request_id]
    most = request.prompt_tokens
    if clock[CHUNKS] != 0:
        most = min(most, state.max_chunk_tokens, state.max_batch_tokens)
    done, alone_s = cluster.breakdown[request_id].cached, 0.0
    while done < request.prompt_tokens:
        chunk = min(most, request.prompt_tokens - done)
        shape = Shape(chunk, 1, float(chunk) * chunk, float(chunk) * done, 0, 0.0, 0.0, 0, float(done))
        alone_s += gpu_s(tables, clock[REFERENCE_ROW], clock[REFERENCE_STAGES], shape, chunk)
        done += chunk
    left = nanoseconds(alone_s)
    for part in (PREFILL_OTHERS, RECOMPUTED):
        taken = min(left, parts[part])
        parts[part] -= taken
        parts[PREFILL_ALONE] += taken
        left -= taken
