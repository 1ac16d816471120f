"""Prompts that the decode replica's cache mostly holds stay there (as llm-d's prefix-based decider)."""

from gnomon.serving.deciders import Fleet, decider
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.state import replica_view


@decider("uncached_prompts", options={"tokens": 512.0}, sees_state=True)
def uncached_prompts(fleet: Fleet, request_id: int) -> bool:
    """Prompts with at least `tokens` tokens that the decode replica's cache lacks go to a prefill replica."""
    cluster, request = fleet.cluster, fleet.cluster.requests[request_id]
    replica = replica_view(cluster, request.decode_replica)
    cached = prefix_cache.count_hits(replica, request_id) * replica.state.block_size
    return bool(request.prompt_tokens - cached >= fleet.parameters[0])
