"""The replica where the request adds the least latency in all: its own, and what it costs the others.

A rule with a few weights, and with patience: where a request would wait much longer than is usual, it goes where its
first token comes soonest. That keeps the tail short when the fleet is overloaded. `gnomon route tune` finds weights and
patience that suit a fleet and its load; with the ones below the rule is the teacher of the router `learned`.
"""

import math

from gnomon.serving.routers import Fleet, known, observation, router
from gnomon.serving.routers.prediction import ADDED_WEIGHTS, added_s


@router(
    "unselfish", options={**ADDED_WEIGHTS, "patience": observation.PATIENCE}, memory=observation.MEMORY_PER_REPLICA,
    predicts=True, observes=True, cost_feature="added_vs_best",  # The log of the added latency over the least.
)  # fmt: skip
def unselfish(fleet: Fleet, request_id: int) -> int:
    """Least added latency among the replicas where the request does not wait too long, else the soonest first token;
    ties to the lowest id."""
    count, at, weights = fleet.candidates.size, observation.arrival_of(fleet, request_id), fleet.parameters
    limit = observation.longest_wait_s(fleet, weights[4])
    best, least, soonest, sooner = fleet.candidates[0], math.inf, fleet.candidates[0], math.inf
    mean_step, squared_first = 0.0, 0.0
    for i in range(count):
        r = fleet.candidates[i]
        times = observation.predict(fleet, r, known.new_tokens(fleet, r, request_id), at)
        mean_step += times.joined_step / count
        squared_first += times.first_token * times.first_token / count
        cost = added_s(times, weights[0], weights[1], weights[2], weights[3])
        if cost < least and times.first_token - times.alone_first_token <= limit:
            best, least = r, cost
        if times.first_token < sooner:
            soonest, sooner = r, times.first_token
    chosen = best if least < math.inf else soonest
    observation.remember_pace(fleet, at, mean_step, squared_first)
    observation.remember_choice(fleet, request_id, chosen)
    return chosen
