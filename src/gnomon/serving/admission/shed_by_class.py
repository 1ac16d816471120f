"""Under overload the least urgent classes are turned away first."""

from gnomon.serving.admission import Fleet, admission
from gnomon.serving.admission.queue_limit import waiting_per_replica
from gnomon.serving.engine.state import PRIORITY


@admission("shed_by_class", options={"first_waiting": 5.0, "last_waiting": 50.0})
def shed_by_class(fleet: Fleet, request_id: int) -> bool:
    """The lowest priority is let in while fewer than `first_waiting` requests wait per replica, the highest while fewer
    than `last_waiting` do, those between by their priority."""
    classes = fleet.cluster.classes
    lowest, highest = classes[0, PRIORITY], classes[0, PRIORITY]
    for c in range(1, classes.shape[0]):
        lowest, highest = min(lowest, classes[c, PRIORITY]), max(highest, classes[c, PRIORITY])
    mine = classes[fleet.cluster.requests[request_id].user_class, PRIORITY]
    rank = (mine - lowest) / (highest - lowest) if highest > lowest else 1.0
    return waiting_per_replica(fleet) < fleet.gate[0] + rank * (fleet.gate[1] - fleet.gate[0])
