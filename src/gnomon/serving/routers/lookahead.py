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
from gnomon.core.jit import inner
from gnomon.serving import prefix_cache
from gnomon.serving.routers import Fleet, router
from gnomon.serving.routers.foretelling import (
    expected_output,
    iteration_s,
    mean_output,
    output_left,
    outstanding,
    prefill_room,
)
from gnomon.serving.state import NONE, replica_view
from gnomon.serving.stepping import processed_now


class Work(NamedTuple):
    """Requests of a replica in the order in which they are served."""

    prefill: Floats
    """Prompt tokens to compute yet."""
    output: Floats
    """Output tokens to produce yet."""
    held: Floats
    """Tokens in its KV cache."""


@inner
def _gather(fleet: Fleet, r: int, request_id: int, mean: float) -> Work:
    """What replica `r` has to do, with the arriving request (unless NONE) at the end."""
    cluster = fleet.cluster
    count = cluster.replicas[r].num_outstanding + (0 if request_id == NONE else 1)
    ids = np.empty(count, np.int64)
    work = Work(np.empty(count), np.empty(count), np.empty(count))
    replica = replica_view(cluster, r)
    for i in range(outstanding(cluster, r, ids)):
        request = cluster.requests[ids[i]]
        processed = processed_now(replica, ids[i])
        work.prefill[i] = max(0.0, float(request.prefill_tokens - processed))
        work.output[i] = math.ceil(output_left(fleet, r, ids[i], mean))
        work.held[i] = processed
    if request_id != NONE:
        cached = prefix_cache.count_hits(replica, request_id) * replica.state.block_size
        work.prefill[count - 1] = cluster.requests[request_id].prompt_tokens - cached
        work.output[count - 1] = math.ceil(max(1.0, expected_output(fleet, request_id, mean)))
        work.held[count - 1] = cached
    return work


@inner
def _num_admitted(fleet: Fleet, r: int, work: Work) -> int:
    """How many requests from the front fit the batch cap and the memory, ended ones counted for nothing."""
    state, admitted, running, room = fleet.cluster.replicas[r], 0, 0, 0.0
    while admitted < work.output.size:
        if work.output[admitted] > 0.0:
            room += work.held[admitted] + work.prefill[admitted]
            if running > 0 and (running >= state.max_running or room > state.num_blocks * state.block_size):
                break
            running += 1
        admitted += 1
    return admitted


@inner
def _run_iterations(fleet: Fleet, r: int, work: Work, admitted: int) -> float:
    """One iteration if there is prefill to do, else decodes until the first of them is done; returns the seconds."""
    state = fleet.cluster.replicas[r]
    decodes, kv, steps = 0, 0.0, 1e300
    for i in range(admitted):
        if work.output[i] > 0.0 and work.prefill[i] == 0.0:
            decodes += 1
            kv += work.held[i]
            steps = min(steps, work.output[i])
    budget = float(prefill_room(state, decodes))
    chunk = 0.0
    for i in range(admitted):
        if work.output[i] > 0.0 and work.prefill[i] > 0.0 and chunk < budget:
            steps = 1.0
            tokens = min(work.prefill[i], budget - chunk, float(state.max_chunk_tokens))
            chunk += tokens
            work.held[i] += tokens
            # One that is through produces its first token, and is told from the decodes of this iteration by its sign.
            work.prefill[i] = work.prefill[i] - tokens if work.prefill[i] > tokens else -1.0
    mean_kv = kv / decodes + (steps - 1.0) / 2.0 if decodes > 0 else 0.0
    for i in range(admitted):
        if work.output[i] > 0.0 and work.prefill[i] <= 0.0:
            produced = 1.0 if work.prefill[i] < 0.0 else steps
            work.prefill[i] = 0.0
            work.output[i] -= produced
            work.held[i] += produced
    return steps * iteration_s(fleet, r, int(chunk), decodes, mean_kv)


@inner
def play_on(
    fleet: Fleet, r: int, request_id: int, now: float, mean: float, to_end: bool, limit: float
) -> tuple[float, float]:
    """Seconds from `now` until the arriving request (NONE for without it) is done on replica `r`, and the sum of those
    of all others there. Stops with the former unless asked `to_end`, and before that at `limit` seconds."""
    state = fleet.cluster.replicas[r]
    work = _gather(fleet, r, request_id, mean)
    count = work.output.size
    last = NONE if request_id == NONE else count - 1
    left, own, others, seconds = count, 0.0, 0.0, 0.0
    if state.num_in_flight > 0:
        seconds = max(0.0, state.next_end_s - now)
    while left > 0:
        admitted = _num_admitted(fleet, r, work)
        seconds += _run_iterations(fleet, r, work, admitted)
        if seconds >= limit and not to_end:
            return seconds, others
        for i in range(admitted):
            if work.output[i] <= 0.0 and work.held[i] > 0.0:
                work.held[i] = 0.0
                left -= 1
                if i == last:
                    own = seconds
                    if not to_end:
                        return own, others
                else:
                    others += seconds
    return own, others


@router("lookahead", options={"others": 0.0}, foretells=True)
def lookahead(fleet: Fleet, request_id: int) -> int:
    """Smallest time to finish, plus `others` x the time it adds to those already there; ties to the lowest id."""
    weight, now = fleet.parameters[0], fleet.cluster.requests[request_id].arrival_s
    mean = mean_output(fleet)
    best, least, idle_row = fleet.candidates[0], 1e300, NONE
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        state = fleet.cluster.replicas[r]
        if state.num_outstanding == 0 and state.tracks_blocks == 0:
            if state.row == idle_row:  # It would take exactly as long as the idle one before.
                continue
            idle_row = state.row
        cost, after = play_on(fleet, r, request_id, now, mean, weight > 0.0, least)
        if weight > 0.0:
            _, before = play_on(fleet, r, NONE, now, mean, True, 1e300)
            cost += weight * (after - before)
        if cost < least:
            best, least = r, cost
    return best
