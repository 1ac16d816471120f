"""A router of one's own in plain Python: the replica that has answered fastest lately.

    gnomon simulate --num-replicas 4 --router fastest_replica --router.file examples/own/fastest_replica.py

Plain Python may use any object; it is asked once per arrival. Without `compiled=False` the same function would be
compiled, and then it may only use numbers and arrays.
"""

from __future__ import annotations

from gnomon.extend import Fleet, router


@router("fastest_replica", compiled=False)
def fastest_replica(fleet: Fleet, request_id: int) -> int:
    """Least work left per unit of speed: outstanding requests, weighted by the time an iteration takes there."""
    replicas = fleet.cluster.replicas
    loads = {}
    for r in range(len(replicas)):
        seconds_per_iteration = replicas.busy_s[r] / max(1, replicas.num_iterations[r])
        loads[r] = (replicas.num_outstanding[r] + 1) * max(seconds_per_iteration, 1e-3)
    return min(loads, key=lambda r: loads[r])
