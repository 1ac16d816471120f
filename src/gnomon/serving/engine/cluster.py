"""Running a cluster: route arrivals to replicas, let them run, drain them."""

from gnomon.jit import borrow, feature, inlined, jit, noinline
from gnomon.serving.engine.arrivals import (
    advance_replicas,
    load_prefix,
    send_to_replica,
    serve_instant,
    take_adapter_slot,
)
from gnomon.serving.engine.calendar import (
    A_REPLICA,
    ADAPTER_READY,
    AN_EVENT,
    BLOCKS_FREED,
    CACHE_EXPIRES,
    FOR_THE_CALLER,
    FRONT_END_PASSED,
    KV_LANDS,
    KV_LET_GO,
    KV_LOADED,
    KV_LOST,
    KV_READY,
    LINKS_CHANGE,
    NEVER,
    NOTHING,
    REQUEST_ARRIVES,
    REQUEST_SENT,
    Calendar,
    next_event_s,
    schedule,
    take_next,
)
from gnomon.serving.engine.completions import handle_move, land_ready, take_reports, wake
from gnomon.serving.engine.context import Engine, Environment, Fleet
from gnomon.serving.engine.dispatch import choose, passes_admission
from gnomon.serving.engine.log import Log
from gnomon.serving.engine.loop import enqueue
from gnomon.serving.engine.state import BUDGET, LOOKS, NEIGHBOURS, NONE, NOT_ARRIVED, SHED, Cluster
from gnomon.serving.features.dependent_calls import enter_front_end, give_up_dependents, send_next
from gnomon.serving.features.front_end import is_before_router, is_per_replica
from gnomon.serving.features.tiers import end_load, latency_s
from gnomon.serving.features.tool_cache import expire, let_go_held, note_arrival
from gnomon.serving.features.transfers import LATENCY_S, end_transfer, switch_links

ADVANCE = -1


@jit
def advance_all(fleet: Fleet, engine: Engine, log: Log, until: float) -> None:
    """Bring every replica up to `until`."""
    advance_replicas(borrow(fleet), engine, borrow(log), until)


@inlined
def _next_to_report(cluster: Cluster, calendar: Calendar, until: float) -> int:
    """The group whose batch ends first, before `until`, among those whose ends concern others; or NONE. Only where one
    may end so soon, all neighbours are looked at."""
    group, end_s = NONE, until
    for place in range(cluster.soonest_s.size):
        if cluster.soonest_s[place] >= end_s:
            continue
        first, soonest = NONE, NEVER
        for r in range(place * NEIGHBOURS, min((place + 1) * NEIGHBOURS, cluster.next_end_s.size)):
            if cluster.next_end_s[r] < soonest and calendar.reports[r] != 0:
                first, soonest = r, cluster.next_end_s[r]
        cluster.soonest_s[place] = soonest
        if soonest < end_s:
            group, end_s = first, soonest
    return group


@feature
def _let_go_for(cluster: Cluster, env: Environment, call: int, now: float) -> None:
    """The scheduler has got a call of an agent: what was held for it alone is held no longer."""
    first, who = env.dependent_first, env.dependents
    note_arrival(cluster, env.tool_cache, env.calendar, first, who, call, now)


@noinline
def _handle_event(fleet: Fleet, engine: Engine, env: Environment, log: Log) -> None:
    """Bring the replica that the calendar's next event concerns up to that moment, and let it happen; or stop so that
    the caller does."""
    cluster, book = fleet.cluster, env.calendar.book[0]
    event = env.calendar.events[0]
    now, kind, subject = event.time_s, event.kind, event.subject
    if kind == REQUEST_SENT:  # No replica is concerned yet.
        take_next(env.calendar)
        enter_front_end(cluster, env, subject, now)
        return
    if kind >= FOR_THE_CALLER or (kind == REQUEST_ARRIVES and book.sees_state != 0):
        cluster.control[BUDGET] -= cluster.replicas.size // LOOKS
        advance_replicas(fleet, engine, log, now)
        if cluster.control[BUDGET] <= 0:
            return
    if kind == REQUEST_ARRIVES and not _has_replica(fleet, engine, env, subject, now):
        return
    r = _where(cluster, kind, subject)
    if r != NONE:
        engine.proceed(cluster, fleet.tables, engine.policies, log, cluster.replicas[r].group_first, NEVER, now)
        if cluster.control[BUDGET] <= 0:
            return
    take_next(env.calendar)
    if kind >= FOR_THE_CALLER:
        book.wants = AN_EVENT
    elif kind == LINKS_CHANGE:
        switch_links(env.transfers, book, subject, now)
    elif kind in (KV_LANDS, KV_READY, KV_LOST):
        handle_move(fleet, engine, env, log, kind, subject)
    elif kind == CACHE_EXPIRES:
        expire(cluster, env.tool_cache, subject, now)
    elif kind != KV_LET_GO or env.tool_cache.held[subject] > 0:  # It may have been let go already.
        _happen(fleet, env, kind, subject, r, now)
        wake(fleet, engine, env, log, cluster.replicas[r].group_first, now)


@inlined
def _where(cluster: Cluster, kind: int, subject: int) -> int:
    """The replica at which an event happens, or NONE."""
    if kind == LINKS_CHANGE or kind >= FOR_THE_CALLER:
        return NONE
    if kind == BLOCKS_FREED:
        return subject
    request = cluster.requests[subject]
    return request.decode_replica if kind in (KV_LANDS, KV_READY, KV_LOST) else request.replica


@noinline
def _has_replica(fleet: Fleet, engine: Engine, env: Environment, request_id: int, now: float) -> bool:
    """Whether an arriving request has a replica, chosen now if need be. It has none where it is not let in, and where a
    router in plain Python has to be asked first."""
    request, book = fleet.cluster.requests[request_id], env.calendar.book[0]
    if request.replica != NONE:
        return True
    if not passes_admission(fleet, engine, request_id, now):
        take_next(env.calendar)
        if request.status == SHED:
            send_next(fleet.cluster, env, now)
            give_up_dependents(fleet.cluster, env, request_id, now)
        return False
    if book.is_plain != 0:
        book.wants, book.subject = A_REPLICA, request_id
        return False
    request.replica = choose(fleet, engine, env, request_id)
    return True


@noinline
def _happen(fleet: Fleet, env: Environment, kind: int, subject: int, r: int, now: float) -> None:
    """Let an event happen at replica `r`, which is woken afterwards."""
    cluster = fleet.cluster
    if kind == BLOCKS_FREED:
        land_ready(cluster, env, r, now)
    elif kind == KV_LOADED:
        end_load(cluster, env.tiers, subject, now)
        enqueue(cluster, r, subject, now)
    elif kind == ADAPTER_READY:
        cluster.replicas[r].num_coming -= 1
        load_prefix(fleet, env, r, subject, now)
    elif kind == FRONT_END_PASSED:
        request = cluster.requests[subject]
        cluster.replicas[r].num_coming -= 1
        if request.num_tries <= 1:  # Where it has come before (lost there, or parked), that is part of its detour.
            request.front_s = now - request.arrival_s
            request.arrival_s = now
        take_adapter_slot(fleet, env, r, subject, now)
        _let_go_for(cluster, env, subject, now)
    elif kind == KV_LET_GO:
        let_go_held(cluster, env.tool_cache, subject)
        land_ready(cluster, env, r, now)
    elif kind == REQUEST_ARRIVES:
        send_to_replica(fleet, env, r, subject, now)
        if not is_per_replica(env.front):
            _let_go_for(cluster, env, subject, now)


@noinline
def _handle_arrivals(fleet: Fleet, engine: Engine, env: Environment, log: Log) -> None:
    """Serve the next instant of an open workload, or stop so that the caller names a replica."""
    cluster, book = fleet.cluster, env.calendar.book[0]
    first = book.num_sent
    after = serve_instant(fleet, engine, env, log, first)
    if after == first and cluster.control[BUDGET] > 0:
        while cluster.requests[first].status != NOT_ARRIVED:
            first += 1
        book.wants, book.subject = A_REPLICA, first
    if book.num_reporting > 0:
        for request_id in range(book.num_sent, after):
            request = cluster.requests[request_id]
            if request.replica == NONE:
                continue
            take_reports(cluster, env, cluster.replicas[request.replica].group_first, request.arrival_s)
    book.num_sent = after


@noinline
def _serve(fleet: Fleet, engine: Engine, env: Environment, log: Log, last: int) -> None:
    cluster, calendar = fleet.cluster, env.calendar
    book = calendar.book[0]
    book.wants = NOTHING
    while cluster.control[BUDGET] > 0 and book.wants == NOTHING and book.num_answered < book.pause_after:
        cluster.control[BUDGET] -= 1  # Whatever happens, and how often, the guard has its turn.
        if book.num_sent >= last and last < cluster.requests.size:
            return
        arrival_s = cluster.requests[book.num_sent].arrival_s if book.num_sent < book.end_open else NEVER
        event_s = next_event_s(calendar)
        now = min(arrival_s, event_s, book.next_drain_s)
        if book.num_reporting > 0:
            group = _next_to_report(cluster, calendar, min(now, book.stop_s))
            if group != NONE:
                wake(fleet, engine, env, log, group, cluster.next_end_s[group])
                continue
        if now >= book.stop_s:
            return
        if book.next_drain_s <= now:
            request_id = end_transfer(env.transfers, book)
            link = env.transfers.flows[request_id].rank
            if link < cluster.replicas.size:
                schedule(calendar, now + env.transfers.settings[LATENCY_S], KV_LANDS, request_id)
            else:
                schedule(calendar, now + latency_s(cluster, env.tiers, link), KV_LOADED, request_id)
        elif event_s <= arrival_s:
            _handle_event(fleet, engine, env, log)
        elif is_before_router(env.front):
            enter_front_end(cluster, env, book.num_sent, now)
            book.num_sent += 1
        else:
            _handle_arrivals(fleet, engine, env, log)


@jit
def serve(fleet: Fleet, engine: Engine, env: Environment, log: Log, last: int) -> None:
    """Let happen what happens outside, in the calendar's order, until request `last` has arrived (in a closed loop: was
    sent), or if it is the last one, until nothing is left to happen or `stop_s` is reached. Replicas that report are
    then done, too; the others are brought to their end with `advance_all`.

    A slice whose budget is used up ends before that and is gone on with by another call; so does one that stops because
    `book.wants` something of the caller. With `ADVANCE` for `last` nothing happens outside: every replica is brought up
    to `book.advance_to_s`.
    """
    if last == ADVANCE:
        advance_replicas(borrow(fleet), engine, borrow(log), env.calendar.book[0].advance_to_s)
    else:
        _serve(borrow(fleet), engine, borrow(env), borrow(log), last)
