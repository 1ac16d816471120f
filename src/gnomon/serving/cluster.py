"""Running a cluster: route arrivals to replicas, let them run, drain them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.core.borrow import borrow
from gnomon.core.jit import inner, jit
from gnomon.serving import contract
from gnomon.serving.front_end import leaves_front_end
from gnomon.serving.log import Log
from gnomon.serving.loop import NEVER, Policies, receive
from gnomon.serving.state import BUDGET, FLIGHT, NO_LIMIT, NONE, NOT_ARRIVED, REPLICA, REQUEST, Cluster
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


Router = Callable[[Fleet, int], int]
Proceed = Callable[[Cluster, IterationTables, Policies, Log, int, float, float], None]


class Engine(NamedTuple):
    """The compiled functions that the loops below call through pointers."""

    proceed: Proceed
    policies: Policies
    router: Router
    """Answers with 1 + the replica: a router that failed has answered 0."""


@inner
def ask_router(fleet: Fleet, engine: Engine, request_id: int) -> int:
    """The replica that the router chooses; the engine stops where there is no such replica."""
    r = engine.router(fleet, request_id) - 1
    if r < 0 or r >= fleet.cluster.replicas.size:
        contract.stop(fleet.cluster, contract.NO_SUCH_REPLICA, r, request_id)
        return 0
    return r


@inner
def advance_replicas(fleet: Fleet, engine: Engine, log: Log, until: float) -> None:
    """`advance_all`, for compiled code."""
    for r in range(fleet.cluster.next_end_s.size):
        if fleet.cluster.next_end_s[r] < until:
            engine.proceed(fleet.cluster, fleet.tables, engine.policies, log, r, NEVER, until)


@jit
def advance_all(fleet: Fleet, engine: Engine, log: Log, until: float) -> None:
    """Bring every replica up to `until`."""
    advance_replicas(borrow(fleet), engine, borrow(log), until)


@inner
def wake_groups(fleet: Fleet, engine: Engine, log: Log, first: int, last: int, now: float) -> None:
    """`wake_receivers`, for compiled code."""
    replicas, requests = fleet.cluster.replicas, fleet.cluster.requests
    for request_id in range(first, last):
        group = replicas[requests[request_id].replica].group_first
        if replicas[group].woken != last:
            replicas[group].woken = last
            engine.proceed(fleet.cluster, fleet.tables, engine.policies, log, group, now, now)


@inner
def _together_until(requests: Any, first: int) -> int:
    """One past the last request that arrives at the same instant as `first`."""
    last = first + 1
    while last < requests.size and requests[last].arrival_s == requests[first].arrival_s:
        last += 1
    return last


@inner
def serve_arrivals(fleet: Fleet, engine: Engine, sees_state: bool, log: Log, first: int, last: int) -> int:
    """`serve_open_loop`, for compiled code."""
    cluster = fleet.cluster
    while first < last:
        now = cluster.requests[first].arrival_s
        after = _together_until(cluster.requests, first)
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
                request.replica = ask_router(fleet, engine, request_id)
            if not sees_state:
                group = cluster.replicas[request.replica].group_first
                engine.proceed(cluster, fleet.tables, engine.policies, log, group, NEVER, now)
                if cluster.control[BUDGET] <= 0:
                    return first
            receive(cluster, request.replica, request_id)
        wake_groups(fleet, engine, log, first, after, now)
        first = after
    return first


@jit
def serve_open_loop(fleet: Fleet, engine: Engine, sees_state: bool, log: Log, first: int, last: int) -> int:
    """Serve arrivals from `first` to at least `last`; returns the next one. A slice whose budget is used up ends
    before that, and can be gone on with.

    A router that looks at the replicas gets all of them at the moment of the arrival; for one that does not, only the
    chosen replica is brought up to date.
    """
    return serve_arrivals(borrow(fleet), engine, sees_state, borrow(log), first, last)


@inner
def _num_ended(replicas: Any, first: int) -> int:
    """Requests that have left a group, finished or rejected."""
    ended = 0
    for r in range(first, first + replicas[first].group_size):
        ended += replicas[r].num_finished + replicas[r].num_rejected
    return ended


@inner
def _serve_closed_loop(
    fleet: Fleet, engine: Engine, log: Log, think_s: Floats, front: Floats, loop: Ints, stop_s: float, last: int
) -> None:
    cluster, requests, replicas = fleet.cluster, fleet.cluster.requests, fleet.cluster.replicas
    while True:
        # The earliest arrival among those released, and the earliest end of a batch.
        arrival, next_arrival = NEVER, NONE
        for i in range(loop[1], loop[0]):
            if requests[i].status == NOT_ARRIVED and requests[i].arrival_s < arrival:
                arrival, next_arrival = requests[i].arrival_s, i
        end, group = NEVER, NONE
        for r in range(cluster.next_end_s.size):
            if cluster.next_end_s[r] < end:
                end, group = cluster.next_end_s[r], r
        now = min(arrival, end)
        if cluster.control[BUDGET] <= 0 or now == NEVER or now >= stop_s or (loop[0] >= last and last < requests.size):
            return
        if arrival <= end:
            r = ask_router(fleet, engine, next_arrival)
            group = replicas[r].group_first
            receive(cluster, r, next_arrival)
            while loop[1] < loop[0] and requests[loop[1]].status != NOT_ARRIVED:
                loop[1] += 1
        before = _num_ended(replicas, group)
        engine.proceed(cluster, fleet.tables, engine.policies, log, group, now, now)
        for _ in range(_num_ended(replicas, group) - before):
            if loop[0] < loop[2]:
                request = requests[loop[0]]
                sent_s = now + replicas[group].reply_s + think_s[loop[0]]
                request.arrival_s = leaves_front_end(front, sent_s, request.prompt_tokens)
                request.front_s = request.arrival_s - sent_s
                loop[0] += 1


@jit
def serve_closed_loop(
    fleet: Fleet, engine: Engine, log: Log, think_s: Floats, front: Floats, loop: Ints, stop_s: float, last: int
) -> None:
    """Serve a closed loop until request `last` has been released, or everything before `stop_s` has happened.

    `loop` holds how many requests were released so far, from where on some have not arrived, and how many may be
    released. Whenever a request ends, the next one is released: it is sent after its pause, and arrives when it has
    passed the front end (`front`). Replicas advance event by event, because any end may send an arrival anywhere.
    """
    _serve_closed_loop(borrow(fleet), engine, borrow(log), think_s, front, loop, stop_s, last)


@jit
def deliver(fleet: Fleet, r: int, request_id: int) -> None:
    """Put an arrived request into the queue of replica `r`."""
    receive(borrow(fleet).cluster, r, request_id)


@jit
def wake_receivers(fleet: Fleet, engine: Engine, log: Log, first: int, last: int, now: float) -> None:
    """Wake the groups that received requests `first` to `last` at this instant, each once."""
    wake_groups(borrow(fleet), engine, borrow(log), first, last, now)


def serve_plain_router(fleet: Fleet, engine: Engine, route: Router, log: Log, first: int, last: int) -> int:
    """`serve_open_loop` for a router written in plain Python, asked at arrivals only. `route` answers with 1 + the
    replica."""
    cluster = fleet.cluster
    arrival_s = cluster.requests.arrival_s
    while first < last:
        now = arrival_s[first]
        after = int(np.searchsorted(arrival_s, now, side="right"))
        advance_all(fleet, engine, log, now)
        if cluster.control[BUDGET] <= 0:
            return first
        for request_id in range(first, after):
            r = route(fleet, request_id) - 1
            if not 0 <= r < cluster.replicas.size:
                cluster.control[:] = (0, contract.NO_SUCH_REPLICA, r, request_id)
                return first
            deliver(fleet, r, request_id)
        wake_receivers(fleet, engine, log, first, after, now)
        first = after
    return first


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
    prefix_hashes: Ints | None = None,
    recorded: tuple[Ints, Floats] | None = None,
) -> Cluster:
    """Empty arrays for a cluster; `cached_blocks` > 0 makes room for prefix caches of that many blocks."""
    slots = 1 << (2 * cached_blocks).bit_length() if cached_blocks else 0
    rows = min(max_running, num_requests) if cached_blocks else 0
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
        recorded_first=first,
        recorded_s=seconds,
        control=np.array([NO_LIMIT, 0, NONE, NONE]),
    )
