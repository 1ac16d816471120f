"""The engine: replicas that run ahead between outside events.

A replica meets the outside only at arrivals and at other outside events (`engine.calendar`). Between them it
runs alone: `proceed(..., until)` handles every batch end before `until`. Batches are formed at arrivals and at batch
ends, while fewer than `num_stages` are in flight; a formed batch is frozen, and since stages serve batches first come
first served, all its stage times are known at once. At one instant: arrivals are queued, then batch ends are handled,
then batches are formed.

Data-parallel ranks whose experts are spread over each other step together: they are one group, whose members form
their batches at the same moment and finish together. Every other replica is a group of one.
"""

from collections.abc import Callable
from typing import Any

from gnomon.jit import inlined
from gnomon.serving.engine import contract, decode_group, prefix_cache
from gnomon.serving.engine.batch_operations import defer, finish, is_late, pop_waiting, push_waiting, report
from gnomon.serving.engine.calendar import NEVER
from gnomon.serving.engine.decode_fast_path import fast_forward, may_fast_forward
from gnomon.serving.engine.launch import launch, launch_together, note_next_end
from gnomon.serving.engine.log import Log, log_gap, log_iteration
from gnomon.serving.engine.state import (
    BUDGET,
    FAULT,
    FINISHED,
    IN_FLIGHT,
    LAUNCHES_FIRST,
    NONE,
    REJECTED,
    RUNNING,
    WAITING,
    Cluster,
    Replica,
    replica_view,
    ring_position,
)
from gnomon.serving.features import breakdown
from gnomon.serving.features.handover import hand_over, leaves
from gnomon.serving.features.overlap import apply_deferred, place_surplus
from gnomon.timing.iteration import IterationTables

Policies = tuple[Callable[[Replica], None], ...]

_DRAW_MODULUS = 2_147_483_647


# The end of a batch.


@inlined
def _accepted(replica: Replica, r: int) -> int:
    """How many drafted tokens the target accepts, up to the first refusal."""
    request, accepted = replica.requests[r], 0
    while accepted < replica.state.num_speculative:
        request.draw = int(request.draw) * 48_271 % _DRAW_MODULUS
        if request.draw >= replica.acceptance[accepted] * _DRAW_MODULUS:
            break
        accepted += 1
    return accepted


@inlined
def _end_for_request(replica: Replica, log: Log, r: int, tokens: int, may_step: bool, now: float) -> None:
    """Count what the batch computed for request `r`, stamp its tokens, and say where it goes from here."""
    state, request = replica.state, replica.requests[r]
    produced = 0
    if request.processed > request.prefill_tokens:
        produced = min(1 + _accepted(replica, r), request.total_tokens - request.processed)
        request.processed += produced
    else:
        request.processed += tokens
        state.prefill_left -= tokens
        prefix_cache.key_full_blocks(replica, r, request.processed)
        if request.processed == request.prefill_tokens:
            if leaves(replica, r):
                if state.overlaps != 0:
                    defer(replica, r, RUNNING)
                else:
                    hand_over(replica, r, now)
                return
            request.processed += 1
            produced = 1
    if produced > 0:
        state.stalled = 0
        state.decode_left -= produced
        state.num_produced += produced
        if request.first_token_s < 0.0:
            request.first_token_s = now
            request.first_reply_s = state.reply_s
            if state.overlaps == LAUNCHES_FIRST:
                request.next_answered = state.first_answered
                state.first_answered = r
                state.num_answered += 1
        else:
            log_gap(log, now - request.last_token_s, 1)
        if produced > 1:
            log_gap(log, 0.0, produced - 1)
        request.last_token_s = now
    if request.processed >= request.total_tokens:
        if state.overlaps != 0:
            defer(replica, r, RUNNING)
        else:
            finish(replica, r, now)
    elif may_step and produced > 0 and decode_group.may_join(replica, r):
        decode_group.join(replica, r)
    else:
        request.status = RUNNING
        replica.running[state.num_running] = r
        state.num_running += 1


@inlined
def _write_messages(cluster: Cluster, r: int, position: int) -> None:
    """The front end writes what the batch produced: the first token of each whose prompt is complete, and one message
    in `stream_interval` tokens of those that decode."""
    state, flight = cluster.replicas[r], cluster.flights[r, position]
    messages = flight.decodes / state.stream_interval
    for i in range(flight.num_grouped, flight.num_requests):
        request = cluster.requests[cluster.flight_requests[r, position, i]]
        if request.processed + cluster.flight_tokens[r, position, i] == request.prefill_tokens:
            messages += 1.0
    start_s = max(flight.end_s, state.writer_free_s)
    state.writer_free_s = start_s + messages * state.message_s
    state.reply_s = state.base_reply_s + start_s - flight.end_s + 0.5 * (messages + 1.0) * state.message_s


@inlined
def _may_step(state: Any, log: Log) -> bool:
    """Whether decodes may step together from now on: the policy agrees, it left nobody out of the batch that ends, one
    batch is in flight at a time, each decode gives one token, and nobody wants to know who was in which batch."""
    is_simple = state.num_stages == 1 and state.num_speculative == 0 and log.members.shape[0] == 0
    return is_simple and state.steppable != 0 and state.num_running == 0


@inlined
def _end_oldest_batch(cluster: Cluster, tables: IterationTables, log: Log, r: int) -> None:
    """Handle the end of the oldest in-flight batch of replica `r`."""
    state = cluster.replicas[r]
    is_explained = cluster.breakdown.size > 0
    position = state.oldest
    flight = cluster.flights[r, position]
    replica = replica_view(cluster, r)
    may_step = _may_step(state, log)
    if is_explained:
        breakdown.end_batch(cluster, r, position)
    if state.message_s > 0.0:
        _write_messages(cluster, r, position)
    if flight.num_grouped > 0:
        num_done = decode_group.end_step(replica, log, flight.end_s)
        if is_explained:
            breakdown.leave_done(cluster, replica, r, num_done)
    elif state.num_grouped == 0:
        state.last_step_s = flight.end_s
    if not may_step and state.num_grouped > 0:
        if is_explained:
            breakdown.leave_all(cluster, r, state.num_grouped)
        decode_group.dissolve(replica, state.num_running)
    for i in range(flight.num_grouped, flight.num_requests):
        request_id, tokens = cluster.flight_requests[r, position, i], cluster.flight_tokens[r, position, i]
        if cluster.requests[request_id].status == FINISHED:  # A token too many.
            continue
        if is_explained:
            breakdown.end_member(cluster, tables, r, position, i)
        _end_for_request(replica, log, request_id, tokens, may_step, flight.end_s)
        if is_explained and cluster.requests[request_id].status == IN_FLIGHT:
            breakdown.join(cluster, r, request_id)
    if flight.num_requests > 0:
        log_iteration(cluster, log, r, position)
    state.reported_waiting, state.reported_free = state.formed_waiting, state.free_blocks
    state.num_in_flight -= 1
    state.oldest = ring_position(cluster, r, 1)
    note_next_end(cluster, r, cluster.flights[r, state.oldest].end_s if state.num_in_flight > 0 else NEVER)


# The start of a batch.


@inlined
def _choose_batch(cluster: Cluster, policies: Policies, r: int, now: float) -> int:
    """Let the policy of replica `r` form a batch; returns its size."""
    state = cluster.replicas[r]
    replica = replica_view(cluster, r)
    state.now_s = now
    state.batch_size = 0
    state.in_step = 0
    state.answered = 0
    num_grouped = state.num_grouped
    policies[state.policy](replica)
    if cluster.breakdown.size > 0 and state.num_grouped < num_grouped:
        breakdown.leave_all(cluster, r, num_grouped)
    if state.answered == 0:
        contract.stop(cluster, contract.POLICY_RAISED, r, NONE)
    elif state.checked != 0:
        contract.check_batch(cluster, r)
    if state.surplus != 0 and state.num_deferred > 0:
        place_surplus(replica)
    return state.batch_size


@inlined
def _choose_or_reject(cluster: Cluster, policies: Policies, r: int, now: float) -> int:
    """Let replica `r` form a batch; returns its size. Requests that it can never run are rejected.

    That is so for one that needs more than all memory, and for the first in the queue when nothing else is there and
    the policy, asked twice (the last request may just have pre-empted itself), does not take it.
    """
    state, size, asked_twice = cluster.replicas[r], 0, False
    while cluster.control[FAULT] == 0:
        while state.num_waiting > 0 and cluster.requests[state.first_waiting].never_fits != 0:
            _reject_first_waiting(cluster, r, now)
        size = _choose_batch(cluster, policies, r, now)
        if cluster.breakdown.size > 0:
            breakdown.note_queue(cluster, r, now)
        if size > 0 or state.num_waiting == 0 or state.num_waiting < state.num_outstanding:
            break
        if state.num_landing + state.num_held > 0:  # What they hold will be free.
            break
        if asked_twice:
            _reject_first_waiting(cluster, r, now)
        asked_twice = True
    return size


@inlined
def _reject_first_waiting(cluster: Cluster, r: int, now: float) -> None:
    """The first request in the queue can never be admitted: nothing else is left that could make room."""
    replica = replica_view(cluster, r)
    first = pop_waiting(replica)
    request, state = replica.requests[first], replica.state
    request.status = REJECTED
    request.finished_s = now
    request.last_reply_s = state.reply_s
    state.stalled = 0
    state.num_rejected += 1
    state.num_outstanding -= 1
    state.prefill_left -= request.prefill_tokens
    state.decode_left -= request.total_tokens - max(request.prefill_tokens, request.prompt_tokens)
    if state.reports != 0:
        report(replica, first)


@inlined
def _form_batches(cluster: Cluster, tables: IterationTables, policies: Policies, first: int, now: float) -> None:
    """Form batches for a group until its pipeline is full or there is nothing to run."""
    leader = cluster.replicas[first]
    if leader.frozen != 0:
        return
    last_chance = False
    while leader.num_in_flight < leader.num_stages:
        formed, idle, landing = 0, NONE, 0
        for r in range(first, first + leader.group_size):
            formed += _choose_or_reject(cluster, policies, r, now)
            landing += cluster.replicas[r].num_landing + cluster.replicas[r].num_held + cluster.replicas[r].num_deferred
            if cluster.replicas[r].num_outstanding > 0:
                idle = r
        if cluster.control[FAULT] != 0:
            return
        if formed > 0:
            if leader.group_size == 1:
                launch(cluster, tables, first, now)
            else:
                launch_together(cluster, tables, first, now)
            last_chance = False
        elif leader.num_in_flight > 0 or idle == NONE or landing > 0:
            return
        elif last_chance:
            contract.stop(cluster, contract.LEFT_ALONE, idle, NONE)
        else:
            last_chance = True


# The outside.


@inlined
def _wake(cluster: Cluster, tables: IterationTables, policies: Policies, log: Log, first: int, now: float) -> bool:
    """Handle the group's batch ends up to `now`, and form batches at `now`; returns whether to do so once more."""
    leader = cluster.replicas[first]
    members, is_ahead = range(first, first + leader.group_size), leader.overlaps != 0 and leader.next_end_s <= now
    for r in members:
        while cluster.replicas[r].next_end_s <= now:
            _end_oldest_batch(cluster, tables, log, r)
    if leader.num_in_flight >= leader.num_stages:
        return False
    if not is_ahead:
        for r in members:
            cluster.replicas[r].forms_s = now
    _form_batches(cluster, tables, policies, first, now)
    if not is_ahead:
        return False
    heard_s = now
    if leader.overlaps == LAUNCHES_FIRST:
        for r in members:
            heard_s = max(heard_s, cluster.replicas[r].forms_s)
    for r in members:
        apply_deferred(replica_view(cluster, r), now, heard_s)
    return bool(leader.num_in_flight == 0)  # Nothing to do, as far as it knew.


def proceed(
    cluster: Cluster, tables: IterationTables, policies: Policies, log: Log, first: int, now: float, until: float
) -> None:
    """Run a group alone: wake it at `now` if something arrived there (else NEVER), and handle all that happens in it
    before `until`.

    This is the one way into the engine; the loops over arrivals call it through a pointer (`engine_of`), so
    that they compile without it.
    """
    at, wakes = now, now != NEVER
    while wakes or (cluster.replicas[first].next_end_s < until and cluster.control[BUDGET] > 0):
        if not wakes:
            if may_fast_forward(cluster, log, first):
                fast_forward(cluster, tables, log, first, until)
                continue
            at = cluster.replicas[first].next_end_s
        wakes = _wake(cluster, tables, policies, log, first, at)  # The only place, so that it is compiled once.


@inlined
def enqueue(cluster: Cluster, r: int, request_id: int, now: float) -> None:
    """Put an arrived request into the queue of replica `r`. The caller wakes the replica's group afterwards."""
    request, state = cluster.requests[request_id], cluster.replicas[r]
    request.replica = r
    state.stalled = 0
    state.num_taken += 1
    state.num_outstanding += 1
    state.prefill_left += request.prefill_tokens
    state.decode_left += request.total_tokens - request.prefill_tokens
    replica = replica_view(cluster, r)
    is_shared = request.prefix_count > 0 or leaves(replica, request_id)
    if is_shared and state.prefix_cache != 0 and state.tracks_blocks == 0:
        prefix_cache.track_blocks(replica)
    if is_late(state, now):
        defer(replica, request_id, WAITING)
    else:
        push_waiting(replica, request_id)
    if cluster.breakdown.size > 0:
        breakdown.arrive(cluster, r, request_id, now)
