"""The replica on which the request would finish first, found by running each replica forward.

Plays every replica on from the moment of the arrival, iteration by iteration, with its timing tables, batch cap, token
budget and memory, as if nothing else arrived. Stretches in which nothing but decodes happen are taken in one step.
Output lengths are those of `--router.lengths`, or the mean of what was produced so far. With `others` above 0 the time
that the request costs those who are there already counts too.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.jit import inlined
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.decode_group import processed_now
from gnomon.serving.engine.state import NONE, replica_view
from gnomon.serving.routers import Fleet, router
from gnomon.serving.routers.prediction import (
    expected_output,
    iteration_s,
    mean_output,
    output_left,
    outstanding,
    prefill_room,
)


class Work(NamedTuple):
    """Requests of a replica in the order in which they are served."""

    prefill: Floats
    """Prompt tokens to compute yet."""
    output: Floats
    """Output tokens to produce yet."""
    held: Floats
    """Tokens in its KV cache."""


@inlined
def _gather(fleet: Fleet, r: int, request_id: int, mean: float) -> Work:
    """What replica `r` has to do, with the arriving request (unless NONE) at the end."""
    cluster = fleet.cluster
    count = cluster.replicas[r].num_outstanding + (0 if request_id == NONE else 1)
    ids = np.empty(count, np.int64)
    work = Work(np.empty(count), np.empty(count), np.empty(count))
    replica = replica_view(cluster, r)
    for i in range(outstanding(cluster, r, ids)):
        request = cluster.requests[ids[i]]
        processed = max(processed_now(replica, ids[i]), request.foreseen)
        work.prefill[i] = max(0.0, float(request.prefill_tokens - processed))
        work.output[i] = math.ceil(output_left(fleet, r, ids[i], mean))
        work.held[i] = processed
    if request_id != NONE:
        cached = prefix_cache.count_hits(replica, request_id) * replica.state.block_size
        work.prefill[count - 1] = cluster.requests[request_id].prompt_tokens - cached
        work.output[count - 1] = math.ceil(max(1.0, expected_output(fleet, request_id, mean)))
        work.held[count - 1] = cached
    return work


@inlined
def _end_of_admitted(fleet: Fleet, r: int, work: Work, first: int) -> int:
    """One past the last request, from `first` on, that fits the batch cap and the memory."""
    state, room, end = fleet.cluster.replicas[r], 0.0, first
    while end < work.output.size:
        room += work.held[end] + work.prefill[end]
        if end > first and (end - first >= state.max_running or room > state.num_blocks * state.block_size):
            break
        end += 1
    return end


@inlined
def _run_iterations(fleet: Fleet, r: int, work: Work, first: int, end: int) -> float:
    """One iteration if there is prefill to do, else decodes until the first of them is done; returns the seconds."""
    state = fleet.cluster.replicas[r]
    decodes, kv, steps = 0, 0.0, math.inf
    for i in range(first, end):
        if work.prefill[i] == 0.0:
            decodes += 1
            kv += work.held[i]
            steps = min(steps, work.output[i])
    budget = float(prefill_room(state, decodes))
    chunk = 0.0
    for i in range(first, end):
        if work.prefill[i] > 0.0 and chunk < budget:
            steps = 1.0
            tokens = min(work.prefill[i], budget - chunk, float(state.max_chunk_tokens))
            chunk += tokens
            work.held[i] += tokens
            # One that is through produces its first token, and is told from the decodes of this iteration by its sign.
            work.prefill[i] = work.prefill[i] - tokens if work.prefill[i] > tokens else -1.0
    mean_kv = kv / decodes + (steps - 1.0) / 2.0 if decodes > 0 else 0.0
    for i in range(first, end):
        if work.prefill[i] <= 0.0:
            produced = 1.0 if work.prefill[i] < 0.0 else steps
            work.prefill[i] = 0.0
            work.output[i] -= produced
            work.held[i] += produced
    return steps * iteration_s(fleet, r, int(chunk), decodes, mean_kv)


@inlined
def _drop_ended(work: Work, first: int, end: int) -> int:
    """Move those that go on up to `end`, in their order; returns the first of them. So none is looked at once it has
    ended, however long the queue is."""
    kept = end
    for i in range(end - 1, first - 1, -1):
        if work.output[i] > 0.0:
            kept -= 1
            work.prefill[kept], work.output[kept], work.held[kept] = work.prefill[i], work.output[i], work.held[i]
    return kept


@inlined
def play_on(
    fleet: Fleet, r: int, request_id: int, now: float, mean: float, to_end: bool, limit: float
) -> tuple[float, float]:
    """Seconds from `now` until the arriving request (NONE for without it) is done on replica `r`, and the sum of those
    of all others there. Stops with the former unless asked `to_end`, and before that at `limit` seconds."""
    state = fleet.cluster.replicas[r]
    work = _gather(fleet, r, request_id, mean)
    first, count, own, others, seconds = 0, work.output.size, 0.0, 0.0, 0.0
    is_there = request_id != NONE  # While it is, it is the last.
    if state.num_in_flight > 0:
        seconds = max(0.0, state.next_end_s - now)
    while first < count:
        end = _end_of_admitted(fleet, r, work, first)
        seconds += _run_iterations(fleet, r, work, first, end)
        if seconds >= limit and not to_end:
            return seconds, others
        is_done = is_there and end == count and work.output[count - 1] <= 0.0
        before, first = first, _drop_ended(work, first, end)
        for _ in range(first - before - (1 if is_done else 0)):
            others += seconds
        if is_done:
            is_there, own = False, seconds
            if not to_end:
                return own, others
    return own, others


@router("lookahead", options={"others": 0.0}, predicts=True)
def lookahead(fleet: Fleet, request_id: int) -> int:
    """Smallest time to finish, plus `others` x the time it adds to those already there; ties to the lowest id."""
    weight, now = fleet.parameters[0], fleet.cluster.requests[request_id].arrival_s
    mean = mean_output(fleet)
    best, least, idle_row = fleet.candidates[0], math.inf, NONE
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        state = fleet.cluster.replicas[r]
        if state.num_outstanding == 0 and state.tracks_blocks == 0:
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
