"""Requests that others set off: the next one of a client that waits for its answer, and the calls of an agent."""

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.jit import feature, noinline
from gnomon.serving.engine.calendar import REQUEST_ARRIVES, REQUEST_SENT, schedule, schedule_all
from gnomon.serving.engine.context import Environment
from gnomon.serving.engine.state import NONE, NOT_ARRIVED, NUM_SHED, SHED, Cluster
from gnomon.serving.features.front_end import is_before_router, leaves_front_end
from gnomon.workload import Requests


def dependents_of(requests: Requests) -> tuple[Ints, Ints, Ints]:
    """Where each request's dependents start, the dependents, and how many each of them waits for; empty for nobody."""
    if not len(requests.parents):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    waiting = np.diff(requests.parent_offsets)
    children = np.repeat(np.arange(len(requests)), waiting)
    order = np.argsort(requests.parents, kind="stable")
    counts = np.bincount(requests.parents, minlength=len(requests))
    return np.concatenate(([0], np.cumsum(counts))), children[order], waiting.astype(np.int64)


def send_first(cluster: Cluster, env: Environment, first: int, count: int, end: int) -> None:
    """Send the first `count` requests of a closed loop that serves those from `first` to `end`."""
    book, sent = env.calendar.book, np.arange(first, min(first + count, end))
    kind = REQUEST_SENT if is_before_router(env.front) else REQUEST_ARRIVES
    schedule_all(env.calendar, kind, np.ascontiguousarray(cluster.requests.arrival_s[sent]), sent)
    book.num_sent, book.end_closed = first + sent.size, end


@noinline
def _send(cluster: Cluster, env: Environment, request_id: int, sent_s: float) -> None:
    """Let a client send a request at a time to come: who takes it in first is decided then."""
    cluster.requests[request_id].arrival_s = sent_s
    kind = REQUEST_SENT if is_before_router(env.front) else REQUEST_ARRIVES
    schedule(env.calendar, sent_s, kind, request_id)


@noinline
def enter_front_end(cluster: Cluster, env: Environment, request_id: int, now: float) -> None:
    """A request comes to the front end before the router, behind all that came earlier, and arrives when it has
    passed."""
    request = cluster.requests[request_id]
    request.arrival_s = leaves_front_end(env.front, now, request.prompt_tokens)
    request.front_s = request.arrival_s - now
    schedule(env.calendar, request.arrival_s, REQUEST_ARRIVES, request_id)


@noinline
def send_next(cluster: Cluster, env: Environment, ended_s: float) -> None:
    """A client of the closed loop has its answer: it pauses, then sends the next request."""
    book = env.calendar.book[0]
    book.num_answered += 1
    if book.num_sent >= book.end_closed:
        return
    think_s = env.think_s[book.num_sent] if env.think_s.size > 0 else 0.0
    _send(cluster, env, book.num_sent, ended_s + think_s)
    book.num_sent += 1


@feature
def send_dependents(cluster: Cluster, env: Environment, request_id: int, ended_s: float) -> None:
    """A call of an agent has ended: those that waited for it, and for no other any more, are sent when their tool is
    done."""
    if env.dependent_first.size == 0:
        return
    for i in range(env.dependent_first[request_id], env.dependent_first[request_id + 1]):
        dependent = env.dependents[i]
        env.parents_left[dependent] -= 1
        if env.parents_left[dependent] == 0 and cluster.requests[dependent].status == NOT_ARRIVED:
            _send(cluster, env, dependent, ended_s + env.think_s[dependent])


@feature
def give_up_dependents(cluster: Cluster, env: Environment, request_id: int, now: float) -> None:
    """A call of an agent was refused: its session ends there. All calls that would have followed count as turned
    away."""
    if env.dependent_first.size == 0:
        return
    requests = cluster.requests
    requests[request_id].next_waiting = NONE
    one, last = request_id, request_id
    while one != NONE:  # A list of calls that are given up, each followed by those that wait for it.
        for i in range(env.dependent_first[one], env.dependent_first[one + 1]):
            dependent = env.dependents[i]
            if requests[dependent].status == NOT_ARRIVED:
                requests[dependent].status = SHED
                requests[dependent].arrival_s = now
                requests[dependent].finished_s = now
                requests[dependent].next_waiting = NONE
                requests[last].next_waiting = dependent
                last = dependent
                cluster.control[NUM_SHED] += 1
        one = requests[one].next_waiting
