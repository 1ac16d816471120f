"""The replica with the fewest requests, waiting and running."""

from gnomon.serving.routers import Fleet, router


@router("least_outstanding")
def least_outstanding(fleet: Fleet, request_id: int) -> int:
    """Fewest requests that have arrived, or are on their way from another pool, and not ended; ties to the lowest
    id."""
    replicas = fleet.cluster.replicas
    best = fleet.candidates[0]
    for i in range(1, fleet.candidates.size):
        r = fleet.candidates[i]
        has = replicas[r].num_outstanding + replicas[r].num_coming
        if has < replicas[best].num_outstanding + replicas[best].num_coming:
            best = r
    return best
