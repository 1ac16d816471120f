"""Sarathi-Serve: decodes first, then as much prefill as a fixed token budget allows.

From: A. Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve" (OSDI 2024),
with the limits and tie rules of Vidur's `sarathi` replica scheduler, whose runs it replays exactly.
"""

from gnomon.serving.engine.batch_operations import (
    blocks_for,
    grow_for_decode,
    hold,
    is_decoding,
    keep_running,
    place,
    pop_waiting,
    preempt,
    prefill_left,
    sort_running_by_arrival,
)
from gnomon.serving.engine.decode_group import place_together
from gnomon.serving.engine.state import Replica
from gnomon.serving.policies import batching_policy
from gnomon.serving.policies.vllm import has_room_for


@batching_policy(
    "sarathi", defaults={"max_batch_tokens": 512}, max_sequences_of="stages", max_batch_tokens_of="iteration",
    has_prefix_cache=False, has_chunk_cap=False,
)  # fmt: skip
def sarathi(replica: Replica) -> None:
    """Every decode gets its token; prefills, running ones before new ones, share what is left of the chunk.

    Blocks for the whole prompt are held at its first chunk. A decode without a free block pre-empts the last running
    request, which may come back in the same call. A prefill for which nothing is left waits for the next iteration.
    """
    state, running = replica.state, replica.running
    used = place_together(replica)

    # Decodes in list order. Prefills met on the way move to the front part of the list, [0, prefills).
    first, last, prefills = 0, state.num_running, 0
    while first < last and state.batch_size < state.max_in_batch:
        r = running[first]
        first += 1
        if not is_decoding(replica, r):
            running[prefills] = r
            prefills += 1
            continue
        while state.free_blocks < 1 and first < last:
            last -= 1
            preempt(replica, running[last])
        if state.free_blocks < 1:
            preempt(replica, r)
        else:
            grow_for_decode(replica, r)
            place(replica, r, 1)
            used += 1

    # Running prefills; those that get nothing stay running.
    skipped = 0
    for i in range(prefills):
        r = running[i]
        tokens = min(prefill_left(replica, r), state.max_batch_tokens - used)
        if tokens > 0:
            place(replica, r, tokens)
            used += tokens
        else:
            running[skipped] = r
            skipped += 1
    for i in range(first, last):
        running[skipped] = running[i]
        skipped += 1
    keep_running(replica, 0, skipped)
    sort_running_by_arrival(replica)

    # New requests.
    while state.num_waiting > 0:
        if state.num_holding == state.max_running or state.batch_size == state.max_in_batch:
            break
        r = state.first_waiting
        tokens = min(prefill_left(replica, r), state.max_batch_tokens - used)
        if tokens <= 0 or not has_room_for(replica, r):
            break
        pop_waiting(replica)
        hold(replica, r, blocks_for(replica, replica.requests[r].prefill_tokens))
        place(replica, r, tokens)
        used += tokens
    state.steppable = 1
