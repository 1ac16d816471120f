"""LightLLM: token-level memory, and a prefill only every so many decode iterations.

With the limits of Vidur's `lightllm` replica scheduler, whose runs it replays exactly. Blocks are single tokens and
there is no pipeline parallelism.
"""

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.jit import inlined
from gnomon.serving.engine.batch_operations import hold, keep_running, place, pop_waiting, preempt
from gnomon.serving.engine.state import Replica
from gnomon.serving.policies import batching_policy

_MAX_WAITING = 0  # the option's place: decode iterations between prefills
_SINCE = 0  # in memory: decode iterations since the last prefill


@inlined
def peak_tokens(has: Floats, left: Floats) -> float:
    """The most memory the requests will ever need together.

    Request k holds `has[k]` tokens and will produce `left[k]` more. Sorted by what is left, longest first, memory
    peaks when one of them finishes: max over k of `left[k] * k + sum(has[:k])`, k counted from 1.
    """
    order = np.argsort(-left)
    peak, held = 0.0, 0.0
    for k in range(order.size):
        held += has[order[k]]
        peak = max(peak, left[order[k]] * (k + 1) + held)
    return peak


@inlined
def _admit(replica: Replica) -> None:
    """Place whole prompts while their sum, the caps and the predicted peak of memory allow."""
    state, requests = replica.state, replica.requests
    has = np.empty(state.max_running + 1)
    left = np.empty(state.max_running + 1)
    count, tokens = 0, 0
    for i in range(state.num_running):
        request = requests[replica.running[i]]
        has[count] = request.processed
        left[count] = max(0, request.total_tokens - request.processed - 1)
        count += 1
    while state.num_waiting > 0:
        r = state.first_waiting
        request = requests[r]
        if tokens + request.prefill_tokens > state.max_batch_tokens:
            break
        if state.num_holding == state.max_running or state.batch_size == state.max_in_batch:
            break
        has[count] = request.prefill_tokens + 1
        left[count] = max(0, request.total_tokens - request.prefill_tokens - 2)
        if peak_tokens(has[: count + 1], left[: count + 1]) >= state.num_blocks:
            break
        if request.prefill_tokens > state.free_blocks:  # KV on its way here is in none of the lists.
            break
        count += 1
        tokens += request.prefill_tokens
        pop_waiting(replica)
        hold(replica, r, request.prefill_tokens)
        place(replica, r, request.prefill_tokens)


@batching_policy(
    "lightllm",
    defaults={"block_size": 1},
    max_sequences_of="stages",
    max_batch_tokens_of="prefill",
    chunks_prompts=False,
    mixes=False,
    reserves="request",
    has_prefix_cache=False,
    has_chunk_cap=False,
    has_stages=False,
    overlaps=False,  # It predicts the peak of memory from requests that have ended by then.
    options={"max_waiting_iterations": 10.0},
    memory=1,
    holds_back="prefills once in so many decode iterations, and only if the memory of all outputs to come fits",
)
def lightllm(replica: Replica) -> None:
    """Prefill when nothing runs or the counter is full; else one token, and one block, for every running request."""
    state = replica.state
    if state.num_running == 0:
        _admit(replica)
        if state.batch_size > 0:
            replica.memory[_SINCE] = 0
        return
    if replica.memory[_SINCE] >= replica.parameters[_MAX_WAITING]:
        replica.memory[_SINCE] = 0
        _admit(replica)
        if state.batch_size > 0:
            return
    count = state.num_running
    while count > state.free_blocks:  # Those whose KV came from elsewhere were not planned for.
        count -= 1
        preempt(replica, replica.running[count])
    for i in range(count):
        hold(replica, replica.running[i], 1)
        place(replica, replica.running[i], 1)
    keep_running(replica, state.num_running, state.num_running)
    replica.memory[_SINCE] += 1
