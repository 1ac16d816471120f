"""Running a cluster: route arrivals to replicas, let them run, drain them."""

from __future__ import annotations

from gnomon.core.borrow import borrow
from gnomon.core.jit import apart, inner, jit
from gnomon.serving.arrivals import admit, advance_replicas, queue, serve_instant, take_in
from gnomon.serving.calendar import (
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
    Calendar,
    next_event_s,
    schedule,
    take_next,
)
from gnomon.serving.choosing import choose, takes_in
from gnomon.serving.ends import handle_move, land_ready, take_reports, wake
from gnomon.serving.front_end import is_per_replica
from gnomon.serving.log import Log
from gnomon.serving.loop import receive
from gnomon.serving.outside import Engine, Fleet, Outside
from gnomon.serving.sending import give_up_followers, send_next
from gnomon.serving.state import BUDGET, NEIGHBOURS, NONE, NOT_ARRIVED, SHED, Cluster
from gnomon.serving.tiers import end_load, latency_s
from gnomon.serving.tool_cache import expire, let_go_held, note_arrival
from gnomon.serving.transfers import LATENCY_S, end_transfer, switch_links


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


@apart
def _let_go_for(cluster: Cluster, outside: Outside, call: int, now: float) -> None:
    """The scheduler has got a call of an agent: what was held for it alone is held no longer."""
    first, who = outside.follower_first, outside.followers
    note_arrival(cluster, outside.tool_cache, outside.calendar, first, who, call, now)


@apart
def _handle_event(fleet: Fleet, engine: Engine, outside: Outside, log: Log) -> None:
    """Handle the calendar's next event, or stop so that the caller does."""
    cluster, book = fleet.cluster, outside.calendar.book[0]
    event = outside.calendar.events[0]
    now, kind, subject = event.time_s, event.kind, event.subject
    if book.sees_state != 0 or kind >= FOR_THE_CALLER:
        cluster.control[BUDGET] -= cluster.replicas.size
        advance_replicas(fleet, engine, log, now)
        if cluster.control[BUDGET] <= 0:
            return
    if kind >= FOR_THE_CALLER:
        take_next(outside.calendar)
        book.wants = AN_EVENT
    elif kind in (KV_LANDS, KV_READY, KV_LOST):
        group = cluster.replicas[cluster.requests[subject].decode_replica].group_first
        engine.proceed(cluster, fleet.tables, engine.policies, log, group, NEVER, now)
        if cluster.control[BUDGET] > 0:
            take_next(outside.calendar)
            handle_move(fleet, engine, outside, log, kind, subject)
    elif kind == KV_LOADED:
        group = cluster.replicas[cluster.requests[subject].replica].group_first
        engine.proceed(cluster, fleet.tables, engine.policies, log, group, NEVER, now)
        if cluster.control[BUDGET] > 0:
            take_next(outside.calendar)
            end_load(cluster, outside.tiers, subject, now)
            receive(cluster, cluster.requests[subject].replica, subject, now)
            wake(fleet, engine, outside, log, group, now)
    elif kind == LINKS_CHANGE:
        take_next(outside.calendar)
        switch_links(outside.transfers, book, subject, now)
    elif kind == ADAPTER_READY:
        r = cluster.requests[subject].replica
        group = cluster.replicas[r].group_first
        engine.proceed(cluster, fleet.tables, engine.policies, log, group, NEVER, now)
        if cluster.control[BUDGET] > 0:
            take_next(outside.calendar)
            cluster.replicas[r].num_coming -= 1
            queue(fleet, outside, r, subject, now)
            wake(fleet, engine, outside, log, group, now)
    elif kind == FRONT_END_PASSED:
        request = cluster.requests[subject]
        group = cluster.replicas[request.replica].group_first
        engine.proceed(cluster, fleet.tables, engine.policies, log, group, NEVER, now)
        if cluster.control[BUDGET] > 0:
            take_next(outside.calendar)
            cluster.replicas[request.replica].num_coming -= 1
            if request.num_tries <= 1:  # Where it has come before (lost there, or parked), that is part of its detour.
                request.front_s = now - request.arrival_s
                request.arrival_s = now
            admit(fleet, outside, request.replica, subject, now)
            _let_go_for(cluster, outside, subject, now)
            wake(fleet, engine, outside, log, group, now)
    elif kind == BLOCKS_FREED:
        group = cluster.replicas[subject].group_first
        engine.proceed(cluster, fleet.tables, engine.policies, log, group, NEVER, now)
        if cluster.control[BUDGET] > 0:
            take_next(outside.calendar)
            land_ready(cluster, outside, subject, now)
            wake(fleet, engine, outside, log, group, now)
    elif kind in (KV_LET_GO, CACHE_EXPIRES):
        r = cluster.requests[subject].replica
        group = cluster.replicas[r].group_first
        engine.proceed(cluster, fleet.tables, engine.policies, log, group, NEVER, now)
        if cluster.control[BUDGET] > 0:
            take_next(outside.calendar)
            if kind == CACHE_EXPIRES:
                expire(cluster, outside.tool_cache, subject, now)
            elif outside.tool_cache.held[subject] > 0:
                let_go_held(cluster, outside.tool_cache, subject)
                land_ready(cluster, outside, r, now)
                wake(fleet, engine, outside, log, group, now)
    elif kind == REQUEST_ARRIVES:
        request = cluster.requests[subject]
        if request.replica == NONE:
            if not takes_in(fleet, engine, subject, now):
                take_next(outside.calendar)
                if request.status == SHED:
                    send_next(cluster, outside, now)
                    give_up_followers(cluster, outside, subject, now)
                return
            if book.is_plain != 0:
                book.wants, book.subject = A_REPLICA, subject
                return
            request.replica = choose(fleet, engine, outside, subject)
        group = cluster.replicas[request.replica].group_first
        engine.proceed(cluster, fleet.tables, engine.policies, log, group, NEVER, now)
        if cluster.control[BUDGET] > 0:
            take_next(outside.calendar)
            take_in(fleet, outside, request.replica, subject, now)
            if not is_per_replica(outside.front):
                _let_go_for(cluster, outside, subject, now)
            wake(fleet, engine, outside, log, group, now)


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
    while cluster.control[BUDGET] > 0 and book.wants == NOTHING:
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
        else:
            _handle_arrivals(fleet, engine, outside, log)


@jit
def serve(fleet: Fleet, engine: Engine, outside: Outside, log: Log, last: int) -> None:
    """Let happen what happens outside, in the calendar's order, until request `last` has arrived (in a closed loop: was
    sent), or if it is the last one, until nothing is left to happen or `stop_s` is reached. Replicas that report are
    then done, too; the others are brought to their end with `advance_all`.

    A slice whose budget is used up ends before that and is gone on with by another call; so does one that stops because
    `book.wants` something of the caller.
    """
    _serve(borrow(fleet), engine, borrow(outside), borrow(log), last)
