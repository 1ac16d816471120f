"""Urgent requests first, as vLLM does with `--scheduling-policy priority`; they may push others out.

The order of vLLM 0.19: waiting requests by priority, then by arrival; when memory runs out, the least urgent running
request makes room, of those the one admitted last. With `preempts` (the default here, not in vLLM) a request that
finds no room also pushes less urgent ones out.
"""

from gnomon.jit import inlined
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.batch_operations import keep_running, preempt, tokens_placed
from gnomon.serving.engine.decode_group import dissolve, place_together
from gnomon.serving.engine.state import NONE, PRIORITY, Replica
from gnomon.serving.policies import batching_policy
from gnomon.serving.policies.service_by_class import bring_forward, most_urgent
from gnomon.serving.policies.vllm_v1 import admit_first, continue_in_order, has_memory_for

_PREEMPTS, _RESERVES_PROMPT = range(2)  # the options' places


@inlined
def _priority(replica: Replica, r: int) -> float:
    return replica.classes[replica.requests[r].user_class, PRIORITY]


@inlined
def _reserves_prompt(replica: Replica) -> bool:
    return replica.parameters[_RESERVES_PROMPT] != 0.0


@inlined
def _sort_running(replica: Replica) -> None:
    """Most urgent first, then in order of admission."""
    running, requests = replica.running, replica.requests
    for i in range(1, replica.state.num_running):
        r, j = running[i], i - 1
        while j >= 0 and (
            _priority(replica, running[j]) < _priority(replica, r)
            or (
                _priority(replica, running[j]) == _priority(replica, r)
                and requests[running[j]].admission > requests[r].admission
            )
        ):
            running[j + 1] = running[j]
            j -= 1
        running[j + 1] = r


@inlined
def _has_room(replica: Replica, r: int) -> bool:
    state = replica.state
    hits = prefix_cache.count_hits(replica, r)
    prompt, first = replica.requests[r].prefill_tokens, hits * state.block_size + 1
    tokens = prompt if _reserves_prompt(replica) else first
    return state.num_holding < state.max_running and has_memory_for(replica, r, hits, tokens)


@inlined
def _push_others_out(replica: Replica, c: int) -> None:
    """Pre-empt less urgent requests until the first of class `c` has room, or none is left; it takes the room at once,
    before those that run on need more."""
    state = replica.state
    bring_forward(replica, c)
    urgent = state.first_waiting
    if _has_room(replica, urgent):
        return
    dissolve(replica, state.num_running)
    _sort_running(replica)
    last = state.num_running
    while last > 0 and not _has_room(replica, urgent):
        if _priority(replica, replica.running[last - 1]) >= replica.classes[c, PRIORITY]:
            break
        last -= 1
        preempt(replica, replica.running[last])
    keep_running(replica, 0, last)
    if _has_room(replica, urgent):
        bring_forward(replica, c)  # Those pushed out went to the front.
        admit_first(replica, state.max_batch_tokens, _reserves_prompt(replica))


@batching_policy(
    "priority",
    defaults={"max_sequences": 256, "max_batch_tokens": 8192, "watermark": 0.0, "prefix_cache": True},
    max_batch_tokens_of="iteration", speculates=True, options={"preempts": 1.0, "reserve_full_prompt": 1.0},
)  # fmt: skip
def priority(replica: Replica) -> None:
    """Running requests, most urgent first; then waiting ones, most urgent first, with what is left of the budget."""
    state = replica.state
    c = most_urgent(replica)
    if c != NONE and replica.parameters[_PREEMPTS] != 0.0:
        _push_others_out(replica, c)
    placed = tokens_placed(replica)
    budget = state.max_batch_tokens - placed
    if placed == 0:
        budget -= place_together(replica)
    _sort_running(replica)
    if continue_in_order(replica, budget):
        budget = state.max_batch_tokens - tokens_placed(replica)
        tokens, c = 1, most_urgent(replica)
        while tokens > 0 and c != NONE:
            bring_forward(replica, c)
            tokens = admit_first(replica, budget, _reserves_prompt(replica))
            budget -= tokens
            c = most_urgent(replica)
    state.steppable = 2
