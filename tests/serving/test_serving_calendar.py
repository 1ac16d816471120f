"""The calendar of outside events: its order, and the loop that follows it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.jit import borrow, function_arguments, jit
from gnomon.serving.engine.calendar import (
    AN_EVENT,
    CONTROL_TICK,
    NOTHING,
    REQUEST_ARRIVES,
    Calendar,
    new_calendar,
    schedule_all,
    take_next,
)
from gnomon.serving.engine.cluster import advance_all, serve
from gnomon.serving.engine.context import Environment, Fleet, RouterInputs, open_to_all
from gnomon.serving.engine.log import new_log
from gnomon.serving.features.adapters import new_adapters
from gnomon.serving.features.tiers import new_tiers
from gnomon.serving.features.tool_cache import open_tool_cache
from gnomon.serving.features.transfers import new_transfers
from gnomon.serving.routers import ROUTERS
from gnomon.serving.run.build import build_cluster
from gnomon.serving.run.compilation import engine_of
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario.pools import bake, policies_of, resolve
from serving_kit import requests_of, scenario


@jit
def _take(calendar: Calendar) -> None:
    take_next(borrow(calendar))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=40), st.integers(0, 40))
def test_events_come_by_time_then_kind_then_order_of_scheduling(events: list[tuple[int, int]], early: int) -> None:
    calendar = new_calendar(1, len(events))
    taken, waiting = [], []
    for order, (time, kind) in enumerate(events):
        schedule_all(calendar, kind, np.array([float(time)]), np.array([order]))
        waiting.append((time, kind, order))
        if order == early:  # Taking some out in between keeps the heap in order.
            _take(calendar)
            taken.append(int(calendar.book[0].subject))
            assert taken == [min(waiting)[2]]
            waiting.remove(min(waiting))
    for expected in sorted(waiting):
        _take(calendar)
        book = calendar.book[0]
        assert (book.time_s, book.kind, book.subject) == expected
    assert calendar.book[0].num_events == 0


def _fleet(arrival_s: list[float], ticks: list[float]) -> tuple[Fleet, Environment, object, object]:
    """One replica whose iterations take a second, with control ticks."""
    table = {"source": "table", "table": {"per_iteration": 1.0}}
    setup = scenario(timing=table)
    requests = requests_of(arrival_s, [10] * len(arrival_s), [3] * len(arrival_s))
    pools = resolve(setup, requests)
    cluster = build_cluster(pools, requests, 0)
    times = bake(setup.model, pools, requests)
    fleet = Fleet(
        cluster,
        times.tables,
        np.zeros((len(requests), 2)),
        np.zeros(1),
        np.zeros(9),
        np.zeros(0),
        np.zeros(0),
        *open_to_all(cluster),
    )
    calendar = new_calendar(1, 10)
    calendar.book.end_open = len(requests)
    schedule_all(calendar, CONTROL_TICK, np.array(ticks), np.arange(len(ticks)))
    others = (
        new_transfers(0, 0, 0),
        RouterInputs(*fleet[2:8]),
        np.zeros(1),
        new_tiers(1, 0, 0, 0),
        *(np.zeros(0, np.int64),) * 3,
        new_adapters(np.zeros(0), np.zeros(2), 1),
        open_tool_cache(setup.tool_cache, requests, cluster),
    )
    env = Environment(calendar, np.zeros(0), np.zeros(3), *others)
    return fleet, env, engine_of(policies_of(pools), ROUTERS["round_robin"]), new_log(64, 64)


def test_a_tick_finds_the_replicas_as_they_are_before_its_instant() -> None:
    """Ticks at the moment of an arrival and of a batch end come before both; between ends, after the ends before."""
    fleet, env, engine, log = _fleet([0.0, 1.5], [0.0, 1.0, 1.5, 2.5])
    book, seen = env.calendar.book[0], []
    with function_arguments():
        serve(fleet, engine, env, log, 2)
        while book.wants == AN_EVENT:
            state = fleet.cluster.replicas[0]
            seen.append((float(book.time_s), int(book.subject), int(state.num_outstanding), int(state.num_produced)))
            serve(fleet, engine, env, log, 2)
        assert book.wants == NOTHING
        advance_all(fleet, engine, log, np.inf)
    assert seen == [(0.0, 0, 0, 0), (1.0, 1, 1, 0), (1.5, 2, 1, 1), (2.5, 3, 2, 2)]
    np.testing.assert_allclose(fleet.cluster.requests.finished_s, [3.0, 5.0])


def test_events_of_one_instant_arrive_in_the_order_of_scheduling_and_before_open_arrivals() -> None:
    fleet, env, engine, log = _fleet([7.0, 7.0, 2.0], [])
    env.calendar.book.num_sent, env.calendar.book.end_open = 2, 3
    schedule_all(env.calendar, REQUEST_ARRIVES, np.array([2.0, 2.0]), np.array([1, 0]))
    with function_arguments():
        serve(fleet, engine, env, log, 3)
        advance_all(fleet, engine, log, np.inf)
    # The first forms a batch alone; the next two wait for its end.
    assert list(fleet.cluster.requests.scheduled_s) == [3.0, 2.0, 3.0]
    assert list(fleet.cluster.requests.admission) == [1, 0, 2]


def test_a_plain_python_router_serves_a_closed_loop_as_a_compiled_one() -> None:
    from gnomon.serving.routers import router

    loop = {"rate": None, "num_requests": 30, "arrivals": {"process": "closed_loop", "concurrency": 4}}

    @router("fewest_in_plain_python", compiled=False)
    def fewest(fleet: Fleet, request_id: int) -> int:
        return int(np.argmin(fleet.cluster.replicas.num_outstanding))

    try:
        plain = run(scenario(num_replicas=3, router="fewest_in_plain_python", workload=loop))
    finally:
        ROUTERS.remove("fewest_in_plain_python")
    done = run(scenario(num_replicas=3, router="least_outstanding", workload=loop))
    np.testing.assert_array_equal(plain.cluster.requests.finished_s, done.cluster.requests.finished_s)
    np.testing.assert_array_equal(plain.cluster.requests.replica, done.cluster.requests.replica)
