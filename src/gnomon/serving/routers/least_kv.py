"""The replica whose KV cache is least used."""

import math

from gnomon.serving.routers import Fleet, router
from gnomon.serving.routers.known import free_blocks, look


@router("least_kv", observes=True)
def least_kv(fleet: Fleet, request_id: int) -> int:
    """Smallest share of KV blocks in use, prompts that wait counted as if they were in."""
    replicas = fleet.cluster.replicas
    look(fleet, fleet.cluster.requests[request_id].arrival_s)
    best, least = fleet.candidates[0], math.inf
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        state = replicas[r]
        used = state.num_blocks - free_blocks(fleet, r) + state.waiting_tokens / state.block_size
        if used / state.num_blocks < least:
            best, least = r, used / state.num_blocks
    return best
