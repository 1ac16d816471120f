"""The replica with the fewest requests, waiting and running."""

from __future__ import annotations

from gnomon.serving.routers import Fleet, router


@router("least_outstanding")
def least_outstanding(fleet: Fleet, request_id: int) -> int:
    """Fewest requests that have arrived and not ended; ties to the lowest id."""
    replicas = fleet.cluster.replicas
    best = fleet.candidates[0]
    for i in range(1, fleet.candidates.size):
        r = fleet.candidates[i]
        if replicas[r].num_outstanding < replicas[best].num_outstanding:
            best = r
    return best
