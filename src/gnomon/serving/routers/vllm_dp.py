"""vLLM's own balancer between data-parallel ranks, which looks at counts up to a tenth of a second old.

After vLLM's `DPLBAsyncMPClient` (0.19): score = 4 x waiting + running as last reported; the chosen rank's waiting count
goes up by one at once, so that a burst between two reports spreads out.
"""

from gnomon.serving.routers import Fleet, router


@router("vllm_dp", options={"report_interval_s": 0.1}, memory=2)
def vllm_dp(fleet: Fleet, request_id: int) -> int:
    """Smallest score; ties to the lowest id. Memory: the time of the last report, then (waiting, running) of each."""
    replicas, seen = fleet.cluster.replicas, fleet.memory
    now = fleet.cluster.requests[request_id].arrival_s
    count = replicas.size
    if now >= seen[2 * count]:
        seen[2 * count] = now + fleet.parameters[0]
        for r in range(count):
            seen[2 * r] = replicas[r].num_waiting
            seen[2 * r + 1] = replicas[r].num_outstanding - replicas[r].num_waiting
    best = fleet.candidates[0]
    for i in range(1, fleet.candidates.size):
        r = fleet.candidates[i]
        if 4.0 * seen[2 * r] + seen[2 * r + 1] < 4.0 * seen[2 * best] + seen[2 * best + 1]:
            best = r
    seen[2 * best] += 1.0
    return best
