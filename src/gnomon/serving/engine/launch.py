"""The start of a batch: what it contains, how long its stages take, and what it adds to the accounts.

A formed batch is frozen, and stages serve batches first come first served: all its times are known when it starts.
"""

from typing import Any, NamedTuple

from gnomon.jit import inlined, noinline
from gnomon.serving.engine import contract
from gnomon.serving.engine.state import BUDGET, NEIGHBOURS, NONE, Cluster, Replica, replica_view, ring_position
from gnomon.serving.features import breakdown
from gnomon.timing.iteration import IterationTables
from gnomon.timing.lookup import Shape, host_pace, host_times, is_beyond_measured, stage_s

_SPARE_ITERATIONS = 1000
"""Iterations without a token that a replica may run beyond two for each prompt token it had to compute meanwhile."""


@inlined
def note_next_end(cluster: Cluster, r: int, end_s: float) -> None:
    """The oldest batch in flight ends then, as the outside sees it."""
    group = cluster.replicas[r].group_first
    cluster.replicas[r].next_end_s = end_s
    cluster.next_end_s[group] = end_s
    note_soonest(cluster, group)


@inlined
def note_soonest(cluster: Cluster, group: int) -> None:
    """The end of a group's batch may come before that of its neighbours."""
    place = group // NEIGHBOURS
    cluster.soonest_s[place] = min(cluster.soonest_s[place], cluster.next_end_s[group])


@inlined
def _shape(replica: Replica) -> Shape:
    """What the batch just formed contains, as far as its time depends on it."""
    state = replica.state
    together = state.num_grouped if state.in_step != 0 else 0
    tokens, decodes = together, together
    decode_kv = float(state.step_kv) if together > 0 else 0.0
    longest = float(state.step_kv_max) if together > 0 else 0.0
    decode_tokens = together
    sequences, squared, chunks_kv, prompt_kv = together, 0.0, 0.0, 0.0
    for i in range(together, state.batch_size):
        request = replica.requests[replica.batch[i]]
        count = replica.batch_tokens[i]
        tokens += count
        if request.processed > request.prefill_tokens:
            decodes += 1
            decode_tokens += count
            sequences += count
            decode_kv += request.processed
            longest = max(longest, float(request.processed))
        else:
            sequences += 1
            squared += float(count) * count
            chunks_kv += float(count) * request.processed
            prompt_kv += request.processed
    return Shape(tokens, sequences, squared, chunks_kv, decodes, decode_kv, longest, decode_tokens, prompt_kv)


@inlined
def weight_bytes_of(tables: IterationTables, row: int, tokens: int) -> float:
    """Bytes of weights that an iteration of so many tokens reads: some experts are asked by none of them."""
    work = tables.work[row]
    if work[7] == 0.0:
        return work[3]
    return work[3] + work[7] * (1.0 - (1.0 - work[8]) ** float(tokens))  # Compiled powers of integers round otherwise.


class Work(NamedTuple):
    """What a batch adds to the replica's accounts."""

    flops: float
    bytes: float
    kv_block_s: float
    beyond_measured: int


@inlined
def work_of(
    coefficients: Any, measured: Any, shape: Shape, weight_bytes: float, used_blocks: int, busy_s: float
) -> Work:
    """The work of a batch whose first stage is busy for `busy_s`; `coefficients` are the row's of `tables.work`, and
    `measured` of `tables.measured`, arrays or tuples."""
    pairs = 0.5 * shape.chunks_squared + shape.chunks_kv + shape.decode_kv
    flops = coefficients[0] * shape.tokens + coefficients[1] * pairs + coefficients[2] * shape.sequences
    num_bytes = weight_bytes + coefficients[4] * (shape.decode_kv + shape.prompt_kv)
    return Work(flops, num_bytes, used_blocks * busy_s, 1 if is_beyond_measured(measured, shape) else 0)


@inlined
def note_flight(flight: Any, number: int, shape: Shape, work: Work, start_s: float, end_s: float) -> None:
    """Write down what the batch about to start contains, and when it ends."""
    flight.number = number
    flight.start_s = start_s
    flight.end_s = end_s
    flight.tokens = shape.tokens
    flight.prefill_tokens = shape.tokens - shape.decode_tokens
    flight.decodes = shape.decodes
    flight.decode_kv = shape.decode_kv
    flight.flops = work.flops
    flight.bytes = work.bytes
    flight.kv_block_s = work.kv_block_s
    flight.beyond_measured = work.beyond_measured


@inlined
def _stage_seconds(
    cluster: Cluster, tables: IterationTables, r: int, position: int, stage: int, shape: Shape, group_tokens: int,
    at: float,
) -> float:  # fmt: skip
    """The time of one stage from `at` on: replayed, or from the tables with the host's."""
    state = cluster.replicas[r]
    if cluster.recorded_first.size > 0:
        n = cluster.recorded_first[r] + state.num_iterations
        return cluster.recorded_s[n, stage] if n < cluster.recorded_first[r + 1] else 0.0
    if shape.sequences == 0 and group_tokens == 0:
        return 0.0
    if shape.tokens >= tables.token_s.shape[1] or shape.sequences >= tables.sequence_s.shape[1]:
        contract.stop(cluster, contract.BEYOND_TABLES, r, NONE)
        return 0.0
    seconds = stage_s(tables, state.row + stage, shape, group_tokens)
    exposed_s, least_s = host_times(tables, state.row + stage, shape, host_pace(tables, r, at))
    if state.overlaps != 0:  # It is launched from when it was formed; then the host can form the next one.
        launched_s = state.forms_s + least_s
        state.forms_s, least_s = max(launched_s, state.now_s), launched_s - state.now_s
    with_host_s, flight = exposed_s + max(seconds, least_s), cluster.flights[r, position]
    flight.gpu_s = seconds + (flight.gpu_s if stage > 0 else 0.0)
    flight.host_s = with_host_s - seconds + (flight.host_s if stage > 0 else 0.0)
    return with_host_s + with_host_s * state.slowdown


@inlined
def _enter_stage(cluster: Cluster, r: int, position: int, stage: int, at: float, seconds: float) -> float:
    """Queue the batch at a stage it reaches at `at`; returns when it leaves."""
    start = max(at, cluster.stage_free_s[r, stage])
    end = start + seconds
    cluster.stage_start_s[r, position, stage] = start
    cluster.stage_end_s[r, position, stage] = end
    cluster.stage_free_s[r, stage] = end
    return end


@inlined
def _take_off(cluster: Cluster, tables: IterationTables, r: int, position: int, shape: Shape, end_s: float) -> None:
    """Put the batch among those in flight."""
    state, flight = cluster.replicas[r], cluster.flights[r, position]
    flight.num_requests = state.batch_size
    flight.num_grouped = state.num_grouped if state.in_step != 0 else 0
    start_s, row = cluster.stage_start_s[r, position, 0], state.row
    busy_s, used = cluster.stage_end_s[r, position, 0] - start_s, state.num_blocks - state.free_blocks
    weight_bytes = weight_bytes_of(tables, row, shape.tokens)
    work = work_of(tables.work[row], tables.measured[row], shape, weight_bytes, used, busy_s)
    state.num_iterations += 1
    note_flight(flight, state.num_iterations, shape, work, start_s, end_s)
    state.busy_s += busy_s
    state.tokens_computed += shape.tokens
    state.kv_block_s += work.kv_block_s
    state.flops += work.flops
    state.bytes += work.bytes
    state.num_beyond_measured += work.beyond_measured
    cluster.control[BUDGET] -= 1
    if shape.tokens > 0:
        state.stalled += 1
        limit = 2 * state.prefill_left + _SPARE_ITERATIONS
        state.stall_limit = max(limit, state.stall_limit) if state.stalled > 1 else limit
        if state.stalled > state.stall_limit:
            contract.stop(cluster, contract.NO_PROGRESS, r, NONE)
    state.num_in_flight += 1
    state.formed_waiting = state.num_waiting
    if state.num_in_flight == 1:
        note_next_end(cluster, r, end_s)


@inlined
def launch(cluster: Cluster, tables: IterationTables, r: int, now: float) -> None:
    """Send the batch that replica `r` formed through its stages."""
    state = cluster.replicas[r]
    position = ring_position(cluster, r, state.num_in_flight)
    shape = _shape(replica_view(cluster, r))
    at = now
    for stage in range(state.num_stages):
        seconds = _stage_seconds(cluster, tables, r, position, stage, shape, shape.tokens, at)
        at = _enter_stage(cluster, r, position, stage, at, seconds)
    _take_off(cluster, tables, r, position, shape, at)
    if cluster.breakdown.size > 0:
        breakdown.take_off(cluster, tables, r, position, shape, shape.tokens)


@noinline
def launch_together(cluster: Cluster, tables: IterationTables, first: int, now: float) -> None:
    """Send the batches of a group through the stages in step: each stage takes as long as its slowest member."""
    leader = cluster.replicas[first]
    members = range(first, first + leader.group_size)
    position = ring_position(cluster, first, leader.num_in_flight)
    group_tokens = 0
    for r in members:
        group_tokens += _shape(replica_view(cluster, r)).tokens
    at = now
    for stage in range(leader.num_stages):
        slowest = 0.0
        for r in members:
            shape = _shape(replica_view(cluster, r))
            slowest = max(slowest, _stage_seconds(cluster, tables, r, position, stage, shape, group_tokens, at))
        leaves = at
        for r in members:
            leaves = _enter_stage(cluster, r, position, stage, at, slowest)
        at = leaves
    for r in members:
        shape = _shape(replica_view(cluster, r))
        _take_off(cluster, tables, r, position, shape, at)
        if cluster.breakdown.size > 0:
            breakdown.take_off(cluster, tables, r, position, shape, group_tokens)
