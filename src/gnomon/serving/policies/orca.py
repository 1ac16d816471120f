"""Orca: iteration-level scheduling, with memory reserved for the longest possible request.

From: G. Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models" (OSDI 2022), with the
limits of Vidur's `orca` replica scheduler, whose runs it replays exactly.
"""

from gnomon.jit import inlined
from gnomon.serving.engine.batch_operations import hold, is_decoding, keep_running, place, pop_waiting, prefill_left
from gnomon.serving.engine.decode_group import place_together
from gnomon.serving.engine.state import Replica
from gnomon.serving.policies import batching_policy


@inlined
def admit_whole_prompts(replica: Replica) -> None:
    """Admit waiting requests while blocks for the longest possible request are free, and place their prompts."""
    state = replica.state
    reserved = max(1, state.max_request_tokens // state.block_size)
    while state.num_waiting > 0 and state.batch_size < state.max_in_batch and state.free_blocks >= reserved:
        r = pop_waiting(replica)
        hold(replica, r, reserved)
        place(replica, r, prefill_left(replica, r))


@inlined
def is_never_outgrown(replica: Replica) -> bool:
    """Whether the reservation, which is rounded down, holds the longest request. Where it does not, a request goes on
    without a further block, whereas decodes that step together would take one."""
    return replica.state.max_request_tokens % replica.state.block_size == 0


@batching_policy(
    "orca", max_sequences_of="batch", max_batch_tokens_of="nothing", chunks_prompts=False, reserves="longest",
    has_prefix_cache=False, has_chunk_cap=False,
)  # fmt: skip
def orca(replica: Replica) -> None:
    """One token for each running request, then whole prompts of new ones, in one mixed batch."""
    state, running = replica.state, replica.running
    place_together(replica)
    first = 0
    while first < state.num_running and state.batch_size < state.max_in_batch:
        r = running[first]
        place(replica, r, 1 if is_decoding(replica, r) else prefill_left(replica, r))
        first += 1
    keep_running(replica, first, state.num_running)
    admit_whole_prompts(replica)
    state.steppable = 1 if is_never_outgrown(replica) else 0
