"""Vidur's "least outstanding requests", which counts waiting ones only."""

from gnomon.serving.routers import Fleet, router


@router("vidur_lor")
def vidur_lor(fleet: Fleet, request_id: int) -> int:
    """Fewest waiting requests; ties to the lowest id."""
    replicas = fleet.cluster.replicas
    best = fleet.candidates[0]
    for i in range(1, fleet.candidates.size):
        r = fleet.candidates[i]
        if replicas[r].num_waiting < replicas[best].num_waiting:
            best = r
    return best
