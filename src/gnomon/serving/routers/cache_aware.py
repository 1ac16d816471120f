"""The cache-aware policy of SGLang's router: the longest match while loads are even, else the shortest queue.

Loads are uneven where the most and the fewest requests in flight differ by more than `absolute` and by more than
`relative` times. Where they are even, the replica that holds the longest prefix gets the request if that is more than
`threshold` of the prompt; else the one to which the fewest tokens were sent. SGLang guesses what is held from what it
sent; here it is looked up, as with events.
"""

from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.state import replica_view
from gnomon.serving.routers import Fleet, router


@router("cache_aware", options={"threshold": 0.3, "absolute": 64.0, "relative": 1.5})
def cache_aware(fleet: Fleet, request_id: int) -> int:
    """Memory: tokens sent to each replica. Ties to the lowest id."""
    cluster, replicas, sent = fleet.cluster, fleet.cluster.replicas, fleet.memory
    first = fleet.candidates[0]
    shortest, longest, emptiest, held_by, most = first, first, first, first, -1
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        load = replicas[r].num_outstanding + replicas[r].num_coming
        if load < replicas[shortest].num_outstanding + replicas[shortest].num_coming:
            shortest = r
        if load > replicas[longest].num_outstanding + replicas[longest].num_coming:
            longest = r
        if sent[r] < sent[emptiest]:
            emptiest = r
        held = prefix_cache.count_hits(replica_view(cluster, r), request_id) * replicas[r].block_size
        if held > most:
            held_by, most = r, held
    fewest = replicas[shortest].num_outstanding + replicas[shortest].num_coming
    highest = replicas[longest].num_outstanding + replicas[longest].num_coming
    prompt = cluster.requests[request_id].prompt_tokens
    chosen = held_by if most > fleet.parameters[0] * prompt else emptiest
    if highest - fewest > fleet.parameters[1] and highest > fleet.parameters[2] * fewest:
        chosen = shortest
    sent[chosen] += prompt
    return chosen
