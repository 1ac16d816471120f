"""Running a cluster: route arrivals to replicas, let them run, drain them."""

from __future__ import annotations

from gnomon.jit import apart, feature, inner, jit
from gnomon.jit.borrowing import borrow
from gnomon.serving.engine.arrivals import admit, advance_replicas, queue, serve_instant, take_in
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
from gnomon.serving.engine.context import Engine, Fleet, Outside
from gnomon.serving.engine.dispatch import choose, takes_in
from gnomon.serving.engine.log import Log
from gnomon.serving.engine.loop import receive
from gnomon.serving.engine.state import BUDGET, NEIGHBOURS, NONE, NOT_ARRIVED, SHED, Cluster
from gnomon.serving.features.dependent_calls import enter_front_end, give_up_followers, send_next
from gnomon.serving.features.front_end import is_before_router, is_per_replica
from gnomon.serving.features.tiers import end_load, latency_s
from gnomon.serving.features.tool_cache import expire, let_go_held, note_arrival
from gnomon.serving.features.transfers import LATENCY_S, end_transfer, switch_links

ADVANCE = -1


@jit
def advance_all(fleet: Fleet, engine: Engine, log: Log, until: float) -> None:
    """Bring every replica up to `until`."""
    advance_replicas(borrow(fleet), engine, borrow(log), until)


@inner
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
def _let_go_for(cluster: Cluster, outside: Outside, call: int, now: float) -> None:
    """The scheduler has got a call of an agent: what was held for it alone is held no longer."""
    first, who = outside.follower_first, outside.followers
    note_arrival(cluster, outside.tool_cache, outside.calendar, first, who, call, now)


@apart
def _handle_event(fleet: Fleet, engine: Engine, outside: Outside, log: Log) -> None:
    """Bring the replica that the calendar's next event concerns up to that moment, and let it happen; or stop so that
    the caller does."""
    cluster, book = fleet.cluster, outside.calendar.book[0]
    event = outside.calendar.events[0]
    now, kind, subject = event.time_s, event.kind, event.subject
    if kind == REQUEST_SENT:  # No replica is concerned yet.
        take_next(outside.calendar)
        enter_front_end(cluster, outside, subject, now)
        return
    if book.sees_state != 0 or kind >= FOR_THE_CALLER:
        cluster.control[BUDGET] -= cluster.replicas.size
        advance_replicas(fleet, engine, log, now)
        if cluster.control[BUDGET] <= 0:
            return
    if kind == REQUEST_ARRIVES and not _has_replica(fleet, engine, outside, subject, now):
        return
    r = _where(cluster, kind, subject)
    if r != NONE:
        engine.proceed(cluster, fleet.tables, engine.policies, log, cluster.replicas[r].group_first, NEVER, now)
        if cluster.control[BUDGET] <= 0:
            return
    take_next(outside.calendar)
    if kind >= FOR_THE_CALLER:
        book.wants = AN_EVENT
    elif kind == LINKS_CHANGE:
        switch_links(outside.transfers, book, subject, now)
    elif kind in (KV_LANDS, KV_READY, KV_LOST):
        handle_move(fleet, engine, outside, log, kind, subject)
    elif kind == CACHE_EXPIRES:
        expire(cluster, outside.tool_cache, subject, now)
    elif kind != KV_LET_GO or outside.tool_cache.held[subject] > 0:  # It may have been let go already.
        _happen(fleet, outside, kind, subject, r, now)
        wake(fleet, engine, outside, log, cluster.replicas[r].group_first, now)


@inner
def _where(cluster: Cluster, kind: int, subject: int) -> int:
    """The replica at which an event happens, or NONE."""
    if kind == LINKS_CHANGE or kind >= FOR_THE_CALLER:
        return NONE
    if kind == BLOCKS_FREED:
        return subject
    request = cluster.requests[subject]
    return request.decode_replica if kind in (KV_LANDS, KV_READY, KV_LOST) else request.replica


@apart
def _has_replica(fleet: Fleet, engine: Engine, outside: Outside, request_id: int, now: float) -> bool:
    """Whether an arriving request has a replica, chosen now if need be. It has none where it is not let in, and where a
    router in plain Python has to be asked first."""
    request, book = fleet.cluster.requests[request_id], outside.calendar.book[0]
    if request.replica != NONE:
        return True
    if not takes_in(fleet, engine, request_id, now):
        take_next(outside.calendar)
        if request.status == SHED:
            send_next(fleet.cluster, outside, now)
            give_up_followers(fleet.cluster, outside, request_id, now)
        return False
    if book.is_plain != 0:
        book.wants, book.subject = A_REPLICA, request_id
        return False
    request.replica = choose(fleet, engine, outside, request_id)
    return True


@apart
def _happen(fleet: Fleet, outside: Outside, kind: int, subject: int, r: int, now: float) -> None:
    """Let an event happen at replica `r`, which is woken afterwards."""
    cluster = fleet.cluster
    if kind == BLOCKS_FREED:
        land_ready(cluster, outside, r, now)
    elif kind == KV_LOADED:
        end_load(cluster, outside.tiers, subject, now)
        receive(cluster, r, subject, now)
    elif kind == ADAPTER_READY:
        cluster.replicas[r].num_coming -= 1
        queue(fleet, outside, r, subject, now)
    elif kind == FRONT_END_PASSED:
        request = cluster.requests[subject]
        cluster.replicas[r].num_coming -= 1
        if request.num_tries <= 1:  # Where it has come before (lost there, or parked), that is part of its detour.
            request.front_s = now - request.arrival_s
            request.arrival_s = now
        admit(fleet, outside, r, subject, now)
        _let_go_for(cluster, outside, subject, now)
    elif kind == KV_LET_GO:
        let_go_held(cluster, outside.tool_cache, subject)
        land_ready(cluster, outside, r, now)
    elif kind == REQUEST_ARRIVES:
        take_in(fleet, outside, r, subject, now)
        if not is_per_replica(outside.front):
            _let_go_for(cluster, outside, subject, now)


@apart
def _handle_arrivals(fleet: Fleet, engine: Engine, outside: Outside, log: Log) -> None:
    """Serve the next instant of an open workload, or stop so that the caller names a replica."""
    cluster, book = fleet.cluster, outside.calendar.book[0]
    first = book.num_sent
    after = serve_instant(fleet, engine, outside, log, first)
    if after == first and cluster.control[BUDGET] > 0:
        while cluster.requests[first].status != NOT_ARRIVED:
            first += 1
        book.wants, book.subject = A_REPLICA, first
    if book.num_reporting > 0:
        for request_id in range(book.num_sent, after):
            request = cluster.requests[request_id]
            if request.replica == NONE:
                continue
            take_reports(cluster, outside, cluster.replicas[request.replica].group_first, request.arrival_s)
    book.num_sent = after


@apart
def _serve(fleet: Fleet, engine: Engine, outside: Outside, log: Log, last: int) -> None:
    cluster, calendar = fleet.cluster, outside.calendar
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
                wake(fleet, engine, outside, log, group, cluster.next_end_s[group])
                continue
        if now >= book.stop_s:
            return
        if book.next_drain_s <= now:
            request_id = end_transfer(outside.transfers, book)
            link = outside.transfers.flows[request_id].rank
            if link < cluster.replicas.size:
                schedule(calendar, now + outside.transfers.settings[LATENCY_S], KV_LANDS, request_id)
            else:
                schedule(calendar, now + latency_s(cluster, outside.tiers, link), KV_LOADED, request_id)
        elif event_s <= arrival_s:
            _handle_event(fleet, engine, outside, log)
        elif outside.follower_first.size > 0 and is_before_router(outside.front):
            enter_front_end(cluster, outside, book.num_sent, now)  # Those that others set off come between.
            book.num_sent += 1
        else:
            _handle_arrivals(fleet, engine, outside, log)


@jit
def serve(fleet: Fleet, engine: Engine, outside: Outside, log: Log, last: int) -> None:
    """Let happen what happens outside, in the calendar's order, until request `last` has arrived (in a closed loop: was
    sent), or if it is the last one, until nothing is left to happen or `stop_s` is reached. Replicas that report are
    then done, too; the others are brought to their end with `advance_all`.

    A slice whose budget is used up ends before that and is gone on with by another call; so does one that stops because
    `book.wants` something of the caller. With `ADVANCE` for `last` nothing happens outside: every replica is brought up
    to `book.advance_to_s`.
    """
    if last == ADVANCE:
        advance_replicas(borrow(fleet), engine, borrow(log), outside.calendar.book[0].advance_to_s)
    else:
        _serve(borrow(fleet), engine, borrow(outside), borrow(log), last)
