"""The replica with the least prefill still to do."""

from gnomon.serving.routers import Fleet, router


@router("least_prefill_tokens")
def least_prefill_tokens(fleet: Fleet, request_id: int) -> int:
    """Fewest prompt tokens not computed yet; ties to fewer outstanding requests, then to the lowest id."""
    replicas = fleet.cluster.replicas
    best = fleet.candidates[0]
    for i in range(1, fleet.candidates.size):
        r = fleet.candidates[i]
        a, b = replicas[r], replicas[best]
        if a.prefill_left < b.prefill_left or (
            a.prefill_left == b.prefill_left and a.num_outstanding < b.num_outstanding
        ):
            best = r
    return best
