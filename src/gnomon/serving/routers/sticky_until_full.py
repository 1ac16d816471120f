"""Fill one replica, then the next: keeps caches warm and the others free."""

from __future__ import annotations

from gnomon.serving.routers import Fleet, router


@router("sticky_until_full", options={"outstanding": 8.0, "kv_share": 0.9})
def sticky_until_full(fleet: Fleet, request_id: int) -> int:
    """The replica that got the last request, until it has `outstanding` requests or `kv_share` of its KV blocks in use;
    then the one with the fewest requests."""
    last = int(fleet.memory[0]) - 1
    best, fewest = -1, 1 << 60
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        state = fleet.cluster.replicas[r]
        has = state.num_outstanding + state.num_coming
        used = 1.0 - state.free_blocks / max(1, state.num_blocks)
        if r == last and has < fleet.parameters[0] and used < fleet.parameters[1]:
            return r
        if has < fewest:
            best, fewest = r, has
    fleet.memory[0] = best + 1
    return best
