"""Replicas that die: what they have in flight is lost, and their requests can go elsewhere."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Ints
from gnomon.jit import borrow, jit
from gnomon.serving.engine.allocation import renew, settle
from gnomon.serving.engine.batch_operations import let_go
from gnomon.serving.engine.calendar import BLOCKS_FREED, Calendar, drop, schedule_all
from gnomon.serving.engine.context import Environment
from gnomon.serving.engine.state import (
    FROM_PREFILL,
    IN_FLIGHT,
    MOVING,
    NONE,
    NOT_ARRIVED,
    RUNNING,
    WAITING,
    Cluster,
    replica_view,
)
from gnomon.serving.features.adapters import forget_adapters
from gnomon.serving.features.breakdown import lose
from gnomon.serving.features.front_end import forget_front_end
from gnomon.serving.features.handover import free_held, unlink_ready
from gnomon.serving.features.tiers import Tiers, forget_tiers, store_prefixes
from gnomon.serving.features.tool_cache import forget_held
from gnomon.serving.features.transfers import Transfers, share_again, stop_transfer

DEAD_LINK_BYTES_S = 1e-3  # What the link of a dead replica moves: nothing that anybody would notice.


def freeze(cluster: Cluster, ranks: range) -> None:
    """The ranks of a replica stop: the batch in flight never ends, and none is formed. Requests may still be sent."""
    for r in ranks:
        state = cluster.replicas[r]
        state.next_end_s = cluster.next_end_s[r] = math.inf
        state.frozen = 1


def cut_link(env: Environment, ranks: range, now_s: float) -> None:
    """Nothing moves from or to these ranks any more."""
    if env.calendar.book[0].has_roles or env.calendar.book[0].migrates:
        env.transfers.links.capacity[ranks.start : ranks.stop] = DEAD_LINK_BYTES_S
        share_again(env.transfers, env.calendar, now_s)


def requests_of(cluster: Cluster, ranks: range, span: slice) -> Ints:
    """The requests that are lost with these ranks, in order of arrival: those that are there, those whose KV is on its
    way there, and those whose KV is held there. Only those of `span` are looked at."""
    q = cluster.requests[span]

    def inside(place: Ints) -> NDArray[np.bool_]:
        return (place >= ranks.start) & (place < ranks.stop)

    is_there = inside(q.replica) & np.isin(q.status, (WAITING, RUNNING, IN_FLIGHT, MOVING))
    moves = (q.status == MOVING) & (q.held_blocks > 0)
    ids = np.flatnonzero(is_there | (moves & (inside(q.prefill_replica) | inside(q.decode_replica))))
    return (ids + (span.start or 0)).astype(np.int64)


def evacuate(
    cluster: Cluster, env: Environment, ranks: range, ids: Ints, *, keeps_tokens: bool, stores_kv: bool, now_s: float
) -> None:
    """Take these requests (`requests_of`) from a frozen replica. They have not arrived anywhere, and go on from the
    tokens they have, or start over. The replica is empty, and so are its prefix cache, its tiers and its slots."""
    q = cluster.requests
    if cluster.breakdown.size:
        lose(cluster, ids, keeps_tokens)
    for r in ranks:
        settle(cluster, r)
    if stores_kv:
        store_prefixes(cluster, env.tiers, ids, now_s)
    moved = q.held_blocks[ids] > 0
    if ((q.status[ids] == MOVING) | (q.decode_replica[ids] != NONE)).any():
        freed = _take_back(cluster, env.transfers, env.tiers, env.calendar, ids, now_s)
        roomier = np.array(sorted(freed - set(ranks)), np.int64)
        schedule_all(env.calendar, BLOCKS_FREED, np.full(roomier.size, now_s), roomier)
        drop(env.calendar, ids)
    _start_over(cluster, ids, moved, keeps_tokens)
    for r in ranks:
        coming = cluster.replicas[r].num_coming  # Those that are left are prefilled elsewhere.
        renew(cluster, r)
        cluster.replicas[r].frozen, cluster.replicas[r].num_coming = 1, coming
        forget_front_end(env.front, r)
        forget_tiers(env.tiers, r, cluster.replicas.size)
        forget_adapters(env.adapters, r)
        forget_held(cluster, env.tool_cache, r)


def _start_over(cluster: Cluster, ids: Ints, moved: Any, keeps_tokens: bool) -> None:
    """The records of these requests are as before their arrival, but for what their clients have; the KV of those that
    `moved` was under way."""
    q = cluster.requests
    # Of one whose KV was under way the client has the first token only where the prefill replica sends it.
    sent = q.prefill_tokens[ids] + (cluster.replicas.first_token_at[0] == FROM_PREFILL)
    seen = np.where(moved, sent, q.processed[ids])
    if keeps_tokens:
        q.prefill_tokens[ids] = np.maximum(q.prefill_tokens[ids], seen)
    else:
        q.prefill_tokens[ids] = q.prompt_tokens[ids]
        for stamp in ("first_token_s", "last_token_s"):
            q[stamp][ids] = -1.0
        q.charged[ids] = 0
    q.scheduled_s[ids[q.first_token_s[ids] < 0.0]] = -1.0
    q.num_restarts[ids] += moved | (q.processed[ids] > 0)
    q.total_tokens[ids] = q.prompt_tokens[ids] + q.output_tokens[ids]  # Some were about to leave.
    q.held_counts[ids] = 0
    for name in ("processed", "num_blocks", "keyed_blocks", "foreseen", "held_blocks"):
        q[name][ids] = 0
    for name in ("replica", "prefill_replica", "decode_replica"):
        q[name][ids] = NONE
    for name in ("preempted_at_s", "prefilled_s", "moving_s", "landed_s"):
        q[name][ids] = -1.0
    q.status[ids] = NOT_ARRIVED


@jit
def _take_back(
    cluster: Cluster, transfers: Transfers, tiers: Tiers, calendar: Calendar, ids: Ints, now_s: float
) -> set[int]:
    """Undo what other replicas keep for these requests: KV that is held, blocks for KV that was to come, places in
    their lists. Returns the replicas that have more room now."""
    lent, flows, book = borrow(cluster), borrow(transfers), borrow(calendar).book[0]
    loading, replicas, freed = borrow(tiers).num_loading, lent.replicas, {NONE}
    for request_id in ids:
        request = lent.requests[request_id]
        here, to = request.replica, request.decode_replica
        if request.held_blocks > 0:
            free_held(replica_view(lent, request.prefill_replica), request_id)
            freed.add(request.prefill_replica)
            replicas[to].num_coming -= 1
            if request.moving_s >= 0.0:
                stop_transfer(flows, book, request_id, now_s)
                let_go(replica_view(lent, to), request_id)
                replicas[to].num_landing -= 1
                freed.add(to)
            elif here == to:
                unlink_ready(replica_view(lent, to), request_id)
                freed.add(to)  # Another one is the first now.
        else:
            if to != NONE and to != here:
                replicas[to].num_coming -= 1
            if request.status == MOVING:
                replicas[here].num_coming -= 1
                if loading.size > 0 and loading[request_id] > 0:
                    stop_transfer(flows, book, request_id, now_s)
                    replicas[here].num_landing -= 1
                    loading[request_id] = 0
    freed.discard(NONE)
    return freed


def redirect(cluster: Cluster, ranks: range, targets: Ints, span: slice) -> None:
    """Requests that are still prefilled elsewhere, and would have gone to these ranks, go to others: to those with the
    fewest requests, in turn."""
    q, replicas = cluster.requests[span], cluster.replicas
    goes = np.isin(q.status, (WAITING, RUNNING, IN_FLIGHT, MOVING)) & (q.held_blocks == 0)
    goes &= (q.decode_replica >= ranks.start) & (q.decode_replica < ranks.stop) & (q.replica != q.decode_replica)
    for i in np.flatnonzero(goes):
        load = replicas.num_outstanding[targets] + replicas.num_coming[targets]
        replicas[q.decode_replica[i]].num_coming -= 1
        q.decode_replica[i] = targets[int(np.argmin(load))]
        if q.decode_replica[i] != q.replica[i]:  # Else it stays where it is prefilled.
            replicas[q.decode_replica[i]].num_coming += 1
