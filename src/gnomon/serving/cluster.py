"""Running a cluster: route arrivals to replicas, let them run, drain them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.core.borrow import borrow
from gnomon.core.jit import apart, inner, jit
from gnomon.serving import contract
from gnomon.serving.adapters import (
    Adapters,
    leave_adapter,
    leave_line,
    new_slots,
    next_in_line,
    take_adapter,
    wait_in_line,
)  # fmt: skip
from gnomon.serving.calendar import (
    A_REPLICA,
    ADAPTER_READY,
    AN_EVENT,
    BLOCKS_FREED,
    CACHE_EXPIRES,
    FOR_THE_CALLER,
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
)  # fmt: skip
from gnomon.serving.front_end import leaves_front_end
from gnomon.serving.handover import (
    begin_landing,
    free_held,
    land,
    may_land,
    never_lands,
    pop_ready,
    prefill_here,
    push_ready,
)  # fmt: skip
from gnomon.serving.ledger import ENTRY
from gnomon.serving.log import Log
from gnomon.serving.loop import Policies, receive
from gnomon.serving.state import (
    BUDGET,
    FLIGHT,
    MOVING,
    NO_LIMIT,
    NONE,
    NOT_ARRIVED,
    NUM_PARKED,
    NUM_SERVICE,
    NUM_SHED,
    PARKED,
    REJECTED,
    REPLICA,
    REQUEST,
    SHED,
    Cluster,
    replica_view,
)
from gnomon.serving.tiers import Tiers, begin_load, end_load, latency_s, write_prefix
from gnomon.serving.tool_cache import ToolCache, expire, let_go_held, note_arrival, note_end
from gnomon.serving.transfers import (
    HOP_S,
    IS_DOWN,
    LATENCY_S,
    TIMEOUT_S,
    Transfers,
    end_transfer,
    start_transfer,
    switch_links,
)  # fmt: skip
from gnomon.timing.iteration import IterationTables


class Fleet(NamedTuple):
    """What a router sees: all replicas, as they are at the moment of the arrival."""

    cluster: Cluster
    tables: IterationTables
    draws: Floats
    """[request, 2]: uniform random numbers for each arrival."""
    parameters: Floats
    """The router's options, in the order of its `parameters`."""
    memory: Floats
    """The router's own memory, zero at the start."""
    predicted_output: Floats
    """[request]: output tokens as foretold at arrival; size 0 where nothing is foretold."""
    candidates: Ints
    """The replicas that may be chosen: those that are up and take requests, in order of their numbers."""
    gate: Floats
    """The options of admission control."""
    gate_memory: Floats
    """[class, 2]: what admission control remembers, zero at the start."""


def open_to_all(cluster: Cluster) -> tuple[Ints, Floats, Floats]:
    """The last fields of a `Fleet` all of whose replicas take requests, and that turns nobody away."""
    return np.arange(cluster.replicas.size), np.zeros(1), np.zeros((cluster.classes.shape[0], 2))


Router = Callable[[Fleet, int], int]
Admission = Callable[[Fleet, int], int]
Proceed = Callable[[Cluster, IterationTables, Policies, Log, int, float, float], None]


class Engine(NamedTuple):
    """The compiled functions that the loops below call through pointers."""

    proceed: Proceed
    policies: Policies
    router: Router
    """Answers with 1 + the replica: a router that failed has answered 0."""
    admission: Admission
    """Answers with 2 for a request that is let in, 1 for one that is turned away, 0 where it failed."""
    decode_router: Router
    decider: Router
    """Answers with 2 where a request is prefilled elsewhere, 1 where it is not, 0 where it failed."""


@inner
def ask_router(fleet: Fleet, engine: Engine, request_id: int) -> int:
    """The replica that the router chooses; the engine stops where there is no such replica."""
    return _ask(fleet, engine.router, request_id)


@inner
def _ask(fleet: Fleet, router: Router, request_id: int) -> int:
    r = router(fleet, request_id) - 1
    if r < 0 or r >= fleet.cluster.replicas.size:
        contract.stop(fleet.cluster, contract.NO_SUCH_REPLICA, r, request_id)
        return 0
    return r


@inner
def takes_in(fleet: Fleet, engine: Engine, request_id: int, now: float) -> bool:
    """Whether an arriving request may be handed to a replica. One that admission control turns away ends here; where
    no replica is up, it is parked until one is."""
    request = fleet.cluster.requests[request_id]
    if request.num_tries == 0:
        verdict = engine.admission(fleet, request_id)
        if verdict == 0:
            contract.stop(fleet.cluster, contract.ADMISSION_RAISED, NONE, request_id)
        if verdict < 2:
            request.status = SHED
            request.finished_s = now
            fleet.cluster.control[NUM_SHED] += 1
            return False
        request.num_tries = 1
    if fleet.candidates.size == 0:
        request.status = PARKED
        fleet.cluster.control[NUM_PARKED] += 1
        return False
    return True


@apart
def advance_replicas(fleet: Fleet, engine: Engine, log: Log, until: float) -> None:
    """`advance_all`, for compiled code."""
    for r in range(fleet.cluster.next_end_s.size):
        if fleet.cluster.next_end_s[r] < until:
            engine.proceed(fleet.cluster, fleet.tables, engine.policies, log, r, NEVER, until)


@jit
def advance_all(fleet: Fleet, engine: Engine, log: Log, until: float) -> None:
    """Bring every replica up to `until`."""
    advance_replicas(borrow(fleet), engine, borrow(log), until)


@apart
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


@apart
def serve_arrivals(fleet: Fleet, engine: Engine, log: Log, first: int, last: int) -> None:
    """Serve arrivals from `first` to at least `last` with a router that looks at the replicas, and nothing else from
    outside; for compiled code."""
    cluster = fleet.cluster
    while first < last and cluster.control[BUDGET] > 0:
        now, after = cluster.requests[first].arrival_s, _together_until(cluster.requests, first)
        advance_replicas(fleet, engine, log, now)
        for request_id in range(first, after):
            receive(cluster, ask_router(fleet, engine, request_id), request_id)
        wake_groups(fleet, engine, log, first, after, now)
        first = after


@inner
def _together_until(requests: Any, first: int) -> int:
    """One past the last request that arrives at the same instant as `first`."""
    last = first + 1
    while last < requests.size and requests[last].arrival_s == requests[first].arrival_s:
        last += 1
    return last


class Asked(NamedTuple):
    """What another router than that of the `Fleet` gets in its place; see there."""

    draws: Floats
    parameters: Floats
    memory: Floats
    predicted_output: Floats
    candidates: Ints


class Outside(NamedTuple):
    """All that happens outside the replicas."""

    calendar: Calendar
    think_s: Floats
    """[request]: the pause before it is sent in a closed loop; size 0 where there is none."""
    front: Floats
    """The front end (`gnomon.serving.front_end`)."""
    transfers: Transfers
    decode: Asked
    """What the decode router gets."""
    decider: Floats
    """The options of the decider."""
    tiers: Tiers
    follower_first: Ints
    """[request + 1]: where the requests that wait for its end start among `followers`; size 0 where nobody waits."""
    followers: Ints
    parents_left: Ints
    """[request]: how many of those that it waits for have not ended."""
    adapters: Adapters
    tool_cache: ToolCache


@apart
def _choose(fleet: Fleet, engine: Engine, outside: Outside, request_id: int) -> int:
    """The replica that gets an arriving request. Where prefill and decode are apart, the one that decodes it is chosen
    first, then whether it is prefilled elsewhere, then where."""
    if outside.calendar.book[0].has_roles == 0:
        return ask_router(fleet, engine, request_id)
    cluster, request, own = fleet.cluster, fleet.cluster.requests[request_id], outside.decode
    to_decode = Fleet(
        cluster,
        fleet.tables,
        own.draws,
        own.parameters,
        own.memory,
        own.predicted_output,
        own.candidates,
        fleet.gate,
        fleet.gate_memory,
    )
    request.decode_replica = _ask(borrow(to_decode), engine.decode_router, request_id)
    if outside.transfers.settings[IS_DOWN] != 0.0:
        return request.decode_replica
    to_decide = Fleet(
        cluster,
        fleet.tables,
        fleet.draws,
        outside.decider,
        fleet.memory,
        fleet.predicted_output,
        fleet.candidates,
        fleet.gate,
        fleet.gate_memory,
    )
    if engine.decider(borrow(to_decide), request_id) < 2:
        return request.decode_replica
    r = ask_router(fleet, engine, request_id)
    request.prefill_replica = r
    if r != request.decode_replica:
        cluster.replicas[request.decode_replica].num_coming += 1
    return r


@apart
def _take_in(fleet: Fleet, outside: Outside, r: int, request_id: int, now: float) -> None:
    """An arrived request comes to replica `r`: into its queue, once its adapter is loaded."""
    cluster, request = fleet.cluster, fleet.cluster.requests[request_id]
    if request.adapter != NONE:
        ready_s = take_adapter(cluster, outside.adapters, r, request_id, now)
        if ready_s > now:
            request.replica = r
            request.status = MOVING
            cluster.replicas[r].num_coming += 1
            if ready_s < NEVER:
                schedule(outside.calendar, ready_s, ADAPTER_READY, request_id)
            else:
                wait_in_line(cluster, outside.adapters, r, request_id)
            return
    _queue(fleet, outside, r, request_id, now)


@apart
def _leave_adapter(cluster: Cluster, outside: Outside, r: int, request_id: int, now: float) -> None:
    """A request with an adapter has ended in replica `r`: those in line may have its slot."""
    leave_adapter(cluster, outside.adapters, r, request_id, now)
    ready_s = next_in_line(cluster, outside.adapters, r, now)
    while ready_s < NEVER:
        schedule(outside.calendar, ready_s, ADAPTER_READY, leave_line(cluster, outside.adapters, r))
        ready_s = next_in_line(cluster, outside.adapters, r, now)


@apart
def _queue(fleet: Fleet, outside: Outside, r: int, request_id: int, now: float) -> None:
    """Put a request into the queue of replica `r`, or let it wait for KV that another tier holds."""
    cluster, book = fleet.cluster, outside.calendar.book[0]
    if book.has_tiers != 0 and begin_load(
        cluster, fleet.tables, outside.tiers, outside.transfers, book, r, request_id, now
    ):
        cluster.requests[request_id].replica = r
        cluster.requests[request_id].status = MOVING
        return
    receive(cluster, r, request_id)


@apart
def serve_instant(fleet: Fleet, engine: Engine, outside: Outside, log: Log, first: int) -> int:
    """Serve request `first` and all that arrive at the same instant; returns the one after them, or `first` where it
    has to be gone on with: the slice's budget is used up, or a router in plain Python must choose.

    A router that looks at the replicas gets all of them at the moment of the arrival; for one that does not, only the
    chosen replica is brought up to date.
    """
    cluster, book = fleet.cluster, outside.calendar.book[0]
    sees_state = book.sees_state != 0
    now, after = cluster.requests[first].arrival_s, _together_until(cluster.requests, first)
    if sees_state:
        cluster.control[BUDGET] -= cluster.replicas.size  # A router that looks at them takes its time, too.
        advance_replicas(fleet, engine, log, now)
    if cluster.control[BUDGET] <= 0:
        return first
    for request_id in range(first, after):
        request = cluster.requests[request_id]
        if request.status != NOT_ARRIVED:
            continue
        if request.replica == NONE:
            if not takes_in(fleet, engine, request_id, now):
                if request.status == SHED:
                    _give_up_followers(cluster, outside, request_id, now)
                continue
            if book.is_plain != 0:
                return first
            request.replica = _choose(fleet, engine, outside, request_id)
        if not sees_state:
            group = cluster.replicas[request.replica].group_first
            engine.proceed(cluster, fleet.tables, engine.policies, log, group, NEVER, now)
            if cluster.control[BUDGET] <= 0:
                return first
        _take_in(fleet, outside, request.replica, request_id, now)
    wake_groups(fleet, engine, log, first, after, now)
    return after


@apart
def _send_next(cluster: Cluster, outside: Outside, ended_s: float) -> None:
    """A client of the closed loop has its answer: it pauses, then sends the next request, which arrives when it has
    passed the front end."""
    book = outside.calendar.book[0]
    if book.num_sent >= book.end_closed:
        return
    request = cluster.requests[book.num_sent]
    sent_s = ended_s + (outside.think_s[book.num_sent] if outside.think_s.size > 0 else 0.0)
    request.arrival_s = leaves_front_end(outside.front, sent_s, request.prompt_tokens)
    request.front_s = request.arrival_s - sent_s
    schedule(outside.calendar, request.arrival_s, REQUEST_ARRIVES, book.num_sent)
    book.num_sent += 1


@apart
def _send_followers(cluster: Cluster, outside: Outside, request_id: int, ended_s: float) -> None:
    """A call of an agent has ended: those that waited for it, and for no other any more, are sent when their tool is
    done."""
    if outside.follower_first.size == 0:
        return
    for i in range(outside.follower_first[request_id], outside.follower_first[request_id + 1]):
        follower = outside.followers[i]
        outside.parents_left[follower] -= 1
        if outside.parents_left[follower] == 0 and cluster.requests[follower].status == NOT_ARRIVED:
            request = cluster.requests[follower]
            sent_s = ended_s + outside.think_s[follower]
            request.arrival_s = leaves_front_end(outside.front, sent_s, request.prompt_tokens)
            request.front_s = request.arrival_s - sent_s
            schedule(outside.calendar, request.arrival_s, REQUEST_ARRIVES, follower)


@apart
def _give_up_followers(cluster: Cluster, outside: Outside, request_id: int, now: float) -> None:
    """A call of an agent was refused: its session ends there. All calls that would have followed count as turned
    away."""
    if outside.follower_first.size == 0:
        return
    requests = cluster.requests
    requests[request_id].next_waiting = NONE
    one, last = request_id, request_id
    while one != NONE:  # A list of calls that are given up, each followed by those that wait for it.
        for i in range(outside.follower_first[one], outside.follower_first[one + 1]):
            follower = outside.followers[i]
            if requests[follower].status == NOT_ARRIVED:
                requests[follower].status = SHED
                requests[follower].arrival_s = now
                requests[follower].finished_s = now
                requests[follower].next_waiting = NONE
                requests[last].next_waiting = follower
                last = follower
                cluster.control[NUM_SHED] += 1
        one = requests[one].next_waiting


@apart
def _take_reports(cluster: Cluster, outside: Outside, group: int, now: float) -> None:
    """Do what follows from the requests that ended in a group."""
    replicas = cluster.replicas
    for r in range(group, group + replicas[group].group_size):
        state = replicas[r]
        if outside.calendar.book[0].has_roles != 0:
            _count_leaving(cluster, outside.transfers, r)
        while state.num_reported > 0:
            request_id = state.first_reported
            state.first_reported = cluster.requests[request_id].next_waiting
            state.num_reported -= 1
            request = cluster.requests[request_id]
            if outside.calendar.book[0].has_tiers != 0 and request.status != REJECTED:
                write_prefix(cluster, outside.tiers, r, request_id, now)
            if request.status == MOVING:
                schedule(outside.calendar, now + outside.transfers.settings[HOP_S], KV_READY, request_id)
            else:
                if request.decode_replica not in (NONE, r):  # It ended before it could move.
                    replicas[request.decode_replica].num_coming -= 1
                if request.adapter != NONE:
                    _leave_adapter(cluster, outside, r, request_id, now)
                _send_next(cluster, outside, now + replicas[group].reply_s)
                if request.status == REJECTED:
                    _give_up_followers(cluster, outside, request_id, now)
                else:
                    first, who = outside.follower_first, outside.followers
                    note_end(cluster, outside.tool_cache, outside.calendar, first, who, request_id, now)
                    _send_followers(cluster, outside, request_id, now + replicas[group].reply_s)
        if state.num_ready > 0:
            _land_ready(cluster, outside, r, now)


@inner
def _count_leaving(cluster: Cluster, transfers: Transfers, r: int) -> None:
    """Of the requests that ended in replica `r` at this moment, those whose KV is to move share its link."""
    state, leaving = cluster.replicas[r], 0
    for fill in range(2):
        request_id = state.first_reported
        for _ in range(state.num_reported):
            if cluster.requests[request_id].status == MOVING:
                leaving += 1 - fill
                if fill == 1:
                    transfers.flows[request_id].num_with = leaving
            request_id = cluster.requests[request_id].next_waiting


@apart
def _land_ready(cluster: Cluster, outside: Outside, r: int, now: float) -> None:
    """Let KV move into replica `r` for the prefilled requests that there is room for. While some wait, what ends in
    its group concerns others. One that all memory is not enough for is refused when it is the first."""
    calendar, transfers, replica = outside.calendar, outside.transfers, replica_view(cluster, r)
    while True:
        if never_lands(replica):
            _refuse(cluster, outside, r, now)
            continue
        if not may_land(replica):
            break
        request_id = begin_landing(replica, now)
        request = cluster.requests[request_id]
        num_bytes = (request.prefill_tokens - request.processed) * transfers.bytes_per_token[r]
        ahead_s = request.prefilled_s - request.scheduled_s
        start_transfer(transfers, calendar.book[0], request_id, request.prefill_replica, r, num_bytes, ahead_s, now)
    group = replica.state.group_first
    waiting = 0
    for member in range(group, group + replica.state.group_size):
        waiting += cluster.replicas[member].num_ready + cluster.replicas[member].reports
    calendar.reports[group] = 1 if waiting > 0 else 0


@apart
def _wake(fleet: Fleet, engine: Engine, outside: Outside, log: Log, group: int, now: float) -> None:
    """Let a group handle all that happens in it at `now`, and do what follows from it outside."""
    engine.proceed(fleet.cluster, fleet.tables, engine.policies, log, group, now, now)
    if outside.calendar.reports[group] != 0:
        _take_reports(fleet.cluster, outside, group, now)


@apart
def _free_held(fleet: Fleet, engine: Engine, outside: Outside, log: Log, request_id: int, now: float) -> None:
    """The replica that prefilled a request need not keep its KV any longer."""
    r = fleet.cluster.requests[request_id].prefill_replica
    free_held(replica_view(fleet.cluster, r), request_id)
    _wake(fleet, engine, outside, log, fleet.cluster.replicas[r].group_first, now)


@apart
def _handle_move(fleet: Fleet, engine: Engine, outside: Outside, log: Log, kind: int, request_id: int) -> None:
    """A step on the way of a request from the replica that prefilled it to the one that decodes it, which has been
    brought up to this moment."""
    cluster, now = fleet.cluster, outside.calendar.book[0].time_s
    request = cluster.requests[request_id]
    r = request.decode_replica
    replica = replica_view(cluster, r)
    group = replica.state.group_first
    if kind == KV_READY:
        push_ready(replica, request_id)
        _land_ready(cluster, outside, r, now)
        if request.status == MOVING and request.moving_s < 0.0:
            schedule(outside.calendar, now + outside.transfers.settings[TIMEOUT_S], KV_LOST, request_id)
    elif kind == KV_LANDS:
        land(replica, request_id, now)
        _wake(fleet, engine, outside, log, group, now)
        _free_held(fleet, engine, outside, log, request_id, now)
    elif request.status == MOVING and request.moving_s < 0.0:
        prefill_here(replica)
        _wake(fleet, engine, outside, log, group, now)
        _free_held(fleet, engine, outside, log, request_id, now)
    elif request.status == REJECTED and request.held_blocks > 0:
        _free_held(fleet, engine, outside, log, request_id, now)


@apart
def _refuse(cluster: Cluster, outside: Outside, r: int, now: float) -> None:
    """The first request that waits for blocks in replica `r` can never have them: it is rejected, and the replica that
    prefilled it learns so at once."""
    replica = replica_view(cluster, r)
    request_id = pop_ready(replica)
    request = cluster.requests[request_id]
    request.status = REJECTED
    request.finished_s = now
    replica.state.num_coming -= 1
    replica.state.num_rejected += 1
    schedule(outside.calendar, now, KV_LOST, request_id)
    _send_next(cluster, outside, now + replica.state.reply_s)
    _give_up_followers(cluster, outside, request_id, now)


@inner
def _next_to_report(cluster: Cluster, calendar: Calendar, until: float) -> int:
    """The group whose batch ends first, before `until`, among those whose ends concern others; or NONE."""
    group, end_s = NONE, until
    for r in range(cluster.next_end_s.size):
        if cluster.next_end_s[r] < end_s and calendar.reports[r] != 0:
            group, end_s = r, cluster.next_end_s[r]
    return group


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
            _handle_move(fleet, engine, outside, log, kind, subject)
    elif kind == KV_LOADED:
        group = cluster.replicas[cluster.requests[subject].replica].group_first
        engine.proceed(cluster, fleet.tables, engine.policies, log, group, NEVER, now)
        if cluster.control[BUDGET] > 0:
            take_next(outside.calendar)
            end_load(cluster, outside.tiers, subject, now)
            receive(cluster, cluster.requests[subject].replica, subject)
            _wake(fleet, engine, outside, log, group, now)
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
            _queue(fleet, outside, r, subject, now)
            _wake(fleet, engine, outside, log, group, now)
    elif kind == BLOCKS_FREED:
        group = cluster.replicas[subject].group_first
        engine.proceed(cluster, fleet.tables, engine.policies, log, group, NEVER, now)
        if cluster.control[BUDGET] > 0:
            take_next(outside.calendar)
            _land_ready(cluster, outside, subject, now)
            _wake(fleet, engine, outside, log, group, now)
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
                _land_ready(cluster, outside, r, now)
                _wake(fleet, engine, outside, log, group, now)
    elif kind == REQUEST_ARRIVES:
        request = cluster.requests[subject]
        if request.replica == NONE:
            if not takes_in(fleet, engine, subject, now):
                take_next(outside.calendar)
                if request.status == SHED:
                    _send_next(cluster, outside, now)
                    _give_up_followers(cluster, outside, subject, now)
                return
            if book.is_plain != 0:
                book.wants, book.subject = A_REPLICA, subject
                return
            request.replica = _choose(fleet, engine, outside, subject)
        group = cluster.replicas[request.replica].group_first
        engine.proceed(cluster, fleet.tables, engine.policies, log, group, NEVER, now)
        if cluster.control[BUDGET] > 0:
            take_next(outside.calendar)
            _take_in(fleet, outside, request.replica, subject, now)
            first, who = outside.follower_first, outside.followers
            note_arrival(cluster, outside.tool_cache, outside.calendar, first, who, subject, now)
            _wake(fleet, engine, outside, log, group, now)


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
            _take_reports(cluster, outside, cluster.replicas[request.replica].group_first, request.arrival_s)
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
                _wake(fleet, engine, outside, log, group, cluster.next_end_s[group])
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


def new_cluster(
    num_replicas: int,
    num_requests: int,
    max_stages: int,
    max_running: int,
    block_size: int,
    max_in_batch: int,
    *,
    cached_blocks: int = 0,
    blocks_per_request: int = 0,
    num_parameters: int = 8,
    num_drafted: int = 1,
    num_classes: int = 1,
    max_moving: int = 0,
    adapter_slots: int = 0,
    prefix_hashes: Ints | None = None,
    recorded: tuple[Ints, Floats] | None = None,
) -> Cluster:
    """Empty arrays for a cluster; `cached_blocks` > 0 makes room for prefix caches of that many blocks."""
    slots = 1 << (2 * cached_blocks).bit_length() if cached_blocks else 0
    rows = min(max_running + max_moving, num_requests) if cached_blocks else 0
    links = cached_blocks + 1 if cached_blocks else 0

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, np.int64)

    def each(row: Ints) -> Ints:
        return np.tile(row, (num_replicas, 1))

    first, seconds = recorded if recorded is not None else (ints(0), np.zeros((0, 1)))
    return Cluster(
        replicas=np.zeros(num_replicas, REPLICA).view(np.recarray),
        requests=np.zeros(num_requests, REQUEST).view(np.recarray),
        flights=np.zeros((num_replicas, max_stages), FLIGHT).view(np.recarray),
        running=ints(num_replicas, max_running),
        stepping=ints(num_replicas, max_running, 3),
        growth=ints(num_replicas, block_size),
        flight_requests=ints(num_replicas, max_stages, max_in_batch),
        flight_tokens=ints(num_replicas, max_stages, max_in_batch),
        next_end_s=np.full(num_replicas, NEVER),
        stage_free_s=np.zeros((num_replicas, max_stages)),
        stage_start_s=np.zeros((num_replicas, max_stages, max_stages)),
        stage_end_s=np.zeros((num_replicas, max_stages, max_stages)),
        parameters=np.zeros((num_replicas, num_parameters)),
        acceptance=np.zeros((num_replicas, num_drafted)),
        block_key=ints(num_replicas, cached_blocks),
        block_users=ints(num_replicas, cached_blocks),
        newer=ints(num_replicas, links),
        older=ints(num_replicas, links),
        slot_key=ints(num_replicas, slots),
        slot_block=ints(num_replicas, slots),
        tables=ints(num_replicas, rows, min(blocks_per_request, cached_blocks + 1)),
        free_rows=each(np.arange(rows, dtype=np.int64)),
        loose_blocks=ints(num_replicas, cached_blocks),
        prefix_hashes=prefix_hashes if prefix_hashes is not None else ints(0),
        classes=np.ones((num_classes, 2)),
        service=np.zeros((num_replicas, num_classes, NUM_SERVICE)),
        recorded_first=first,
        recorded_s=seconds,
        control=np.array([NO_LIMIT, 0, NONE, NONE, 0, 0]),
        adapter_slots=new_slots(num_replicas, adapter_slots),
        ledger=np.zeros(0, ENTRY).view(np.recarray),
        parts_ns=ints(0, 0, 0),
        clocks=ints(0, 0),
        flight_ns=ints(0, 0, 0),
        floor_ns=ints(0, 0),
        context_ns=ints(0, 0),
    )
