"""What a router can predict without knowing the future: output lengths, and the time that work will take.

Only what is known at arrival enters: how far requests have come, and `fleet.predicted_output`. Where that is empty,
every output is expected to go on for the mean found so far, however long it is already (true output lengths, and
`decode_left`, are never read).
"""

from typing import NamedTuple

from gnomon.core.arrays import Ints
from gnomon.jit import inlined
from gnomon.serving.engine.context import Fleet
from gnomon.serving.engine.decode_group import ID, processed_now
from gnomon.serving.engine.state import FINISHED, NONE, Cluster, replica_view, ring_position
from gnomon.serving.routers.known import free_blocks, kv_used_each, prefill_room

PRIOR_OUTPUT, PRIOR_WEIGHT = 200.0, 10.0
"""Output tokens expected before any was seen, and how many finished requests that belief is worth."""


class Prediction(NamedTuple):
    """What sending the request to one replica would mean, in seconds."""

    step: float  # Decode step without it.
    joined_step: float
    first_token: float
    finish: float
    stall: float
    crowding: float
    stalls_to_come: float
    alone_first_token: float
    alone_step: float


ADDED_WEIGHTS = {"first_token": 2.5, "stall": 0.5, "crowding": 1.0, "stalls_to_come": 2.0}
"""Weights of `added_s`, beside 1 for the time to finish. Chosen on seeds 100-104 of the scenarios of `gnomon route
compare`, which measures on others. Results change little between half and twice each of them; more weight on the first
token trades mean latency for its tail."""


@inlined
def mean_output(fleet: Fleet) -> float:
    """Output tokens per finished request so far. Tokens of unfinished ones count, so that the short ones, which finish
    first, do not pull the mean down (for exponential lengths it is the maximum likelihood estimate)."""
    produced, finished = PRIOR_OUTPUT * PRIOR_WEIGHT, PRIOR_WEIGHT
    replicas = fleet.cluster.replicas
    for r in range(replicas.size):
        produced += replicas[r].num_produced
        finished += replicas[r].num_finished
    return produced / finished


@inlined
def expected_output(fleet: Fleet, request_id: int, mean: float) -> float:
    """Output tokens predicted for a request; `mean` where nothing is predicted."""
    return fleet.predicted_output[request_id] if fleet.predicted_output.size > 0 else mean


@inlined
def under_way(cluster: Cluster, r: int, ids: Ints) -> int:
    """Write the requests of replica `r` that it runs into `ids`; returns how many. The token too many of one that has
    ended (`features.overlap`) is not one."""
    state, count = cluster.replicas[r], 0
    for i in range(state.num_grouped):
        ids[count] = cluster.grouped[r, i, ID]
        count += 1
    for k in range(state.num_in_flight):
        position = ring_position(cluster, r, k)
        flight = cluster.flights[r, position]
        for i in range(flight.num_grouped, flight.num_requests):
            member = cluster.flight_requests[r, position, i]
            if cluster.requests[member].status != FINISHED:
                ids[count] = member
                count += 1
    for i in range(state.num_running):
        ids[count] = cluster.running[r, i]
        count += 1
    assert count + state.num_waiting + state.num_deferred == state.num_outstanding
    return count


@inlined
def next_queued(cluster: Cluster, r: int, place: int, before: int) -> int:
    """Who stands at a place among the requests of replica `r`, behind those under way: who waits, then those that it
    has yet to hear of. `before` stands at the place before."""
    state = cluster.replicas[r]
    if place == state.num_outstanding - state.num_deferred:
        return int(state.first_deferred)
    if place == state.num_outstanding - state.num_deferred - state.num_waiting:
        return int(state.first_waiting)
    return int(cluster.requests[before].next_waiting)


@inlined
def outstanding(cluster: Cluster, r: int, ids: Ints) -> int:
    """Write all requests of replica `r` into `ids`, in the order in which they are served; returns how many."""
    count = under_way(cluster, r, ids)
    for place in range(count, cluster.replicas[r].num_outstanding):
        ids[place] = next_queued(cluster, r, place, ids[place - 1] if place > 0 else NONE)
    return int(cluster.replicas[r].num_outstanding)


@inlined
def output_left(fleet: Fleet, r: int, request_id: int, mean: float) -> float:
    """Output tokens that a request of replica `r` is expected to produce yet, at least one."""
    if fleet.predicted_output.size == 0:
        return mean
    request = fleet.cluster.requests[request_id]
    so_far = max(processed_now(replica_view(fleet.cluster, r), request_id), request.prefill_tokens)
    return max(1.0, fleet.predicted_output[request_id] - (so_far - request.prompt_tokens))


@inlined
def rounds_of(fleet: Fleet, r: int, prompt: int, output: float) -> float:
    """After how many fillings of a replica one more request would be done: those beyond the batch cap or the memory
    wait for others to finish first."""
    state = fleet.cluster.replicas[r]
    rounds = (state.num_outstanding + 1) / min(state.num_outstanding + 1, state.max_running)
    need, free = state.waiting_tokens + prompt + output, free_blocks(fleet, r) * state.block_size
    if need > free:
        rounds += (need - free) / max(1.0, float(state.num_blocks * state.block_size))
    return rounds


@inlined
def chunk_of(fleet: Fleet, r: int, prefill: float) -> int:
    """Prefill tokens of one iteration of replica `r` while that much is to be done: what its decodes leave."""
    state = fleet.cluster.replicas[r]
    room = prefill_room(state, min(state.num_holding, prefill_room(state, 0) // 2))
    return max(1, min(int(prefill), room, state.max_chunk_tokens))


@inlined
def kv_each(fleet: Fleet, r: int) -> float:
    """Mean KV tokens of the requests that hold blocks on replica `r`."""
    count = fleet.cluster.replicas[r].num_holding
    return kv_used_each(fleet, r, count) if count > 0 else 0.0


@inlined
def added_s(times: Prediction, first_token: float, stall: float, crowding: float, stalls_to_come: float) -> float:
    """The latency that sending the request to a replica adds in all: its own, what it costs those who decode there, and
    what others will cost it, with these weights."""
    own = times.finish + first_token * times.first_token
    return own + stall * times.stall + crowding * times.crowding + stalls_to_come * times.stalls_to_come
