"""Fill one replica, then the next: keeps caches warm and the others free."""

from gnomon.serving.routers import Fleet, router
from gnomon.serving.routers.known import free_blocks, look


@router("sticky_until_full", options={"outstanding": 8.0, "kv_share": 0.9}, observes=True)
def sticky_until_full(fleet: Fleet, request_id: int) -> int:
    """The replica that got the last request, until it has `outstanding` requests or `kv_share` of its KV blocks in use;
    then the one with the fewest requests, of those that are not full if there is one."""
    look(fleet, fleet.cluster.requests[request_id].arrival_s)
    last = int(fleet.memory[0]) - 1
    best, fewest, best_is_full = -1, 1 << 60, True
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        state = fleet.cluster.replicas[r]
        has = state.num_outstanding + state.num_coming
        used = 1.0 - free_blocks(fleet, r) / max(1, state.num_blocks)
        is_full = has >= fleet.parameters[0] or used >= fleet.parameters[1]
        if r == last and not is_full:
            return r
        if (best_is_full and not is_full) or (best_is_full == is_full and has < fewest):
            best, fewest, best_is_full = r, has, is_full
    fleet.memory[0] = best + 1
    return best
