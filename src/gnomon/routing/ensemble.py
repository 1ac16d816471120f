"""Many fleets side by side, stepped from arrival to arrival in compiled code.

An ensemble is a `Fleet` whose arrays have one more axis in front: the lane. Each lane is a cluster of its own, and
everything that serves one cluster (the engine, the routers, the observation) serves a lane unchanged.
"""

import math
from typing import NamedTuple

from gnomon.core.arrays import Floats, Ints
from gnomon.jit import borrow, first_rows, inlined, jit, macro
from gnomon.serving.engine.arrivals import advance_replicas, serve_arrivals, wake_groups
from gnomon.serving.engine.calendar import NEVER
from gnomon.serving.engine.context import Engine, Fleet
from gnomon.serving.engine.dispatch import ask
from gnomon.serving.engine.log import Log
from gnomon.serving.engine.loop import enqueue
from gnomon.serving.engine.state import FINISHED, REJECTED, Cluster
from gnomon.serving.routers.observation import observe, remember_choice

# Accounts of the time between two decisions of a lane, and of how it stands then.
IN_SYSTEM_S, UNANSWERED_S, MISSED, ENDED, BACKLOG, IMBALANCE, WAITED_SQUARED = range(7)
NUM_ACCOUNTS = 7


class Ensemble(NamedTuple):
    """Lanes of clusters, each waiting for a decision about its pending request."""

    fleets: Fleet
    """Arrays as in a fleet, with a leading axis of lanes (but for `tables` and `parameters`, which all share). The
    memory is that of the observation."""
    num_replicas: Ints  # [lane]
    pending: Ints  # [lane]: the request to be routed next; all replicas are at its arrival.
    unwoken: Ints  # [lane]: the first request of this instant; receivers are woken when all of the instant are routed.
    active: Ints  # [lane, place]: requests in the system, for the accounts.
    num_active: Ints
    observation: Floats  # [lane, replica, feature], of the pending request; zero where there is no replica.
    accounts: Floats
    """[lane, account]: since the last decision: time-integral of requests in the system, of requests without their
    first token, first tokens that came to miss their objective, requests ended; and now: requests in the system, and
    the coefficient of variation of their number over the replicas; last, since the last decision: how much the squares
    of the times to first tokens have grown."""
    slo_ttft_s: Floats  # [1]
    queue_depth: Ints  # [1]: requests of every queue that are observed.
    troubles: Floats  # [lane, trouble, 4]: of its episode (`domain.Episode`).
    router_memory: Floats  # [lane, number]: memory of a router that is asked for its opinion (a teacher).


@macro
def _lane(fleets: Fleet, lane: int, num_replicas: int, memory: Floats) -> Fleet:
    all_ = fleets.cluster
    cluster = Cluster(
        first_rows(all_.replicas[lane], num_replicas), all_.requests[lane], all_.flights[lane], all_.running[lane],
        all_.grouped[lane], all_.growth[lane], all_.flight_requests[lane], all_.flight_tokens[lane],
        first_rows(all_.next_end_s[lane], num_replicas), all_.soonest_s[lane], all_.stage_free_s[lane],
        all_.stage_start_s[lane], all_.stage_end_s[lane], all_.parameters[lane], all_.policy_memory[lane],
        all_.acceptance[lane],
        all_.block_key[lane], all_.block_users[lane], all_.newer[lane], all_.older[lane], all_.slot_key[lane],
        all_.slot_block[lane], all_.tables[lane], all_.free_rows[lane], all_.loose_blocks[lane],
        all_.prefix_hashes[lane], all_.classes[lane], all_.service[lane], all_.recorded_first[lane],
        all_.recorded_s[lane], all_.control[lane], all_.adapter_slots[lane], all_.breakdown[lane], all_.parts_ns[lane],
        all_.clocks[lane], all_.flight_ns[lane], all_.floor_ns[lane], all_.context_ns[lane],
    )  # fmt: skip
    fleet = Fleet(
        borrow(cluster), fleets.tables, fleets.draws[lane], fleets.parameters, memory[lane],
        fleets.predicted_output[lane], fleets.known[lane], first_rows(fleets.candidates[lane], num_replicas),
        fleets.gate, fleets.gate_memory[lane],
    )  # fmt: skip
    return borrow(fleet)


@inlined
def _account(many: Ensemble, lane: int, start: float, end: float) -> None:
    """Add what happened between two moments to the lane's accounts; requests that ended leave the active ones."""
    requests, active, accounts = many.fleets.cluster.requests[lane], many.active[lane], many.accounts[lane]
    kept, due = 0, many.slo_ttft_s[0]
    for i in range(many.num_active[lane]):
        request = requests[active[i]]
        has_ended = request.status == FINISHED or request.status == REJECTED
        accounts[IN_SYSTEM_S] += (request.finished_s if has_ended else end) - start
        answered = request.first_token_s if request.first_token_s >= 0.0 else end
        if answered > start and request.status != REJECTED:
            accounts[UNANSWERED_S] += answered - start
            accounts[WAITED_SQUARED] += (answered - request.arrival_s) ** 2 - (start - request.arrival_s) ** 2
            if start - request.arrival_s <= due < answered - request.arrival_s:
                accounts[MISSED] += 1.0
        if has_ended:
            accounts[ENDED] += 1.0
        else:
            active[kept] = active[i]
            kept += 1
    many.num_active[lane] = kept


@inlined
def _take_stock(many: Ensemble, lane: int, fleet: Fleet) -> None:
    """How many requests there are, and how unevenly they are spread."""
    replicas, total, squares = fleet.cluster.replicas, 0.0, 0.0
    for r in range(replicas.size):
        total += replicas[r].num_outstanding
        squares += float(replicas[r].num_outstanding) * replicas[r].num_outstanding
    mean = total / replicas.size
    many.accounts[lane, BACKLOG] = total
    many.accounts[lane, IMBALANCE] = math.sqrt(max(0.0, squares / replicas.size - mean * mean)) / max(1.0, mean)


@inlined
def _step(many: Ensemble, engine: Engine, log: Log, lane: int, chosen: int) -> None:
    """Send the pending request to a replica, go on to the next arrival, and observe it."""
    fleet = _lane(many.fleets, lane, many.num_replicas[lane], many.fleets.memory)
    cluster, pending = fleet.cluster, many.pending[lane]
    now, then = cluster.requests[pending].arrival_s, cluster.requests[pending + 1].arrival_s
    for i in range(many.troubles.shape[1]):
        one = many.troubles[lane, i]
        if one[3] > 0.0:
            cluster.replicas[int(one[2])].slowdown = one[3] if one[0] <= now < one[1] else 0.0
    enqueue(cluster, chosen, pending, now)
    remember_choice(fleet, pending, chosen)
    many.active[lane, many.num_active[lane]] = pending
    many.num_active[lane] += 1
    for i in range(many.accounts.shape[1]):
        many.accounts[lane, i] = 0.0
    if then > now:
        wake_groups(fleet, engine, log, many.unwoken[lane], pending + 1, now)
        many.unwoken[lane] = pending + 1
        advance_replicas(fleet, engine, log, then)
        _account(many, lane, now, then)
    _take_stock(many, lane, fleet)
    many.pending[lane] = pending + 1
    observe(fleet, pending + 1, many.observation[lane], many.queue_depth[0])


@inlined
def _opinion(many: Ensemble, engine: Engine, lane: int) -> int:
    """What the engine's router would do with the pending request."""
    fleet = _lane(many.fleets, lane, many.num_replicas[lane], many.router_memory)
    return ask(fleet, engine.router, many.pending[lane])


@jit
def step_all(many: Ensemble, engine: Engine, log: Log, chosen: Ints) -> None:
    """Route the pending request of every lane as chosen."""
    lent, lent_log = borrow(many), borrow(log)
    for lane in range(chosen.size):
        _step(lent, engine, lent_log, lane, chosen[lane])


@jit
def opinions(many: Ensemble, engine: Engine, chosen: Ints) -> None:
    """Ask the engine's router about the pending request of every lane."""
    lent = borrow(many)
    for lane in range(chosen.size):
        chosen[lane] = _opinion(lent, engine, lane)


@jit
def warm_up(many: Ensemble, engine: Engine, log: Log, lane: int, count: int) -> None:
    """Start a lane: let the engine's router decide about its first `count` requests, then wait for a decision."""
    lent, lent_log = borrow(many), borrow(log)
    fleet = _lane(lent.fleets, lane, lent.num_replicas[lane], lent.fleets.memory)
    observe(fleet, 0, lent.observation[lane], lent.queue_depth[0])
    for _ in range(count):
        _step(lent, engine, lent_log, lane, _opinion(lent, engine, lane))


@jit
def roll_out(
    copies: Ensemble, engine: Engine, log: Log, last: int, observes: bool, ttft_weight: float, costs: Floats
) -> None:
    """What each choice for a pending request leads to: the total latency (and `ttft_weight` x the time to first tokens)
    of all requests before `last`, once the engine's router has routed those that follow and everything is done.

    Lane r of `copies` is a copy of the lane in question in which replica r is tried; the copies are used up. The memory
    of a router that `observes` must be told of the choice.
    """
    lent, lent_log = borrow(copies), borrow(log)
    for r in range(costs.size):
        fleet = _lane(lent.fleets, r, costs.size, lent.router_memory)
        requests, pending, num_active = fleet.cluster.requests, lent.pending[r], lent.num_active[r]
        enqueue(fleet.cluster, r, pending, requests[pending].arrival_s)
        if observes:
            remember_choice(fleet, pending, r)
        wake_groups(fleet, engine, lent_log, lent.unwoken[r], pending + 1, requests[pending].arrival_s)
        serve_arrivals(fleet, engine, lent_log, pending + 1, last)
        advance_replicas(fleet, engine, lent_log, NEVER)
        total = 0.0
        for i in range(num_active + last - pending):
            request = requests[lent.active[r, i] if i < num_active else pending + i - num_active]
            total += request.finished_s - request.arrival_s
            total += ttft_weight * max(0.0, request.first_token_s - request.arrival_s)
        costs[r] = total


OF_CACHES = frozenset(
    {"block_key", "block_users", "newer", "older", "slot_key", "slot_block", "free_rows", "loose_blocks"}
)
"""Arrays of a cluster that only prefix caches use (beside `tables` and `prefix_hashes`)."""


def copy_lane(many: Ensemble, lane: int, copies: Ensemble, into: slice, first: int, last: int) -> None:
    """Copy a lane into lanes of another (or the same) ensemble of the same shape, with its requests `first` to `last`;
    prefix caches, by far the largest part, only where it has some."""
    cluster = many.fleets.cluster
    has_cache = bool(cluster.replicas[lane, 0].prefix_cache)
    for name, target, source in zip(Cluster._fields, copies.fleets.cluster, cluster, strict=True):
        if name == "requests":
            target[into, first:last] = source[lane, first:last]
        elif name == "tables":
            rows = int(cluster.replicas[lane, 0].max_running) if has_cache else 0
            target[into, :, :, :1] = source[lane, :, :, :1]  # Whose row it is: looked at in all rows.
            target[into, :, :rows] = source[lane, :, :rows]
        elif name == "prefix_hashes":
            if has_cache:
                target[into] = source[lane]
        elif has_cache or name not in OF_CACHES:
            target[into] = source[lane]
    for name in ("draws", "memory", "predicted_output", "known"):
        getattr(copies.fleets, name)[into] = getattr(many.fleets, name)[lane]
    for name in (
        "num_replicas", "pending", "unwoken", "num_active", "active", "observation", "accounts", "troubles",
        "router_memory",
    ):  # fmt: skip
        getattr(copies, name)[into] = getattr(many, name)[lane]
