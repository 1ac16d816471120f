"""What follows outside from requests that end in a replica: the next ones are sent, and KV moves on."""

from gnomon.jit import feature, noinline
from gnomon.serving.engine.calendar import ADAPTER_READY, KV_LANDS, KV_LOST, KV_READY, NEVER, schedule
from gnomon.serving.engine.context import Engine, Environment, Fleet
from gnomon.serving.engine.launch import note_soonest
from gnomon.serving.engine.log import Log
from gnomon.serving.engine.state import MOVING, NONE, REJECTED, Cluster, replica_view
from gnomon.serving.features import breakdown
from gnomon.serving.features.adapters import leave_adapter, leave_line, next_in_line
from gnomon.serving.features.dependent_calls import give_up_dependents, send_dependents, send_next
from gnomon.serving.features.handover import (
    begin_landing,
    free_held,
    land,
    may_land,
    never_lands,
    pop_ready,
    prefill_here,
    push_ready,
)
from gnomon.serving.features.tiers import write_prefix
from gnomon.serving.features.tool_cache import note_end
from gnomon.serving.features.transfers import HOP_S, PREFILLS_AGAIN, TIMEOUT_S, Transfers, start_transfer


@feature
def _leave_adapter(cluster: Cluster, env: Environment, r: int, request_id: int, now: float) -> None:
    """A request with an adapter has ended in replica `r`: those in line may have its slot."""
    leave_adapter(cluster, env.adapters, r, request_id, now)
    ready_s = next_in_line(cluster, env.adapters, r, now)
    while ready_s < NEVER:
        schedule(env.calendar, ready_s, ADAPTER_READY, leave_line(cluster, env.adapters, r))
        ready_s = next_in_line(cluster, env.adapters, r, now)


@noinline
def take_reports(cluster: Cluster, env: Environment, group: int, now: float) -> None:
    """Do what follows from the requests that ended in a group."""
    replicas = cluster.replicas
    for r in range(group, group + replicas[group].group_size):
        state = replicas[r]
        if env.calendar.book[0].has_roles != 0:
            _count_leaving(cluster, env.transfers, r)
        while state.num_reported > 0:
            request_id = state.first_reported
            state.first_reported = cluster.requests[request_id].next_waiting
            state.num_reported -= 1
            request = cluster.requests[request_id]
            if env.calendar.book[0].has_tiers != 0 and request.status != REJECTED:
                write_prefix(cluster, env.tiers, r, request_id, now)
            if request.status == MOVING:
                schedule(env.calendar, request.prefilled_s + env.transfers.settings[HOP_S], KV_READY, request_id)
            else:
                if request.decode_replica not in (NONE, r):  # It ended before it could move.
                    replicas[request.decode_replica].num_coming -= 1
                if request.adapter != NONE:
                    _leave_adapter(cluster, env, r, request_id, now)
                send_next(cluster, env, now + request.last_reply_s)
                if request.status == REJECTED:
                    give_up_dependents(cluster, env, request_id, now)
                else:
                    first, who = env.dependent_first, env.dependents
                    note_end(cluster, env.tool_cache, env.calendar, first, who, request_id, now)
                    send_dependents(cluster, env, request_id, now + request.last_reply_s)
        if state.num_ready > 0:
            land_ready(cluster, env, r, now)


@feature
def _count_leaving(cluster: Cluster, transfers: Transfers, r: int) -> None:
    """Of the requests that ended in replica `r` at this moment, those whose KV is to move share its link."""
    state, leaving = cluster.replicas[r], 0
    for is_counted in (False, True):
        request_id = state.first_reported
        for _ in range(state.num_reported):
            if cluster.requests[request_id].status == MOVING and is_counted:
                transfers.flows[request_id].num_with = leaving
            elif cluster.requests[request_id].status == MOVING:
                leaving += 1
            request_id = cluster.requests[request_id].next_waiting


@feature
def land_ready(cluster: Cluster, env: Environment, r: int, now: float) -> None:
    """Let KV move into replica `r` for the prefilled requests that there is room for. While some wait, what ends in
    its group concerns others. One that all memory is not enough for is refused when it is the first."""
    calendar, transfers, replica = env.calendar, env.transfers, replica_view(cluster, r)
    while True:
        if never_lands(replica):
            _refuse(cluster, env, r, now)
            continue
        if not may_land(replica):
            break
        request_id = begin_landing(replica, now)
        request = cluster.requests[request_id]
        there = max(request.processed, transfers.flows[request_id].copied)
        num_bytes = max(0, request.prefill_tokens - there) * transfers.bytes_per_token[r]
        ahead_s = request.prefilled_s - request.scheduled_s
        start_transfer(transfers, calendar.book[0], request_id, request.prefill_replica, r, num_bytes, ahead_s, now)
    group = replica.state.group_first
    waiting = 0
    for member in range(group, group + replica.state.group_size):
        waiting += cluster.replicas[member].num_ready + cluster.replicas[member].reports
    calendar.reports[group] = 1 if waiting > 0 else 0
    note_soonest(cluster, group)


@feature
def _refuse(cluster: Cluster, env: Environment, r: int, now: float) -> None:
    """The first request that waits for blocks in replica `r` can never have them: it is rejected, and the replica that
    prefilled it learns so at once."""
    replica = replica_view(cluster, r)
    request_id = pop_ready(replica)
    request = cluster.requests[request_id]
    request.status = REJECTED
    request.finished_s = now
    request.last_reply_s = replica.state.reply_s
    replica.state.num_coming -= 1
    replica.state.num_rejected += 1
    schedule(env.calendar, now, KV_LOST, request_id)
    send_next(cluster, env, now + request.last_reply_s)
    give_up_dependents(cluster, env, request_id, now)


@noinline
def wake(fleet: Fleet, engine: Engine, env: Environment, log: Log, group: int, now: float) -> None:
    """Let a group handle all that happens in it at `now`, and do what follows from it outside."""
    engine.proceed(fleet.cluster, fleet.tables, engine.policies, log, group, now, now)
    if env.calendar.reports[group] != 0:
        take_reports(fleet.cluster, env, group, now)


@feature
def _free_held(fleet: Fleet, engine: Engine, env: Environment, log: Log, request_id: int, now: float) -> None:
    """The replica that prefilled a request need not keep its KV any longer."""
    r = fleet.cluster.requests[request_id].prefill_replica
    free_held(replica_view(fleet.cluster, r), request_id)
    wake(fleet, engine, env, log, fleet.cluster.replicas[r].group_first, now)


@feature
def handle_move(fleet: Fleet, engine: Engine, env: Environment, log: Log, kind: int, request_id: int) -> None:
    """A step on the way of a request from the replica that prefilled it to the one that decodes it, which has been
    brought up to this moment."""
    cluster, now = fleet.cluster, env.calendar.book[0].time_s
    request = cluster.requests[request_id]
    r = request.decode_replica
    replica = replica_view(cluster, r)
    group = replica.state.group_first
    if kind == KV_READY:
        if breakdown.is_on(cluster):
            breakdown.move(cluster, request_id, now)
        push_ready(replica, request_id)
        if env.transfers.settings[PREFILLS_AGAIN] == 0.0:
            land_ready(cluster, env, r, now)
        if request.status == MOVING and request.moving_s < 0.0:
            schedule(env.calendar, now + env.transfers.settings[TIMEOUT_S], KV_LOST, request_id)
    elif kind == KV_LANDS:
        land(replica, request_id, now)
        wake(fleet, engine, env, log, group, now)
        _free_held(fleet, engine, env, log, request_id, now)
    elif request.status == MOVING and request.moving_s < 0.0:
        prefill_here(replica)
        wake(fleet, engine, env, log, group, now)
        _free_held(fleet, engine, env, log, request_id, now)
    elif request.status == REJECTED and request.held_blocks > 0:
        _free_held(fleet, engine, env, log, request_id, now)
