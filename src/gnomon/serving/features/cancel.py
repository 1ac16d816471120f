"""A request whose client has left: what the engine holds for it is let go, as soon as no batch computes it.

One that waits leaves the queue at once. One that is being computed is cut down to that, so that it ends with the
iteration in flight, as in real engines. Written in plain Python over the engine's arrays, because it is rare.
"""

import numpy as np

from gnomon.serving.engine import decode_group, prefix_cache
from gnomon.serving.engine.batch_operations import computed, finish, report
from gnomon.serving.engine.state import IN_FLIGHT, QUEUED, REJECTED, RUNNING, WAITING, Cluster, Replica, replica_view

_view = getattr(replica_view, "py_func", replica_view)


def cancel(cluster: Cluster, request_id: int, now_s: float) -> bool:
    """Let a request go, or cut it down to what is being computed. Returns whether it has ended now; one that is
    between replicas or not there yet, or that its replica has to hear of, stays as it is."""
    request = cluster.requests[request_id]
    status, r = int(request.status), int(request.replica)
    if status not in (WAITING, RUNNING, IN_FLIGHT):
        return False
    replica = _view(cluster, r)
    if is_news(replica, request_id):
        return False
    if status == WAITING:
        _leave_queue(replica, request_id, now_s)
    elif status == RUNNING:
        _stop_running(replica, request_id, now_s)
    else:
        end_early(cluster, replica, request_id)
    return status != IN_FLIGHT


def end_early(cluster: Cluster, replica: Replica, r: int) -> None:
    """Cut a request in flight down to what is being computed."""
    replica.requests[r].held_counts = 0  # It goes nowhere.
    if r in replica.grouped[: replica.state.num_grouped, decode_group.ID]:
        _end_with_step(replica, r)
    else:
        _end_with_batch(cluster, replica, r)


def is_news(replica: Replica, r: int) -> bool:
    """Whether its replica acts on what has happened to it one batch later (`gnomon.serving.features.overlap`)."""
    one = replica.state.first_deferred
    for _ in range(replica.state.num_deferred):
        if one == r:
            return True
        one = replica.requests[one].next_waiting
    return False


def _leave_queue(replica: Replica, r: int, now_s: float) -> None:
    state, requests = replica.state, replica.requests
    before, one = -1, state.first_waiting
    while one != r:
        before, one = one, requests[one].next_waiting
    request = requests[r]
    if before < 0:
        state.first_waiting = request.next_waiting
    else:
        requests[before].next_waiting = request.next_waiting
    if state.last_waiting == r:
        state.last_waiting = before
    state.num_waiting -= 1
    state.waiting_tokens -= request.prefill_tokens
    replica.service[request.user_class, QUEUED] -= 1.0
    state.prefill_left -= request.prefill_tokens - request.foreseen  # What it would have found is no work.
    state.decode_left -= request.total_tokens - request.prefill_tokens
    state.num_outstanding -= 1
    state.num_rejected += 1
    state.stalled = state.lacks_blocks = 0
    request.status, request.finished_s = REJECTED, now_s
    if state.reports != 0:
        report(replica, r)


def _stop_running(replica: Replica, r: int, now_s: float) -> None:
    state, request = replica.state, replica.requests[r]
    place = int(np.flatnonzero(replica.running[: state.num_running] == r)[0])
    replica.running[place : state.num_running - 1] = replica.running[place + 1 : state.num_running].copy()
    state.num_running -= 1
    state.prefill_left -= max(0, request.prefill_tokens - request.processed)
    state.decode_left -= request.total_tokens - max(request.processed, request.prefill_tokens)
    request.total_tokens = max(1, computed(replica, r))  # Only what is there can be found again.
    finish(replica, r, now_s)


def _end_with_step(replica: Replica, r: int) -> None:
    """One of those that step together is done with the step in flight."""
    state, request = replica.state, replica.requests[r]
    grows = request.num_blocks * state.block_size < request.total_tokens
    total = min(int(request.total_tokens), int(decode_group.processed_now(replica, r)) + 1)
    state.decode_left -= request.total_tokens - total
    request.total_tokens = total
    if grows and request.num_blocks * state.block_size >= total:  # It is counted for a block that it never needs.
        replica.growth[decode_group._growth_class(replica, r, request.joined)] -= 1
    member = int(np.flatnonzero(replica.grouped[: state.num_grouped, decode_group.ID] == r)[0])
    replica.grouped[member, decode_group.DUE] = min(replica.grouped[member, decode_group.DUE], state.steps + 1)
    state.next_finish = min(state.next_finish, state.steps + 1)


def _end_with_batch(cluster: Cluster, replica: Replica, r: int) -> None:
    """The part of its prompt in flight becomes its whole prompt, or the token in flight its last."""
    state, request = replica.state, replica.requests[r]
    prefill, total = int(request.prefill_tokens), int(request.total_tokens)
    if request.processed > prefill:
        request.total_tokens = min(total, request.processed + 1)
        state.decode_left -= total - request.total_tokens
        return
    places = [(int(state.oldest) + i) % cluster.flights.shape[1] for i in range(state.num_in_flight)]
    members = cluster.flight_requests[state.id, places]
    sizes = cluster.flights.num_requests[state.id, places]
    here = (members == r) & (np.arange(members.shape[1]) < sizes[:, None])
    in_flight = int(cluster.flight_tokens[state.id, places][here].sum())
    request.prefill_tokens = min(prefill, request.processed + in_flight)
    request.total_tokens = request.prefill_tokens + 1
    state.prefill_left -= prefill - request.prefill_tokens
    state.decode_left -= total - prefill - 1


def forget_own_keys(cluster: Cluster, request_id: int) -> None:
    """Blocks that a pre-empted request might have found again are nobody's, now that its number is another's."""
    for r in range(cluster.replicas.size):
        replica = _view(cluster, r)
        for block in np.flatnonzero(replica.block_key >> 24 == request_id + 1):
            prefix_cache.forget(replica, int(block))
