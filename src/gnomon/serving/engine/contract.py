"""Rules that a batch must keep, and what went wrong when the engine had to stop.

Compiled code cannot raise through a function pointer. It writes a fault into `cluster.control` and stops
(`engine.guard` says it in words). Batches of users' own policies are checked rule by rule, each one: that
costs a walk over the batch and the running list. Verbs check what they are asked for whoever asks.
"""

from gnomon.jit import inlined, noinline
from gnomon.serving.engine.state import (
    BUDGET,
    FAULT,
    FAULT_REPLICA,
    FAULT_REQUEST,
    NONE,
    RUNNING,
    Cluster,
    Replica,
    replica_view,
    ring_position,
)

# Faults.
(
    POLICY_RAISED, LEFT_ALONE, NO_PROGRESS, BEYOND_TABLES, NO_SUCH_REPLICA,
    WRONG_TOKENS, NO_BLOCKS, NOT_TAKEN_OUT, NOT_COUNTED, TOO_MANY, ADMISSION_RAISED, OVERWRITTEN,
) = range(1, 13)  # fmt: skip


@noinline
def stop(cluster: Cluster, fault: int, r: int, request_id: int) -> None:
    """Note what went wrong first, and let no further iteration start."""
    if cluster.control[FAULT] == 0:
        cluster.control[FAULT] = fault
        cluster.control[FAULT_REPLICA] = r
        cluster.control[FAULT_REQUEST] = request_id
    cluster.control[BUDGET] = 0


@inlined
def _is_in_range(replica: Replica) -> bool:
    """Whether what counts and names requests stays within the arrays, whatever the policy wrote there."""
    state, requests = replica.state, replica.requests.size
    if not (0 <= state.batch_size <= replica.batch.size and 0 <= state.num_running <= replica.running.size):
        return False
    if not 0 <= state.num_grouped <= replica.grouped.shape[0]:
        return False
    if state.num_waiting > 0 and not (0 <= state.first_waiting < requests and 0 <= state.last_waiting < requests):
        return False
    are_requests = True
    for i in range(state.num_grouped if state.in_step != 0 else 0, state.batch_size):
        are_requests = are_requests and 0 <= replica.batch[i] < requests
    for i in range(state.num_running):
        are_requests = are_requests and 0 <= replica.running[i] < requests
    return are_requests


@noinline
def check_batch(cluster: Cluster, r: int) -> None:
    """Stop at the first rule that the batch just formed by replica `r` breaks."""
    state = cluster.replicas[r]
    replica = replica_view(cluster, r)
    if not _is_in_range(replica):
        stop(cluster, OVERWRITTEN, r, NONE)
        # Nobody may follow these numbers on the way out.
        state.batch_size, state.num_running, state.num_grouped, state.num_waiting = 0, 0, 0, 0
        return
    together = state.num_grouped if state.in_step != 0 else 0
    for i in range(together, state.batch_size):
        request_id, tokens = replica.batch[i], replica.batch_tokens[i]
        request = replica.requests[request_id]
        decodes = request.processed > request.prefill_tokens
        most = 1 + state.num_speculative if decodes else request.prefill_tokens - request.processed
        computed = request.processed - 1 if decodes else request.processed
        if tokens > most:
            stop(cluster, WRONG_TOKENS, r, request_id)
        elif computed + tokens > request.num_blocks * state.block_size:
            stop(cluster, NO_BLOCKS, r, request_id)
    for i in range(state.num_running):
        if replica.requests[replica.running[i]].status != RUNNING:
            stop(cluster, NOT_TAKEN_OUT, r, replica.running[i])
    under_way = state.num_running + state.batch_size + state.num_grouped - together
    for i in range(state.num_in_flight):
        under_way += cluster.flights[r, ring_position(cluster, r, i)].num_requests
    if state.num_waiting + state.num_deferred + under_way != state.num_outstanding:
        stop(cluster, NOT_COUNTED, r, NONE)
    elif under_way > replica.running.size:
        stop(cluster, TOO_MANY, r, NONE)
