"""A rate limit for each class: a bucket of tokens that fills at a steady rate."""

from gnomon.serving.admission import Fleet, admission
from gnomon.serving.engine.state import WEIGHT

_LEVEL, _FILLED_S = range(2)  # columns of `gate_memory`


@admission("token_bucket", options={"tokens_per_s": 10_000.0, "burst_s": 10.0}, sees_state=False)
def token_bucket(fleet: Fleet, request_id: int) -> bool:
    """Let in where the class's bucket holds the request's prompt and output tokens, and take them out.

    `tokens_per_s` is shared out by the classes' weights; a bucket holds at most `burst_s` seconds of its share, and is
    full at the start.
    """
    request, classes, memory = fleet.cluster.requests[request_id], fleet.cluster.classes, fleet.gate_memory
    c, weights = request.user_class, 0.0
    for i in range(classes.shape[0]):
        weights += classes[i, WEIGHT]
    rate = fleet.gate[0] * classes[c, WEIGHT] / weights
    most = rate * fleet.gate[1]
    # The memory starts at zero: it holds what is missing from a full bucket.
    missing = max(0.0, memory[c, _LEVEL] - rate * (request.arrival_s - memory[c, _FILLED_S]))
    memory[c, _FILLED_S] = request.arrival_s
    fits = request.total_tokens <= most - missing
    memory[c, _LEVEL] = missing + request.total_tokens if fits else missing
    return fits
