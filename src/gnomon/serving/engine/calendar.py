"""The calendar: what happens outside the replicas, in one total order.

A replica runs alone between outside events. Those known ahead of time stand in the calendar: the arrival of a request
that somebody else sets off, a control tick, a replica that comes, goes or slows down. The loop in
`gnomon.serving.engine.cluster` takes them in this order:

1. the earlier time first;
2. at one time, transfers that have sent everything before the calendar's events, those before the arrivals of an open
   workload, and those before batches that end;
3. among events of one time, by kind in the order of the list below, then in the order in which they were scheduled;
4. among batches that end at one time, those of the replica with the lowest number.

Kinds from `FOR_THE_CALLER` on are not handled in compiled code: the loop stops and hands them to whoever runs it, with
every replica brought up to that moment.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.jit import borrow, inlined, jit, noinline
from gnomon.serving.engine.state import NO_LIMIT, Cluster

NEVER = math.inf

# Kinds of events, in the order in which those of one instant are handled.
KV_LANDS = 10  # subject: the request whose KV has moved
KV_READY = 11  # subject: the request that is prefilled, as the replica that is to decode it learns
KV_LOST = 12  # subject: the request that has waited too long for blocks there, or can never have them
KV_LOADED = 13  # subject: the request whose prefix has come from another tier
LINKS_CHANGE = 14  # subject: 1 where nothing moves between pools from now on, 0 where it does again
ADAPTER_READY = 15  # subject: the request whose adapter is loaded
BLOCKS_FREED = 16  # subject: a replica, whose blocks somebody else has freed
KV_LET_GO = 17  # subject: the call of an agent whose KV need not be held any longer
CACHE_EXPIRES = 18  # subject: the call whose KV nobody may have used for long
FRONT_END_PASSED = 19  # subject: the request that a replica's front end has taken in
REQUEST_ARRIVES = 20  # subject: the request
REQUEST_SENT = 21  # subject: the request, which comes to the front end before the router
FOR_THE_CALLER = 100
CONTROL_TICK = 100  # subject: any number
REPLICA_CHANGES = 101  # subject: the place in the events of a fleet
DEADLINE = 100  # subject: any number; the first client may give up (never where there are control ticks)

# What the loop waits for when it has stopped: nothing, the replica of a request (a router in plain Python), or what
# to do about an event of the caller's.
NOTHING, A_REPLICA, AN_EVENT = range(3)

EVENT = np.dtype(
    [
        ("time_s", np.float64),
        ("kind", np.int64),
        ("order", np.int64),  # how many were scheduled before
        ("subject", np.int64),
    ],
    align=True,
)

BOOK = np.dtype(
    [
        ("num_events", np.int64),
        ("num_scheduled", np.int64),  # so far
        ("num_sent", np.int64),  # requests that have arrived (open workload) or were sent (closed loop)
        ("end_open", np.int64),  # those before arrive by themselves, in order
        ("end_closed", np.int64),  # those before are sent when others end
        ("num_answered", np.int64),  # of a closed loop, those that have ended
        ("pause_after", np.int64),  # the loop stops when so many have: the warm-up is over
        ("num_reporting", np.int64),  # groups whose ends concern others
        ("sees_state", np.int64),  # the router looks at all replicas
        ("is_plain", np.int64),  # the router is plain Python: the loop stops and asks
        ("wants", np.int64),  # NOTHING, A_REPLICA or AN_EVENT
        ("kind", np.int64),  # of the event that was taken last
        ("subject", np.int64),  # of the event, or the request that wants a replica
        ("time_s", np.float64),
        ("stop_s", np.float64),  # nothing from here on happens
        ("advance_to_s", np.float64),  # where `ADVANCE` brings the replicas
        ("has_roles", np.int64),  # some replicas only prefill, or only decode
        ("migrates", np.int64),  # requests may move while they decode
        ("has_tiers", np.int64),  # KV is kept beyond the GPUs
        ("num_active", np.int64),  # transfers under way
        ("shared_s", np.float64),  # when the links were divided last
        ("next_drain_s", np.float64),  # when the first of them has sent everything
        ("next_drained", np.int64),  # and which
    ],
    align=True,
)


class Calendar(NamedTuple):
    """Events to come, and how far the run is."""

    events: Any  # `EVENT` records, the first `num_events` as a binary heap.
    book: Any  # One `BOOK` record.
    reports: Ints
    """[replica]: 1 for the first replica of a group whose ends concern others: such groups advance together, in
    order of time. All others run ahead to the next event that meets them."""


def new_calendar(num_replicas: int, max_events: int = 0, stop_s: float = NEVER) -> Calendar:
    """An empty calendar with room for so many events at a time."""
    book = np.zeros(1, BOOK).view(np.recarray)
    book.stop_s, book.next_drain_s, book.pause_after = stop_s, NEVER, NO_LIMIT
    return Calendar(np.zeros(max_events, EVENT).view(np.recarray), book, np.zeros(num_replicas, np.int64))


def report_ends(calendar: Calendar, cluster: Cluster) -> None:
    """Let every replica report what ends in it, as a closed loop needs it."""
    cluster.replicas.reports = 1
    calendar.reports[:] = cluster.replicas.group_first == cluster.replicas.id
    calendar.book.num_reporting = calendar.reports.sum()


@inlined
def next_event_s(calendar: Calendar) -> float:
    """The time of the next event, or NEVER."""
    return calendar.events[0].time_s if calendar.book[0].num_events > 0 else NEVER


@inlined
def _is_before(one: Any, time_s: float, kind: int, order: int) -> bool:
    if one.time_s != time_s:
        return one.time_s < time_s
    return one.kind < kind if one.kind != kind else one.order < order


@noinline
def schedule(calendar: Calendar, time_s: float, kind: int, subject: int) -> None:
    """Put an event into the calendar."""
    events, book = calendar.events, calendar.book[0]
    assert book.num_events < events.size, "the calendar is full"
    order, place = book.num_scheduled, book.num_events
    book.num_scheduled += 1
    book.num_events += 1
    while place > 0 and not _is_before(events[(place - 1) // 2], time_s, kind, order):
        events[place] = events[(place - 1) // 2]
        place = (place - 1) // 2
    _write(events[place], time_s, kind, order, subject)


@jit
def schedule_all(calendar: Calendar, kind: int, time_s: Floats, subjects: Ints) -> None:
    """Put many events of one kind into the calendar, before or between runs of the loop."""
    lent = borrow(calendar)
    for i in range(time_s.size):
        schedule(lent, time_s[i], kind, subjects[i])


def drop(calendar: Calendar, subjects: Ints) -> None:
    """Take out all that was to happen to these requests before they arrive again; what concerns replicas stays."""
    book, events = calendar.book[0], calendar.events
    some = events[: book.num_events]
    of_requests = (KV_LANDS, KV_READY, KV_LOST, KV_LOADED, ADAPTER_READY, FRONT_END_PASSED)
    kept = some[~(np.isin(some.kind, of_requests) & np.isin(some.subject, subjects))]
    # Sorted, they are a heap.
    events[: kept.size] = kept[np.lexsort((kept.order, kept.kind, kept.time_s))]
    book.num_events = kept.size


@noinline
def take_next(calendar: Calendar) -> None:
    """Take the next event out; `book.kind`, `book.subject` and `book.time_s` say what it was."""
    events, book = calendar.events, calendar.book[0]
    book.time_s, book.kind, book.subject = events[0].time_s, events[0].kind, events[0].subject
    book.num_events -= 1
    last = events[book.num_events]
    time_s, kind, order, subject = last.time_s, last.kind, last.order, last.subject
    place, child = 0, 1
    while child < book.num_events:
        right = child + 1
        if right < book.num_events:
            other = events[child]
            if _is_before(events[right], other.time_s, other.kind, other.order):
                child = right
        if not _is_before(events[child], time_s, kind, order):
            break
        events[place] = events[child]
        place, child = child, 2 * child + 1
    _write(events[place], time_s, kind, order, subject)


@inlined
def _write(event: Any, time_s: float, kind: int, order: int, subject: int) -> None:
    event.time_s = time_s
    event.kind = kind
    event.order = order
    event.subject = subject
