"""Work handed to replicas and taken from them outside the loops over arrivals: batches of requests, and migration.

`submit` puts many requests into queues at one moment; `withdraw` empties a replica at its next batch boundary, so that
its requests can go on elsewhere: by prefilling all their tokens again, or with their KV moved along. `send_away` lets
one request that decodes leave with its next token; the way to the other replica is that of a request whose prefill is
done (`features.handover`).
"""

import math

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.jit import borrow, bound, jit
from gnomon.serving.engine import state
from gnomon.serving.engine.allocation import renew, settle
from gnomon.serving.engine.calendar import NEVER
from gnomon.serving.engine.context import Engine, Fleet
from gnomon.serving.engine.decode_group import processed_now
from gnomon.serving.engine.log import Log
from gnomon.serving.engine.loop import enqueue
from gnomon.serving.engine.prefix_cache import track_blocks
from gnomon.serving.features.cancel import end_early, is_news

_view = getattr(state.replica_view, "py_func", state.replica_view)


@jit
def submit(fleet: Fleet, engine: Engine, log: Log, ids: Ints, targets: Ints, now: float) -> None:
    """Put request `ids[i]` into the queue of replica `targets[i]`, all at `now`; targets of a group stand side by side.

    All replicas have been brought up to `now` before.
    """
    lent, book = borrow(fleet), borrow(log)
    cluster = lent.cluster
    for i in range(ids.size):
        enqueue(cluster, targets[i], ids[i], now)
        cluster.replicas[targets[i]].prefill_left -= cluster.requests[ids[i]].processed
    for i in range(ids.size):
        group = cluster.replicas[targets[i]].group_first
        if i + 1 == ids.size or cluster.replicas[targets[i + 1]].group_first != group:
            engine.proceed(cluster, lent.tables, engine.policies, book, group, now, now)


def withdraw(fleet: Fleet, engine: Engine, log: Log, first: int, now: float) -> tuple[Ints, float]:
    """Stop the group of replicas that `first` leads at its first batch boundary from `now` on; returns its unfinished
    requests and that moment.

    Their records say where they stand: `prefill_tokens` are all tokens so far. The group is empty afterwards and can
    be used again. It has been brought up to `now` before.
    """
    cluster = fleet.cluster
    leader = cluster.replicas[first]
    stop, last = now, first + int(leader.group_size)
    if cluster.replicas.num_in_flight[first:last].any():
        stop = float(leader.next_end_s)
        given = (fleet, engine, log, first, math.nextafter(stop, math.inf))
        bound(advance_one, *given)(*given)
    requests = cluster.requests
    for r in range(first, last):
        settle(cluster, r)
    is_here = (first <= requests.replica) & (requests.replica < last)
    is_here &= (requests.status != state.FINISHED) & (requests.status != state.REJECTED)
    ids = np.flatnonzero(is_here & (requests.status != state.NOT_ARRIVED))
    requests.prefill_tokens[ids] = np.maximum(requests.prefill_tokens[ids], requests.processed[ids])
    requests.num_restarts[ids] += requests.processed[ids] > 0
    for name, value in (("processed", 0), ("num_blocks", 0), ("status", state.NOT_ARRIVED), ("replica", state.NONE)):
        requests[name][ids] = value
    for r in range(first, last):
        renew(cluster, r)
        cluster.stage_free_s[r] = stop
    return ids, stop


def send_away(cluster: state.Cluster, request_id: int, to: int) -> bool:
    """Let a request that decodes leave for replica `to` with the token that is being computed. Returns whether it does:
    one that waits, is prefilled, or ends with that token stays."""
    request = cluster.requests[request_id]
    replica = _view(cluster, int(request.replica))
    if request.status != state.IN_FLIGHT or request.processed <= request.prefill_tokens or is_news(replica, request_id):
        return False
    if request.total_tokens - processed_now(replica, request_id) < 2 or request.held_counts == state.LEAVES:
        return False
    if replica.state.prefix_cache != 0 and replica.state.tracks_blocks == 0:
        track_blocks(replica)  # Later, blocks that are held for those on their way could not be told.
    end_early(cluster, replica, request_id)
    request.held_counts = state.LEAVES
    request.prefill_replica, request.decode_replica = request.replica, to
    cluster.replicas[to].num_coming += 1
    return True


@jit
def advance_one(fleet: Fleet, engine: Engine, log: Log, r: int, until: float) -> None:
    """Bring replica `r` alone up to `until`."""
    lent = borrow(fleet)
    engine.proceed(lent.cluster, lent.tables, engine.policies, borrow(log), r, NEVER, until)
