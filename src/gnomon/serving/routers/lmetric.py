"""Prefill tokens to do times requests in the batch: new work, and how many it holds up."""

import math

from gnomon.serving.routers import Fleet, router


@router("lmetric")
def lmetric(fleet: Fleet, request_id: int) -> int:
    """Smallest product of prefill tokens (this prompt included) and outstanding requests (this one included)."""
    replicas = fleet.cluster.replicas
    prompt = fleet.cluster.requests[request_id].prompt_tokens
    best, least = fleet.candidates[0], math.inf
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        product = float(replicas[r].prefill_left + prompt) * (replicas[r].num_outstanding + 1)
        if product < least:
            best, least = r, product
    return best
