"""Turn requests away while too many wait: a queue of bounded length."""

from gnomon.jit import inlined
from gnomon.serving.admission import Fleet, admission


@inlined
def waiting_per_replica(fleet: Fleet) -> float:
    """Requests that wait, over the replicas that take requests; nothing waits where there is none."""
    waiting = 0
    for i in range(fleet.candidates.size):
        waiting += fleet.cluster.replicas[fleet.candidates[i]].num_waiting
    return waiting / max(1, fleet.candidates.size)


@admission("queue_limit", options={"max_waiting": 50.0})
def queue_limit(fleet: Fleet, request_id: int) -> bool:
    """Let in while fewer than `max_waiting` requests wait per replica."""
    return waiting_per_replica(fleet) < fleet.gate[0]
