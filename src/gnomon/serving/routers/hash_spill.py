"""Consistent hashing of sessions with bounded loads: a session's own replica, the next in its order while that is full.

Full is who has `bound` times the mean of all requests in flight (Mirrokni et al., "Consistent hashing with bounded
loads", 2018; HAProxy's `hash-balance-factor`). A session's order of replicas is by highest random weight, so that a
replica that goes moves only its own sessions. Requests without a session go where the fewest are.
"""

import math

from gnomon.serving.routers import Fleet, router

_PRIME = 2_147_483_647


@router("hash_spill", options={"bound": 1.25})
def hash_spill(fleet: Fleet, request_id: int) -> int:
    """The highest weight among the replicas that are not full."""
    replicas, session = fleet.cluster.replicas, int(fleet.cluster.requests[request_id].session)
    count, total = fleet.candidates.size, 0
    for i in range(count):
        total += replicas[fleet.candidates[i]].num_outstanding + replicas[fleet.candidates[i]].num_coming
    limit = math.ceil(fleet.parameters[0] * (total + 1) / count)
    best, highest = fleet.candidates[0], -math.inf
    for i in range(count):
        r = fleet.candidates[i]
        has = replicas[r].num_outstanding + replicas[r].num_coming
        weight = -float(has)
        if session >= 0:
            mixed = (
                session * 2_654_435_761 + (int(r) + 1) * 2_246_822_519
            ) % _PRIME  # Below 2**63, as in plain Python.
            for factor in (48_271, 69_621):
                mixed = (mixed ^ (mixed >> 15)) * factor % _PRIME
            weight = float(mixed)
        if has < limit and weight > highest:
            best, highest = r, weight
    return best
