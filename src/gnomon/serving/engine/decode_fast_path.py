"""Decodes alone: steps in which nothing but one more token for everybody happens, one after another in one loop."""

from typing import Any, NamedTuple

import numpy as np

from gnomon.jit import inlined
from gnomon.serving.engine import decode_group
from gnomon.serving.engine.launch import Work, note_flight, note_next_end, weight_bytes_of, work_of
from gnomon.serving.engine.log import Log, log_gap, log_iteration
from gnomon.serving.engine.state import BUDGET, Cluster, replica_view
from gnomon.serving.features import breakdown
from gnomon.serving.features.iteration_breakdown import divide, nanoseconds, reference_s, slower_ns
from gnomon.timing.host import WINDOW_S
from gnomon.timing.iteration import IterationTables
from gnomon.timing.lookup import Shape, attention_near, host_pace, host_times, without_attention_s


@inlined
def may_fast_forward(cluster: Cluster, log: Log, r: int) -> bool:
    """Whether the next thing that happens in replica `r` is one more token for those that step together, and nothing
    else: nobody is done, nobody waits, there is memory, and the policy has said that it would do nothing else."""
    state = cluster.replicas[r]
    if state.steppable != 2 or state.num_waiting > 0 or state.num_running > 0 or state.num_grouped == 0:
        return False
    if state.num_deferred > 0:
        return False
    if state.steps + 1 >= state.next_finish or state.num_off_beat > 0 or state.message_s > 0.0:
        return False
    is_simple = state.group_size == 1 and cluster.flights.shape[1] == 1 and state.num_speculative == 0
    is_plain = state.checked == 0 and cluster.recorded_first.size == 0 and log.members.shape[0] == 0
    flight = cluster.flights[r, 0]
    if not (is_simple and is_plain) or flight.num_grouped != flight.num_requests:
        return False
    fits = state.num_grouped <= min(state.max_in_batch, state.max_batch_tokens)
    return fits and cluster.growth[r, (state.steps + 1) % state.block_size] + 1 <= state.free_blocks


class Constants(NamedTuple):
    """What does not change from step to step."""

    row: int
    slowdown: float
    gpu_s: float  # Without attention.
    exposed_s: float
    least_s: float
    weight_bytes: float
    coefficients: Any
    measured: Any


class Sums(NamedTuple):
    """Accounts of the replica that steps add to."""

    iterations: int
    busy_s: float
    kv_block_s: float
    flops: float
    bytes: float
    beyond_measured: int


@inlined
def _shape(count: int, kv: int, longest: int) -> Shape:
    return Shape(count, count, 0.0, 0.0, count, float(kv), float(longest), count, 0.0)


@inlined
def _constants(tables: IterationTables, state: Any, pace: float) -> Constants:
    count, row = state.num_grouped, state.row
    exposed_s, least_s = host_times(tables, row, _shape(count, state.step_kv, state.step_kv_max), pace)
    work, measured = tables.work[row], tables.measured[row]
    return Constants(
        row, state.slowdown, without_attention_s(tables, row, count, count, count, count), exposed_s, least_s,
        weight_bytes_of(tables, row, count), (work[0], work[1], work[2], work[3], work[4]),
        (measured[0], measured[1], measured[2], measured[3], measured[4]),
    )  # fmt: skip


@inlined
def fast_forward(cluster: Cluster, tables: IterationTables, log: Log, r: int, until: float) -> None:
    """Step replica `r` on for as long as `may_fast_forward` holds, up to `until`: as at every end of a batch, with
    what stays the same from step to step computed once, and the accounts added up before they are written."""
    state, flight, replica = cluster.replicas[r], cluster.flights[r, 0], replica_view(cluster, r)
    if tables.host_pace.size > 0:  # The host's pace holds for one window: stop at its end, and look it up again.
        until = min(until, (np.floor(flight.end_s / WINDOW_S) + 1.0) * WINDOW_S)
    pace = host_pace(tables, r, flight.end_s)
    constants, count, block_size = _constants(tables, state, pace), state.num_grouped, state.block_size
    steps, last_step, step_kv, longest = state.steps, state.next_finish - 1, state.step_kv, state.step_kv_max
    last_s, end_s, gpu_s, reported_free, near = state.last_step_s, flight.end_s, 0.0, 0, (0, 0)
    shape = _shape(count, step_kv, longest)
    done = work_of(constants.coefficients, constants.measured, shape, constants.weight_bytes, 0, 0.0)
    iterations, busy_s, kv_block_s = state.num_iterations, state.busy_s, state.kv_block_s
    flops, num_bytes, num_beyond = state.flops, state.bytes, state.num_beyond_measured
    budget, phase = cluster.control[BUDGET], (steps + 1) % block_size
    needed = cluster.growth[r, phase]
    is_explained, there, num_stages = cluster.breakdown.size > 0, constants.row, 1
    if is_explained:
        breakdown.end_batch(cluster, r, 0)
        there, num_stages = cluster.clocks[r, breakdown.REFERENCE_ROW], cluster.clocks[r, breakdown.REFERENCE_STAGES]
    host_ns, lost_ns, step_host_ns, step_lost_ns = 0, 0, 0, 0
    overlaps, forms_s, host_s = state.overlaps != 0, state.forms_s, flight.host_s
    while end_s < until and budget > 0 and steps < last_step and needed + 1 <= state.free_blocks:
        # The end of the step in flight.
        host_ns += step_host_ns
        lost_ns += step_lost_ns
        log_gap(log, end_s - last_s, count)
        if (iterations - 1) & (log.used[3] - 1) == 0:  # One in so many is kept, a power of two: no division.
            log_iteration(cluster, log, r, 0)
        steps += 1
        step_kv += count
        longest += 1
        last_s = end_s
        reported_free = state.free_blocks
        # The next one.
        decode_group.grow(replica, needed)
        shape = _shape(count, step_kv, longest)
        # Contexts grow by one: the table is entered where the last step left it, not searched.
        attention_s, near = attention_near(tables, constants.row, shape, near)
        gpu_s = constants.gpu_s + attention_s
        least_s = constants.least_s
        if overlaps:
            launched_s = forms_s + least_s
            forms_s, least_s = max(launched_s, last_s), launched_s - last_s
        seconds = constants.exposed_s + max(gpu_s, least_s)
        end_s = last_s + (seconds + seconds * constants.slowdown)
        # Sums grow in the same order as step by step, so that they end in the same bits.
        used = state.num_blocks - state.free_blocks
        done = work_of(constants.coefficients, constants.measured, shape, constants.weight_bytes, used, end_s - last_s)
        iterations += 1
        busy_s += end_s - last_s
        kv_block_s += done.kv_block_s
        flops += done.flops
        num_bytes += done.bytes
        num_beyond += done.beyond_measured
        if (iterations - 1) & (log.used[3] - 1) == 0:  # Its end will be logged.
            _note_step(cluster, r, iterations, shape, done, last_s, end_s)
        if is_explained:
            host_s = seconds - gpu_s
            step_host_ns = nanoseconds(host_s)
            there_s = reference_s(tables, constants.row, gpu_s, there, num_stages, shape, count)
            step_lost_ns = slower_ns(cluster, r, there, end_s - last_s, there_s, host_s)
        budget -= 1
        phase = phase + 1 if phase + 1 < block_size else 0  # `steps` modulo the block size, without a division.
        needed = cluster.growth[r, phase]
    _note_step(cluster, r, iterations, shape, done, last_s, end_s)
    flight.gpu_s, flight.host_s, state.forms_s = gpu_s, host_s, forms_s
    if is_explained:
        breakdown.pass_steps(cluster, r, steps - state.steps - 1, last_s, host_ns, lost_ns)
        divide(cluster, tables, r, 0, shape, count, there, num_stages)
    cluster.control[BUDGET] = budget
    state.step_kv, state.step_kv_max, state.reported_free = step_kv, longest, reported_free
    _hand_back(cluster, r, Sums(iterations, busy_s, kv_block_s, flops, num_bytes, num_beyond), steps, last_s, end_s)


@inlined
def _hand_back(cluster: Cluster, r: int, sums: Sums, steps: int, last_s: float, end_s: float) -> None:
    """Replica `r` has made steps up to this one; the next is in flight, from `last_s` to `end_s`."""
    state = cluster.replicas[r]
    made = steps - state.steps
    state.num_iterations, state.busy_s, state.kv_block_s = sums.iterations, sums.busy_s, sums.kv_block_s
    state.flops, state.bytes, state.num_beyond_measured = sums.flops, sums.bytes, sums.beyond_measured
    state.tokens_computed += made * state.num_grouped
    state.decode_left -= made * state.num_grouped
    state.num_produced += made * state.num_grouped
    state.steps, state.last_step_s, state.now_s = steps, last_s, last_s
    state.reported_waiting = state.formed_waiting if made == 1 else 0
    state.formed_waiting = 0
    state.stalled = 1
    cluster.stage_free_s[r, 0] = end_s
    note_next_end(cluster, r, end_s)


@inlined
def _note_step(cluster: Cluster, r: int, number: int, shape: Shape, done: Work, start_s: float, end_s: float) -> None:
    """Write down the step in flight of replica `r`."""
    note_flight(cluster.flights[r, 0], number, shape, done, start_s, end_s)
    cluster.stage_start_s[r, 0, 0] = start_s
    cluster.stage_end_s[r, 0, 0] = end_s
