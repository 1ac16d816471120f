"""Work handed to replicas and taken from them outside the loops over arrivals: batches of requests, and migration.

`submit` puts many requests into queues at one moment; `withdraw` empties a replica at its next batch boundary, so that
its requests can go on elsewhere: by prefilling all their tokens again, or with their KV moved along.
"""

import math

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.jit import borrow, bound, jit
from gnomon.serving.engine.allocation import renew, settle
from gnomon.serving.engine.calendar import NEVER
from gnomon.serving.engine.context import Engine, Fleet
from gnomon.serving.engine.log import Log
from gnomon.serving.engine.loop import enqueue
from gnomon.serving.engine.state import FINISHED, NONE, NOT_ARRIVED, REJECTED


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
    is_here &= (requests.status != FINISHED) & (requests.status != REJECTED)
    ids = np.flatnonzero(is_here & (requests.status != NOT_ARRIVED))
    requests.prefill_tokens[ids] = np.maximum(requests.prefill_tokens[ids], requests.processed[ids])
    requests.num_restarts[ids] += requests.processed[ids] > 0
    for name, value in (("processed", 0), ("num_blocks", 0), ("status", NOT_ARRIVED), ("replica", NONE)):
        requests[name][ids] = value
    for r in range(first, last):
        renew(cluster, r)
        cluster.stage_free_s[r] = stop
    return ids, stop


@jit
def advance_one(fleet: Fleet, engine: Engine, log: Log, r: int, until: float) -> None:
    """Bring replica `r` alone up to `until`."""
    lent = borrow(fleet)
    engine.proceed(lent.cluster, lent.tables, engine.policies, borrow(log), r, NEVER, until)
