"""Short prompts stay where they decode: moving their KV is not worth it."""

from gnomon.serving.deciders import Fleet, decider


@decider("long_prompts", options={"tokens": 512.0})
def long_prompts(fleet: Fleet, request_id: int) -> bool:
    """Prompts of at least `tokens` tokens go to a prefill replica."""
    return bool(fleet.cluster.requests[request_id].prompt_tokens >= fleet.parameters[0])
