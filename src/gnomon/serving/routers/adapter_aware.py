"""The replica that has the request's LoRA adapter loaded, unless it is too busy."""

import math

from gnomon.serving.engine.state import NONE
from gnomon.serving.features.adapters import slot_of
from gnomon.serving.routers import Fleet, router


@router("adapter_aware", options={"miss": 16.0})
def adapter_aware(fleet: Fleet, request_id: int) -> int:
    """Fewest requests, where one that lacks the adapter counts `miss` more; ties to the lowest id."""
    cluster, replicas = fleet.cluster, fleet.cluster.replicas
    adapter = cluster.requests[request_id].adapter
    best, least = fleet.candidates[0], math.inf
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        cost = float(replicas[r].num_outstanding + replicas[r].num_coming)
        if adapter != NONE and slot_of(cluster, r, adapter) == NONE:
            cost += fleet.parameters[0]
        if cost < least:
            best, least = r, cost
    return best
