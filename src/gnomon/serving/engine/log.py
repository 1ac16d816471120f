"""What the engine writes down: iterations, and the gaps between tokens. Metrics are made from it afterwards.

The arrays have a fixed size, so that a run of any length fits in memory. When the iteration rows are full, every other
one is dropped and from then on half as many are written; when the gaps are full, those of nearly the same size are
merged. Both are said in the summary. Replica accounts (time, work, tokens) stay exact.
"""

from typing import Any, NamedTuple

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.jit import inlined, noinline
from gnomon.serving.engine.state import NONE, Cluster

# Gaps are merged in bins by the leading bits of their numbers: 512 between a number and its double, from about a
# microsecond (2^-20 s) to nine hours.
_SHIFT, _NUM_BINS = 43, 512 * 35
_FIRST_BIN = int(np.array([2.0**-20]).view(np.int64)[0]) >> _SHIFT

# One iteration, one row per pipeline stage.
ITERATION = np.dtype(
    [
        ("replica", np.int32),
        ("stage", np.int32),
        ("number", np.int64),  # of the replica's iterations, from 1
        ("start_s", np.float64),
        ("end_s", np.float64),
        ("size", np.int32),
        ("tokens", np.int32),
        ("prefill_tokens", np.int32),
        ("decodes", np.int32),
        ("decode_kv", np.float64),
        ("used_blocks", np.int32),  # right after the end was handled
        ("waiting", np.int32),
        ("first_member", np.int64),  # where its requests start among the members, if those are kept
    ],
    align=True,
)


# A part of one prompt (or of a prompt and the output so far, after a pre-emption) in one iteration.
CHUNK = np.dtype(
    [
        ("request", np.int64),
        ("replica", np.int32),
        ("restarts", np.int32),  # of the request so far
        ("tokens", np.int64),
        ("start_s", np.float64),
        ("end_s", np.float64),
        ("preempted_s", np.float64),  # how long it was pre-empted so far, all times together
    ],
    align=True,
)


class Log(NamedTuple):
    """The engine's notebook; `used` says how much of each array is written."""

    iterations: Any  # `ITERATION` records.
    members: Ints  # [entry, (request, tokens)] of every batch; size 0 unless asked for.
    gap_s: Floats  # Seconds between a token and the one before it; `gap_count` tokens in a row share one entry.
    gap_count: Ints
    gap_bits: Ints  # The memory of `gap_s`, read as integers: numbers above 0 are in the same order.
    used: Ints
    """[6]: iterations, members, gaps; one in how many iterations is kept; how often gaps were merged; chunks."""
    chunks: Any  # `CHUNK` records of all iterations; size 0 unless asked for. Those that find no room are counted only.


def new_log(
    max_iterations: int = 1_000_000, max_gaps: int = 8_000_000, max_members: int = 0, max_chunks: int = 0
) -> Log:
    """An empty log. Memory is taken as it is written."""
    gap_s = np.empty(max(max_gaps, 2 * _NUM_BINS))  # Merging leaves at most one gap per bin.
    return Log(
        np.empty(max(max_iterations, 64), ITERATION).view(np.recarray), np.empty((max_members, 2), np.int64), gap_s,
        np.empty(gap_s.size, np.int64), gap_s.view(np.int64), np.array([0, 0, 0, 1, 0, 0], np.int64),
        np.empty(max_chunks, CHUNK).view(np.recarray),
    )  # fmt: skip


@inlined
def log_gap(log: Log, gap: float, count: int) -> None:
    """Note that `count` tokens came `gap` seconds after the ones before them."""
    used = log.used[2]
    if used > 0 and log.gap_s[used - 1] == gap:
        log.gap_count[used - 1] += count
        return
    if used == log.gap_s.size:
        _merge_gaps(log)
        used = log.used[2]
    log.gap_s[used] = gap
    log.gap_count[used] = count
    log.used[2] = used + 1


@noinline
def _merge_gaps(log: Log) -> None:
    """Merge gaps of nearly the same size (within 0.2 %) into their weighted mean."""
    sums, counts = np.zeros(_NUM_BINS), np.zeros(_NUM_BINS, np.int64)
    for i in range(log.used[2]):
        at = min(max((log.gap_bits[i] >> _SHIFT) - _FIRST_BIN, 0), _NUM_BINS - 1)
        sums[at] += log.gap_s[i] * log.gap_count[i]
        counts[at] += log.gap_count[i]
    kept = 0
    for at in range(_NUM_BINS):
        if counts[at] > 0:
            log.gap_s[kept] = sums[at] / counts[at]
            log.gap_count[kept] = counts[at]
            kept += 1
    log.used[2] = kept
    log.used[4] += 1


@inlined
def log_iteration(cluster: Cluster, log: Log, r: int, position: int) -> None:
    """Write the batch at `position` of replica `r`: one row per stage, and its members if they are kept."""
    state, flight = cluster.replicas[r], cluster.flights[r, position]
    flight_number = flight.number
    if log.chunks.size > 0 and flight.prefill_tokens > 0:
        _log_chunks(cluster, log, r, position)
    if (flight_number - 1) & (log.used[3] - 1) != 0:  # It is a power of two.
        return
    if log.used[0] + state.num_stages > log.iterations.size:
        _drop_every_other(log)
        is_full = log.used[0] + state.num_stages > log.iterations.size  # Every replica's first iteration is kept.
        if is_full or (flight_number - 1) % log.used[3] != 0:
            return
    first_member = NONE
    if log.used[1] + flight.num_requests <= log.members.shape[0]:
        first_member = log.used[1]
        for i in range(flight.num_requests):
            log.members[first_member + i, 0] = cluster.flight_requests[r, position, i]
            log.members[first_member + i, 1] = cluster.flight_tokens[r, position, i]
        log.used[1] += flight.num_requests
    for stage in range(state.num_stages):
        row = log.iterations[log.used[0]]
        row.replica = r
        row.stage = stage
        row.number = flight_number
        row.start_s = cluster.stage_start_s[r, position, stage]
        row.end_s = cluster.stage_end_s[r, position, stage]
        row.size = flight.num_requests
        row.tokens = flight.tokens
        row.prefill_tokens = flight.prefill_tokens
        row.decodes = flight.decodes
        row.decode_kv = flight.decode_kv
        row.used_blocks = state.num_blocks - state.free_blocks
        row.waiting = state.num_waiting
        row.first_member = first_member
        log.used[0] += 1


@noinline
def _log_chunks(cluster: Cluster, log: Log, r: int, position: int) -> None:
    """Write the prompts' parts in the batch at `position`. Its end was handled: a request that still prefills has
    processed no more than its prefill, one whose prefill has just ended one token more."""
    flight = cluster.flights[r, position]
    for i in range(flight.num_grouped, flight.num_requests):
        request_id = cluster.flight_requests[r, position, i]
        request = cluster.requests[request_id]
        if request.processed > request.prefill_tokens + 1:
            continue
        if log.used[5] < log.chunks.size:
            row = log.chunks[log.used[5]]
            row.request = request_id
            row.replica = r
            row.restarts = request.num_restarts
            row.tokens = cluster.flight_tokens[r, position, i]
            row.start_s = cluster.stage_start_s[r, position, 0]
            row.end_s = flight.end_s
            row.preempted_s = request.preempted_s
        log.used[5] += 1


@noinline
def _drop_every_other(log: Log) -> None:
    """Keep the rows of every second iteration that was kept so far."""
    log.used[3] *= 2
    kept = 0
    for i in range(log.used[0]):
        if (log.iterations[i].number - 1) % log.used[3] == 0:
            log.iterations[kept] = log.iterations[i]
            kept += 1
    log.used[0] = kept
