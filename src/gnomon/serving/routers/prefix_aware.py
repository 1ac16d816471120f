"""The replica that holds most of the prompt in its prefix cache, unless it is too busy."""

import math

from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.state import replica_view
from gnomon.serving.routers import Fleet, router


@router("prefix_aware", options={"load_weight": 1.0})
def prefix_aware(fleet: Fleet, request_id: int) -> int:
    """Least tokens to prefill: the prompt less what is cached there, plus `load_weight` x what is queued there.

    Ties go to fewer outstanding requests, then to the lowest id.
    """
    cluster, replicas = fleet.cluster, fleet.cluster.replicas
    prompt = cluster.requests[request_id].prompt_tokens
    best, least = fleet.candidates[0], math.inf
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        state = replicas[r]
        cached = prefix_cache.count_hits(replica_view(cluster, r), request_id) * state.block_size
        cost = prompt - cached + fleet.parameters[0] * state.prefill_left
        fewer = cost == least and state.num_outstanding < replicas[best].num_outstanding
        if cost < least or fewer:
            best, least = r, cost
    return best
