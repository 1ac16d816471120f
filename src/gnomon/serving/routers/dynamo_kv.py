"""Dynamo's KV router: prompt blocks to compute plus blocks of those who decode.

After NVIDIA Dynamo's default worker selector: cost = `overlap` x blocks of prompts that are yet to be computed there,
this request's with its cached prefix counted as done, plus blocks in use, those of this request and of all that were
sent there. The least cost wins (temperature 0). It keeps the books itself, so they know of a request at once.
"""

import math

from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.state import replica_view
from gnomon.serving.routers import Fleet, router


@router("dynamo_kv", options={"overlap": 1.0})
def dynamo_kv(fleet: Fleet, request_id: int) -> int:
    """Least cost; ties to the lowest id."""
    cluster, replicas = fleet.cluster, fleet.cluster.replicas
    prompt = cluster.requests[request_id].prompt_tokens
    best, least = fleet.candidates[0], math.inf
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        state = replicas[r]
        new = prompt - prefix_cache.count_hits(replica_view(cluster, r), request_id) * state.block_size
        prefill_blocks = (state.prefill_left + new) / state.block_size
        active_blocks = state.num_blocks - state.free_blocks + (state.waiting_tokens + new) / state.block_size
        cost = fleet.parameters[0] * prefill_blocks + active_blocks
        if cost < least:
            best, least = r, cost
    return best
