"""The better of two random replicas.

From: M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001).
"""

from gnomon.serving.routers import Fleet, router


@router("power_of_two", draws=True)
def power_of_two(fleet: Fleet, request_id: int) -> int:
    """Of two different random replicas, the one with fewer requests outstanding or on their way to it."""
    replicas = fleet.cluster.replicas
    count = fleet.candidates.size
    first = int(fleet.draws[request_id, 0] * count)
    a = fleet.candidates[first]
    if count == 1:
        return a
    b = fleet.candidates[(first + 1 + int(fleet.draws[request_id, 1] * (count - 1))) % count]
    fewer = replicas[a].num_outstanding + replicas[a].num_coming <= replicas[b].num_outstanding + replicas[b].num_coming
    return a if fewer else b
