"""Prefill elsewhere while prefill replicas keep up; else the decode replica does it (as with Dynamo's queue limit)."""

from gnomon.serving.deciders import Fleet, decider


@decider("idle_prefill", options={"tokens": 512.0, "max_queued_tokens": 32768.0}, sees_state=True)
def idle_prefill(fleet: Fleet, request_id: int) -> bool:
    """Prompts of at least `tokens` tokens go to a prefill replica if one has at most `max_queued_tokens` to compute."""
    if fleet.cluster.requests[request_id].prompt_tokens < fleet.parameters[0]:
        return False
    for i in range(fleet.candidates.size):
        if fleet.cluster.replicas[fleet.candidates[i]].prefill_left <= fleet.parameters[1]:
            return True
    return False
