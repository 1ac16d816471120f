"""A batching policy of one's own: shortest prompt first.

    gnomon simulate --batching.policy shortest_first --batching.file examples/own/shortest_first.py

Like vllm_v1, every running request gets its tokens first; but of those that wait, the shortest prompt is admitted next.
`parameters[0]` is a guard against starvation: whoever has waited that many seconds goes first.
"""

from __future__ import annotations

from gnomon.extend import NONE, Replica, batching_policy, inlined, tokens_placed
from gnomon.serving.policies.vllm_v1 import admit_first, continue_running


@inlined
def bring_shortest_to_front(replica: Replica) -> None:
    """Move the most deserving waiting request to the head of the queue."""
    state, requests = replica.state, replica.requests
    patience_s = replica.parameters[0] if replica.parameters[0] > 0.0 else 10.0
    if state.num_waiting == 0:
        return
    best, before_best, before, r = state.first_waiting, NONE, NONE, state.first_waiting
    for _ in range(state.num_waiting):
        if state.now_s - requests[r].arrival_s > patience_s:
            best, before_best = r, before
            break
        if requests[r].prefill_tokens < requests[best].prefill_tokens:
            best, before_best = r, before
        before, r = r, requests[r].next_waiting
    if before_best == NONE:
        return
    requests[before_best].next_waiting = requests[best].next_waiting
    if state.last_waiting == best:
        state.last_waiting = before_best
    requests[best].next_waiting = state.first_waiting
    state.first_waiting = best


@batching_policy("shortest_first")
def shortest_first(replica: Replica) -> None:
    """Running requests, then waiting ones, shortest prompt first, while they fit."""
    if continue_running(replica):
        budget = replica.state.max_batch_tokens - tokens_placed(replica)
        bring_shortest_to_front(replica)
        tokens = admit_first(replica, budget)
        while tokens > 0:
            budget -= tokens
            bring_shortest_to_front(replica)
            tokens = admit_first(replica, budget)
    replica.state.steppable = 1
