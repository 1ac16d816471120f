"""The replica on which the request would finish first, found by running each replica forward.

Plays every replica on from the moment of the arrival, iteration by iteration, with its times, batch cap, token budget
and memory, as if nothing else arrived. Stretches in which nothing but decodes happen are taken in one step. What of
that is the same for all requests of one moment, up to where all that were there before are admitted, is played once.
Output lengths are those of `--router.lengths`, or the mean of what was produced so far. With `others` above 0 the time
that the request costs those who are there already counts too.
"""

import math

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.jit import inlined
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.decode_group import processed_now
from gnomon.serving.engine.state import NONE, replica_view
from gnomon.serving.routers import Fleet, router
from gnomon.serving.routers.known import batch_ends_in_s, iteration_s, look, prefill_room
from gnomon.serving.routers.prediction import kv_each, mean_output, next_queued, output_left, under_way

# What a replica has to do, a row for each request in the order in which they are served: prompt tokens to compute yet,
# output tokens to produce yet, tokens in its KV cache. Those in the queue are filled in as they are looked at.
PREFILL, OUTPUT, HELD = range(3)

# What is kept of a play without the arriving request: when and of what it was, where it had come to, the rows there.
_KEY, _AT, _ROWS, PLACES = 0, 6, 11, 1024
KEPT = _ROWS + 3 * PLACES


@inlined
def _fill(fleet: Fleet, r: int, work: Floats, i: int, request_id: int, mean: float) -> None:
    """Put a request into place `i`. The arriving one has the last place, and finds what is cached now."""
    request, replica = fleet.cluster.requests[request_id], replica_view(fleet.cluster, r)
    known = max(processed_now(replica, request_id), request.foreseen)
    if i == replica.state.num_outstanding:
        known = prefix_cache.count_hits(replica, request_id) * replica.state.block_size
    work[i, PREFILL] = max(0.0, float(request.prefill_tokens - known))
    work[i, OUTPUT] = math.ceil(output_left(fleet, r, request_id, mean))
    work[i, HELD] = known


@inlined
def _admitted(
    fleet: Fleet, r: int, work: Floats, first: int, filled: int, last: int, request_id: int, mean: float
) -> tuple[int, int, int]:
    """One past the last request, from `first` on, that fits the batch cap and the memory; how many places are filled
    then; and the last request of the queue that is."""
    state, room, end = fleet.cluster.replicas[r], 0.0, first
    while end < work.shape[0]:
        if end == filled:
            if end < state.num_outstanding:
                last = next_queued(fleet.cluster, r, end, last)
            _fill(fleet, r, work, end, last if end < state.num_outstanding else request_id, mean)
            filled += 1
        room += work[end, HELD] + work[end, PREFILL]
        if end > first and (end - first >= state.max_running or room > state.num_blocks * state.block_size):
            break
        end += 1
    return end, filled, last


@inlined
def _run_iterations(fleet: Fleet, r: int, work: Floats, first: int, end: int) -> float:
    """One iteration if there is prefill to do, else decodes until the first of them is done; returns the seconds."""
    state = fleet.cluster.replicas[r]
    decodes, kv, steps = 0, 0.0, math.inf
    for i in range(first, end):
        if work[i, PREFILL] == 0.0:
            decodes += 1
            kv += work[i, HELD]
            steps = min(steps, work[i, OUTPUT])
    budget = float(prefill_room(state, decodes))
    chunk = 0.0
    for i in range(first, end):
        if work[i, PREFILL] > 0.0 and chunk < budget:
            steps = 1.0
            tokens = min(work[i, PREFILL], budget - chunk, float(state.max_chunk_tokens))
            chunk += tokens
            work[i, HELD] += tokens
            # One that is through produces its first token, and is told from the decodes of this iteration by its sign.
            work[i, PREFILL] = work[i, PREFILL] - tokens if work[i, PREFILL] > tokens else -1.0
    mean_kv = kv / decodes + (steps - 1.0) / 2.0 if decodes > 0 else 0.0
    for i in range(first, end):
        if work[i, PREFILL] <= 0.0:
            produced = 1.0 if work[i, PREFILL] < 0.0 else steps
            work[i, PREFILL] = 0.0
            work[i, OUTPUT] -= produced
            work[i, HELD] += produced
    return steps * iteration_s(fleet, r, int(chunk), decodes, mean_kv)


@inlined
def _drop_ended(work: Floats, first: int, end: int) -> int:
    """Move those that go on up to `end`, in their order; returns the first of them. So none is looked at once it has
    ended, however long the queue is."""
    kept = end
    for i in range(end - 1, first - 1, -1):
        if work[i, OUTPUT] > 0.0:
            kept -= 1
            for column in range(3):
                work[kept, column] = work[i, column]
    return kept


@inlined
def _key(fleet: Fleet, r: int, now: float, mean: float) -> tuple[float, float, float, float, float, float]:
    """What stays as it is while requests come to a replica and nothing else happens."""
    state = fleet.cluster.replicas[r]
    gone = float(state.num_taken - state.num_outstanding)
    return now, mean, gone, float(state.num_iterations), float(state.num_in_flight), float(state.num_running)


@inlined
def _begin(fleet: Fleet, r: int, now: float, mean: float, work: Floats) -> tuple[int, int, int, float, float]:
    """Where to begin: the first place, how many are filled, the last of the queue among them, seconds from now, and
    those of all that have ended. Where the play of an earlier arrival was kept, there; else with what is under way."""
    memory, mine, state = fleet.memory, KEPT * r, fleet.cluster.replicas[r]
    is_kept, key = mine + KEPT <= memory.size, _key(fleet, r, now, mean)
    for i in range(6):
        is_kept = is_kept and memory[mine + _KEY + i] == key[i]
    if is_kept:
        at = mine + _AT
        first, filled = int(memory[at]), int(memory[at + 1])
        for i in range(first, filled):
            for column in range(3):
                work[i, column] = memory[mine + _ROWS + 3 * (i - first) + column]
        return first, filled, int(memory[at + 2]), memory[at + 3], memory[at + 4]
    ids = np.empty(state.num_outstanding, np.int64)
    filled = under_way(fleet.cluster, r, ids)
    for i in range(filled):
        _fill(fleet, r, work, i, ids[i], mean)
    return 0, filled, NONE, batch_ends_in_s(fleet, r, now, state.num_holding, kv_each(fleet, r)), 0.0


@inlined
def _keep(
    fleet: Fleet, r: int, now: float, mean: float, work: Floats, first: int, filled: int, last: int, seconds: float,
    others: float,
) -> None:  # fmt: skip
    """Note where the play of a replica has come to, without the arriving request."""
    memory, mine = fleet.memory, KEPT * r
    filled = min(filled, fleet.cluster.replicas[r].num_outstanding)
    if mine + KEPT > memory.size or filled - first > PLACES:
        return
    key, at = _key(fleet, r, now, mean), mine + _AT
    for i in range(6):
        memory[mine + _KEY + i] = key[i]
    memory[at], memory[at + 1], memory[at + 2], memory[at + 3], memory[at + 4] = first, filled, last, seconds, others
    for i in range(first, filled):
        for column in range(3):
            memory[mine + _ROWS + 3 * (i - first) + column] = work[i, column]


@inlined
def play_on(
    fleet: Fleet, r: int, request_id: int, now: float, mean: float, to_end: bool, limit: float
) -> tuple[float, float]:
    """Seconds from `now` until the arriving request (NONE for without it) is done on replica `r`, and the sum of those
    of all others there. Stops with the former unless asked `to_end`, and before that at `limit` seconds."""
    is_there = request_id != NONE  # While it is, it is the last.
    count = fleet.cluster.replicas[r].num_outstanding + (1 if is_there else 0)
    work, own, is_kept = np.empty((count, 3)), 0.0, not is_there
    first, filled, last, seconds, others = _begin(fleet, r, now, mean, work)
    while first < count:
        end, filled, last = _admitted(fleet, r, work, first, filled, last, request_id, mean)
        is_late = seconds >= limit and not to_end
        if not is_kept and (end >= count - 1 or is_late):
            _keep(fleet, r, now, mean, work, first, filled, last, seconds, others)
            is_kept = True
        if is_late:
            return seconds, others
        seconds += _run_iterations(fleet, r, work, first, end)
        is_done = is_there and end == count and work[count - 1, OUTPUT] <= 0.0
        before, first = first, _drop_ended(work, first, end)
        for _ in range(first - before - (1 if is_done else 0)):
            others += seconds
        if is_done:
            is_there, own = False, seconds
            if not to_end:
                return own, others
    return own, others


@router("lookahead", options={"others": 0.0}, scratch=KEPT, predicts=True, observes=True)
def lookahead(fleet: Fleet, request_id: int) -> int:
    """Smallest time to finish, plus `others` x the time it adds to those already there; ties to the lowest id."""
    weight, now = fleet.parameters[0], fleet.cluster.requests[request_id].arrival_s
    look(fleet, now)
    mean = mean_output(fleet)
    best, least, idle_row = fleet.candidates[0], math.inf, NONE
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        state = fleet.cluster.replicas[r]
        if state.num_outstanding == 0 and state.tracks_blocks == 0 and fleet.known.size == 0:
            if state.row == idle_row:  # It would take exactly as long as the idle one before.
                continue
            idle_row = state.row
        cost, after = play_on(fleet, r, request_id, now, mean, weight > 0.0, least)
        if weight > 0.0:
            _, before = play_on(fleet, r, NONE, now, mean, True, math.inf)
            cost += weight * (after - before)
        if cost < least:
            best, least = r, cost
    return best
