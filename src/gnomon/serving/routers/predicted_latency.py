"""The replica on which the request would finish first, by a formula over the times of iterations.

Knows how fast each replica is, how much prefill is queued there and how many requests decode. Output lengths are those
of `--router.lengths`, or the mean of what was produced so far.
"""

import math

from gnomon.jit import inlined
from gnomon.serving.routers import Fleet, router
from gnomon.serving.routers.known import iteration_s, look
from gnomon.serving.routers.prediction import chunk_of, expected_output, kv_each, mean_output, rounds_of


@inlined
def predicted_s(fleet: Fleet, r: int, prompt: int, output: float) -> float:
    """Seconds until a request of this size would be done on replica `r`, if nothing else arrived."""
    state = fleet.cluster.replicas[r]
    kv = kv_each(fleet, r)
    chunk = chunk_of(fleet, r, state.prefill_left + prompt)
    prefill_s = (state.prefill_left + prompt) / chunk * iteration_s(fleet, r, chunk, state.num_holding, kv)
    batch = min(state.num_outstanding + 1, state.max_running)
    per_token_s = iteration_s(fleet, r, 0, batch, max(kv, float(prompt)))
    return prefill_s + rounds_of(fleet, r, prompt, output) * output * per_token_s


@router("predicted_latency", predicts=True, observes=True)
def predicted_latency(fleet: Fleet, request_id: int) -> int:
    """Smallest predicted time to finish; ties to the lowest id."""
    look(fleet, fleet.cluster.requests[request_id].arrival_s)
    prompt = fleet.cluster.requests[request_id].prompt_tokens
    output = expected_output(fleet, request_id, mean_output(fleet))
    best, least = fleet.candidates[0], math.inf
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        seconds = predicted_s(fleet, r, prompt, output)
        if seconds < least:
            best, least = r, seconds
    return best
