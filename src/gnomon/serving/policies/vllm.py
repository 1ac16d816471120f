"""The scheduler of vLLM v0: prefills first, never mixed with decodes.

From: W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention" (SOSP 2023),
with the limits and tie rules of Vidur's `vllm` replica scheduler, whose runs it replays exactly.
"""

from gnomon.jit import inlined
from gnomon.serving.engine.batch_operations import (
    blocks_for,
    grow_for_decode,
    hold,
    keep_running,
    place,
    pop_waiting,
    preempt,
    sort_running_by_arrival,
)
from gnomon.serving.engine.decode_group import place_together
from gnomon.serving.engine.state import Replica
from gnomon.serving.policies import batching_policy


@inlined
def has_room_for(replica: Replica, r: int) -> bool:
    """Whether a waiting request may take the blocks of its prompt and still leave the watermark free."""
    state = replica.state
    return state.free_blocks - blocks_for(replica, replica.requests[r].prefill_tokens) >= state.watermark_blocks


@batching_policy(
    "vllm", max_sequences_of="stages", max_batch_tokens_of="prefill", chunks_prompts=False, mixes=False,
    has_prefix_cache=False, has_chunk_cap=False,
)  # fmt: skip
def vllm(replica: Replica) -> None:
    """Batch whole prompts while they fit; if none does, one token for every running request, oldest first.

    A decode needs a free block even if it does not grow. When there is none, the youngest request not yet placed is
    pre-empted, and when there is no such request, the one at hand.
    """
    state = replica.state
    longest = 0
    while state.num_waiting > 0:
        first = state.first_waiting
        tokens = replica.requests[first].prefill_tokens
        longest = max(longest, tokens)
        if not has_room_for(replica, first):
            break
        if (state.batch_size + 1) * longest > state.max_batch_tokens:
            break
        if state.num_holding == state.max_running or state.batch_size == state.max_in_batch:
            break
        pop_waiting(replica)
        hold(replica, first, blocks_for(replica, tokens))
        place(replica, first, tokens)
    if state.batch_size > 0:
        return

    place_together(replica)
    sort_running_by_arrival(replica)
    place_decodes(replica)
    state.steppable = 1


@inlined
def place_decodes(replica: Replica) -> None:
    """One token for each running request in order, pre-empting from the end of the list when blocks run out."""
    state, running = replica.state, replica.running
    first, last = 0, state.num_running
    while first < last and state.batch_size < state.max_in_batch:
        r = running[first]
        first += 1
        while state.free_blocks < 1 and first < last:
            last -= 1
            preempt(replica, running[last])
        if state.free_blocks < 1:
            preempt(replica, r)
        else:
            grow_for_decode(replica, r)
            place(replica, r, 1)
    keep_running(replica, first, last)
