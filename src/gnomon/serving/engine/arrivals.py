"""Requests that arrive: the replicas are brought up to that moment, one is chosen, and it is woken."""

from typing import Any

from gnomon.jit import inlined, noinline
from gnomon.serving.engine.calendar import ADAPTER_READY, FRONT_END_PASSED, NEVER, schedule
from gnomon.serving.engine.context import Engine, Environment, Fleet
from gnomon.serving.engine.dispatch import ask, choose, passes_admission
from gnomon.serving.engine.log import Log
from gnomon.serving.engine.loop import enqueue
from gnomon.serving.engine.state import BUDGET, LOOKS, MOVING, NONE, NOT_ARRIVED, SHED
from gnomon.serving.features import breakdown
from gnomon.serving.features.adapters import take_adapter, wait_in_line
from gnomon.serving.features.dependent_calls import give_up_dependents
from gnomon.serving.features.front_end import is_per_replica, leaves_replica_front_end
from gnomon.serving.features.tiers import begin_load


@noinline
def advance_replicas(fleet: Fleet, engine: Engine, log: Log, until: float) -> None:
    """`advance_all`, for compiled code."""
    for r in range(fleet.cluster.next_end_s.size):
        if fleet.cluster.next_end_s[r] < until:
            engine.proceed(fleet.cluster, fleet.tables, engine.policies, log, r, NEVER, until)


@noinline
def wake_groups(fleet: Fleet, engine: Engine, log: Log, first: int, last: int, now: float) -> None:
    """Wake the groups that received requests `first` to `last` at this instant, each once."""
    replicas, requests = fleet.cluster.replicas, fleet.cluster.requests
    for request_id in range(first, last):
        if requests[request_id].replica == NONE:
            continue
        group = replicas[requests[request_id].replica].group_first
        if replicas[group].woken != last:
            replicas[group].woken = last
            engine.proceed(fleet.cluster, fleet.tables, engine.policies, log, group, now, now)


@noinline
def serve_arrivals(fleet: Fleet, engine: Engine, log: Log, first: int, last: int) -> None:
    """Serve arrivals from `first` to at least `last` with a router that looks at the replicas, and nothing else from
    outside; for compiled code."""
    cluster = fleet.cluster
    while first < last and cluster.control[BUDGET] > 0:
        now, after = cluster.requests[first].arrival_s, _together_until(cluster.requests, first)
        advance_replicas(fleet, engine, log, now)
        for request_id in range(first, after):
            enqueue(cluster, ask(fleet, engine.router, request_id), request_id, now)
        wake_groups(fleet, engine, log, first, after, now)
        first = after


@inlined
def _together_until(requests: Any, first: int) -> int:
    """One past the last request that arrives at the same instant as `first`."""
    last = first + 1
    while last < requests.size and requests[last].arrival_s == requests[first].arrival_s:
        last += 1
    return last


@noinline
def send_to_replica(fleet: Fleet, env: Environment, r: int, request_id: int, now: float) -> None:
    """An arrived request comes to replica `r`: through its front end, where each replica has one."""
    if not is_per_replica(env.front):
        take_adapter_slot(fleet, env, r, request_id, now)
        return
    cluster, request = fleet.cluster, fleet.cluster.requests[request_id]
    request.replica = r
    request.status = MOVING
    cluster.replicas[r].num_coming += 1
    group = cluster.replicas[r].group_first
    passed_s = leaves_replica_front_end(env.front, group, now, request.prompt_tokens)
    schedule(env.calendar, passed_s, FRONT_END_PASSED, request_id)


@noinline
def take_adapter_slot(fleet: Fleet, env: Environment, r: int, request_id: int, now: float) -> None:
    """A request has reached the scheduler of replica `r`: into its queue, once its adapter is loaded."""
    cluster, request = fleet.cluster, fleet.cluster.requests[request_id]
    if breakdown.is_on(cluster):
        breakdown.come(cluster, request_id, now, breakdown.OUTAGE)
    if request.adapter != NONE:
        ready_s = take_adapter(cluster, env.adapters, r, request_id, now)
        if ready_s > now:
            request.replica = r
            request.status = MOVING
            cluster.replicas[r].num_coming += 1
            if ready_s < NEVER:
                schedule(env.calendar, ready_s, ADAPTER_READY, request_id)
            else:
                wait_in_line(cluster, env.adapters, r, request_id)
            return
    load_prefix(fleet, env, r, request_id, now)


@noinline
def load_prefix(fleet: Fleet, env: Environment, r: int, request_id: int, now: float) -> None:
    """Put a request into the queue of replica `r`, or let it wait for KV that another tier holds."""
    cluster, book = fleet.cluster, env.calendar.book[0]
    if breakdown.is_on(cluster):
        breakdown.come(cluster, request_id, now, breakdown.ADAPTER)
    if book.has_tiers != 0 and begin_load(cluster, fleet.tables, env.tiers, env.transfers, book, r, request_id, now):
        cluster.requests[request_id].replica = r
        cluster.requests[request_id].status = MOVING
        return
    enqueue(cluster, r, request_id, now)


@noinline
def serve_instant(fleet: Fleet, engine: Engine, env: Environment, log: Log, first: int) -> int:
    """Serve request `first` and all that arrive at the same instant; returns the one after them, or `first` where it
    has to be gone on with: the slice's budget is used up, or a router in plain Python must choose.

    A router that looks at the replicas gets all of them at the moment of the arrival; for one that does not, only the
    chosen replica is brought up to date.
    """
    cluster, book = fleet.cluster, env.calendar.book[0]
    sees_state = book.sees_state != 0
    now, after = cluster.requests[first].arrival_s, _together_until(cluster.requests, first)
    if sees_state:
        cluster.control[BUDGET] -= cluster.replicas.size // LOOKS  # It takes its time, too.
        advance_replicas(fleet, engine, log, now)
    if cluster.control[BUDGET] <= 0:
        return first
    for request_id in range(first, after):
        request = cluster.requests[request_id]
        if request.status != NOT_ARRIVED:
            continue
        if request.replica == NONE:
            if not passes_admission(fleet, engine, request_id, now):
                if request.status == SHED:
                    give_up_dependents(cluster, env, request_id, now)
                continue
            if book.is_plain != 0:
                return first
            request.replica = choose(fleet, engine, env, request_id)
        if not sees_state:
            group = cluster.replicas[request.replica].group_first
            engine.proceed(cluster, fleet.tables, engine.policies, log, group, NEVER, now)
            if cluster.control[BUDGET] <= 0:
                return first
        send_to_replica(fleet, env, request.replica, request_id, now)
    wake_groups(fleet, engine, log, first, after, now)
    return after
