"""The replica where the request adds the least latency in all: its own, and what it costs the others.

A rule with a few weights. `gnomon route tune` finds those that suit a fleet and its load; with the ones below it is the
teacher of the router `learned`.
"""

from __future__ import annotations

from gnomon.core.jit import inner
from gnomon.serving.routers import Fleet, router
from gnomon.serving.routers.observation import (
    ADDED_WEIGHTS,
    MEMORY_PER_REPLICA,
    Foretold,
    added_s,
    arrival_of,
    foretell,
    new_tokens,
    remember_choice,
    remember_pace,
)

OPTIONS = {**ADDED_WEIGHTS, "tail": 0.0}
"""Weights beside that of the request's own time to finish, which is 1: of its time to the first token, of holding up
those who decode there, of slowing them, of the prefills that will hold it up; and of the square of the time to the
first token over the time that the request would take alone, which keeps the slowest first tokens short."""


@inner
def _cost_s(fleet: Fleet, times: Foretold, output: float) -> float:
    weights = fleet.parameters
    alone = times.alone_first_token + output * times.alone_step
    added = added_s(times, weights[0], weights[1], weights[2], weights[3])
    return added + weights[4] * times.first_token * times.first_token / alone


@router("unselfish", options=OPTIONS, memory=MEMORY_PER_REPLICA, foretells=True)
def unselfish(fleet: Fleet, request_id: int) -> int:
    """Least added latency; ties to the lowest id."""
    count, at = fleet.candidates.size, arrival_of(fleet, request_id)
    best, least, mean_step = fleet.candidates[0], 1e300, 0.0
    for i in range(count):
        r = fleet.candidates[i]
        times = foretell(fleet, r, new_tokens(fleet, r, request_id), at)
        mean_step += times.joined_step / count
        cost = _cost_s(fleet, times, at.output)
        if cost < least:
            best, least = r, cost
    remember_pace(fleet, at, mean_step)
    remember_choice(fleet, request_id, best)
    return best
