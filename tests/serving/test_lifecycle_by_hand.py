"""The lifecycle of replicas, step by step on small arrays: starts, drains, deaths, repairs, slow spells; what a manager
does at a tick, and what is lost with a replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gnomon.core.errors import ConfigError
from gnomon.serving.autoscaling import evacuation, lifecycle, manager
from gnomon.serving.autoscaling.controllers import CONTROLLERS
from gnomon.serving.autoscaling.events import REPLICA_CHANGES, FleetEvents
from gnomon.serving.autoscaling.lifecycle import Lifecycle, Troubles
from gnomon.serving.autoscaling.manager import Manager
from gnomon.serving.autoscaling.observation import Observer, PoolView
from gnomon.serving.autoscaling.replicas import DOWN, DRAINING, OFF, STARTING, UP, FleetRecord, Replica, Replicas
from gnomon.serving.autoscaling.traffic import Traffic
from gnomon.serving.engine.calendar import CONTROL_TICK, KV_LANDS, new_calendar, schedule_all
from gnomon.serving.engine.state import (
    FROM_PREFILL,
    FROM_TRANSFER,
    MOVING,
    NONE,
    NUM_PARKED,
    NUM_SHED,
    RUNNING,
    Cluster,
)
from gnomon.serving.features.front_end import as_client_sees, open_front_end
from gnomon.serving.features.tiers import new_tiers
from gnomon.serving.features.transfers import new_transfers
from gnomon.serving.scenario.autoscaling import (
    ControllerConfig,
    EventConfig,
    FailureConfig,
    FleetConfig,
    StragglerConfig,
)
from gnomon.serving.scenario.config import FrontEndConfig
from serving_kit import Bag, arrays, books, plain, with_books

RANKS = 2


class Given:
    """Replicas of two ranks each in these states, the second pool from the third on, and all that is asked of others.
    Every time that is drawn is the mean."""

    def __init__(self, *states: int, has_roles: bool = False, links: float = 8.0, **config: Any) -> None:
        members = [Replica(int(i > 1), range(RANKS * i, RANKS * i + RANKS)) for i in range(len(states))]
        self.replicas = Replicas(members, np.array(states, np.int64))
        self.cluster = arrays(3, replicas=RANKS * len(states))
        self.sent: list[Any] = []
        self.room: list[Any] = []
        moved = new_transfers(3, self.cluster.replicas.size, self.cluster.replicas.size)
        moved.links.capacity = links
        self.env: Any = Bag(calendar=new_calendar(self.cluster.replicas.size, 64), transfers=moved)
        self.env.calendar.book.has_roles = has_roles
        traffic: Any = Bag(
            cluster=self.cluster, env=self.env, has_roles=has_roles, send_again=lambda *what: self.sent.append(what)
        )
        self.events = FleetEvents(self.env.calendar)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lifecycle, "stream", lambda *_: Bag(exponential=lambda mean_s: mean_s))
            self.lifecycle = Lifecycle(
                FleetConfig(**config), self.replicas, traffic, self.events, 0, [10.0, 20.0],
                lambda *what: self.room.append(what),
            )  # fmt: skip

    @property
    def times(self) -> list[float]:
        """When something is to happen, in order of planning."""
        events = self.env.calendar.events[: self.env.calendar.book[0].num_events]
        assert (events.kind == REPLICA_CHANGES).all()
        return [float(one.time_s) for one in np.sort(events, order="order")]

    def pass_on(self) -> None:
        """Let what was planned last happen."""
        self.events.happen(len(self.events.planned) - 1, self.times[-1])


@pytest.mark.parametrize(("state", "times"), [(OFF, [25.0]), (STARTING, []), (UP, []), (DRAINING, []), (DOWN, [])])
def test_a_replica_that_is_off_starts_cold(state: int, times: list[float]) -> None:
    """In the second pool that takes 20 s."""
    given = Given(OFF, OFF, state)
    given.lifecycle.start(2, 5.0)
    assert given.times == times and given.replicas.state[2] == (STARTING if state == OFF else state)


@pytest.mark.parametrize("has_roles", [True, False])
def test_a_replica_that_is_ready_takes_what_waits_for_it(has_roles: bool) -> None:
    given = Given(UP, OFF, has_roles=has_roles)
    given.env.transfers.links.capacity[2:] = 0.5
    given.lifecycle.start(1, 5.0)
    given.pass_on()
    assert given.replicas.state.tolist() == [UP, UP] and given.sent == [(1, 15.0)]
    assert given.cluster.replicas.frozen.tolist() == [0, 0, 0, 0]
    assert given.env.transfers.links.capacity.tolist() == [8.0, 8.0, *([8.0] * 2 if has_roles else [0.5] * 2)]
    assert given.times == [15.0]


def test_a_start_that_was_called_off_does_not_end() -> None:
    given = Given(UP, OFF)
    given.lifecycle.start(1, 5.0)
    given.lifecycle.drain(1, 6.0)
    given.pass_on()
    assert given.replicas.state[1] == OFF and given.replicas.changes[-1] == (6.0, 1, OFF)
    assert given.cluster.replicas.frozen.tolist() == [0, 0, 1, 1], "only those that are up take part"


@pytest.mark.parametrize("state", [OFF, DOWN, DRAINING])
def test_only_what_is_up_or_starts_drains(state: int) -> None:
    given = Given(state)
    given.cluster.replicas.num_outstanding = 1
    given.lifecycle.drain(0, 6.0)
    assert given.replicas.state[0] == state and not given.replicas.changes


@pytest.mark.parametrize(
    ("book", "free_s", "off_s"),
    [
        ("num_outstanding", 3.0, None), ("num_coming", 3.0, None), ("num_held", 3.0, None),
        (None, 3.0, 3.0),  # its second rank ended then
        (None, 0.5, 1.0),  # it drains since 1 s
        (None, 9.0, 6.0),  # never later than now
    ],
)  # fmt: skip
def test_a_replica_leaves_when_its_last_batch_has_ended(book: str | None, free_s: float, off_s: float | None) -> None:
    given = Given(UP, UP)
    if book:
        given.cluster.replicas[book][3] = 1
    given.cluster.stage_free_s[:, 0] = [99.0, 99.0, 0.0, free_s]
    given.replicas.change(1.0, 1, DRAINING)
    given.lifecycle.notice_drained(6.0)
    assert given.replicas.changes[1:] == ([] if off_s is None else [(off_s, 1, OFF)])
    assert given.cluster.replicas.frozen.tolist() == ([0, 0, 0, 0] if off_s is None else [0, 0, 1, 1])
    assert given.events.lives == ({} if off_s is None else {1: 1})


def test_an_idle_replica_that_drains_leaves_at_once() -> None:
    given = Given(UP, UP)
    given.lifecycle.drain(0, 6.0)
    assert given.replicas.changes == [(6.0, 0, DRAINING), (6.0, 0, OFF)]


@pytest.mark.parametrize(
    ("state", "falls", "is_dead"),
    [(UP, True, {1}), (STARTING, True, set()), (DRAINING, True, set()), (OFF, False, set()), (DOWN, False, set())],
)
@pytest.mark.parametrize("repair_s", [None, 30.0])
def test_a_replica_dies_and_that_is_noticed_later(
    state: int, falls: bool, is_dead: set[int], repair_s: float | None
) -> None:
    """After 2 s; it may be repaired 30 s after that."""
    given = Given(OFF, state, has_roles=True, failures=FailureConfig(detect_s=2.0))
    planned = len(given.times)
    given.lifecycle.fail(1, 6.0, repair_s)
    assert given.replicas.state[1] == (DOWN if falls else state) and given.replicas.dead == is_dead
    assert given.times[planned:] == ([8.0, *([38.0] if repair_s else [])] if falls else [])
    assert given.lifecycle.failures == int(falls) and (given.cluster.replicas.frozen[2:] == 1).all() == (
        falls or state not in (UP,)
    )
    assert (given.env.transfers.links.capacity < 1.0).tolist() == [False, False, falls, falls]
    if falls:
        given.events.happen(planned, 8.0)
        assert (given.replicas.dead, given.sent, given.room) == (set(), [(1, 8.0)], [(0, 8.0)])
        assert given.replicas.state[1] == DOWN
        if repair_s:
            given.pass_on()
            assert given.replicas.state[1] == OFF and given.room == [(0, 8.0), (0, 38.0)]


@pytest.mark.parametrize(
    ("state", "dead", "is_repaired"), [(DOWN, set(), True), (DOWN, {0}, False), (UP, set(), False)]
)
def test_only_what_is_known_to_be_down_is_repaired(state: int, dead: set[int], is_repaired: bool) -> None:
    given = Given(state)
    given.replicas.dead |= dead
    given.lifecycle.repair(0, 9.0)
    assert given.replicas.changes == ([(9.0, 0, OFF)] if is_repaired else []) and len(given.room) == is_repaired


def test_slow_spells_come_and_go() -> None:
    """Half as long again for 7 s, after 40 s without; adapters in use take a tenth more of that."""
    given = Given(UP, UP, stragglers=StragglerConfig(mean_s=40.0, duration_s=7.0, factor=1.5))
    given.cluster.replicas.adapting = 0.1
    assert given.times == [40.0, 40.0]
    given.events.happen(1, 40.0)
    assert given.cluster.replicas.slowdown.tolist() == [0.0, 0.0, *[pytest.approx(1.5 * 1.1 - 1)] * 2]
    assert given.cluster.replicas.straggling.tolist() == [0.0, 0.0, 0.5, 0.5]
    assert given.times[2:] == [47.0]
    given.events.happen(2, 47.0)
    assert given.cluster.replicas.slowdown[2:].tolist() == [pytest.approx(0.1)] * 2
    assert given.times[3:] == [87.0]


def test_failures_come_to_a_place_whoever_is_there() -> None:
    """Every 100 s; noticed after 5 s and repaired after 30 more. Who starts at 190 s is ready at 200, after one."""
    given = Given(UP, OFF, failures=FailureConfig(mtbf_s=100.0, mttr_s=30.0, detect_s=5.0))
    assert given.times == [100.0]
    given.events.happen(0, 100.0)
    assert given.replicas.state.tolist() == [DOWN, OFF] and given.times[1:] == [105.0, 135.0]
    given.lifecycle.start(1, 190.0)
    given.pass_on()
    assert given.replicas.state.tolist() == [DOWN, UP] and given.times[3:] == [200.0, 300.0]


@pytest.mark.parametrize("drains", [True, False])
def test_trouble_in_the_place_of_a_replica_that_is_not_there_is_no_event(drains: bool) -> None:
    """A thousand failures, and as many slow spells, until the next replica comes; it meets the one after them."""
    often = {
        "failures": FailureConfig(mtbf_s=1.0, mttr_s=2000.0),
        "stragglers": StragglerConfig(mean_s=1.0, duration_s=1.5),
    }
    given = Given(UP, UP, **often)
    if drains:
        given.lifecycle.drain(0, 0.5)
    else:
        given.events.happen(0, 1.0)
    planned = len(given.times)
    given.replicas.state[0] = OFF
    given.lifecycle.start(0, 1000.25)
    given.pass_on()
    assert given.times[planned:] == [1010.25, 1011.0], "ready, and the next failure"
    given.pass_on()
    assert given.replicas.state[0] == DOWN and given.cluster.replicas.straggling[:2].tolist() == [0.0, 0.0]


def test_troubles_are_the_same_however_often_somebody_looks() -> None:
    """A draw for each failure and its repair, and for each spell, in order of time."""
    given = FailureConfig(mtbf_s=3.0, mttr_s=20.0), StragglerConfig(mean_s=2.0, duration_s=2.0, factor=3.0)
    often, once = (Troubles(*given, np.random.default_rng(7)) for _ in range(2))
    factors = [factor for at_s in np.arange(0.0, 100.0, 0.01) if (factor := often.pass_by(float(at_s))) is not None]
    assert factors[:4] == [3.0, 1.0, 3.0, 1.0] and len(factors) > 20
    assert once.pass_by(99.99) == factors[-1]
    assert (once.fails_s, once.repair_s, once.begins_s, once.ends_s) == (
        often.fails_s, often.repair_s, often.begins_s, often.ends_s
    )  # fmt: skip
    draws = np.random.default_rng(7)
    first = [draws.exponential(mean_s) for mean_s in (3.0, 20.0, 2.0, 2.0)]
    one = Troubles(*given, np.random.default_rng(7))
    assert [one.fails_s, one.repair_s, one.begins_s, one.ends_s - one.begins_s] == pytest.approx(first)
    assert Troubles(FailureConfig(), StragglerConfig(), np.random.default_rng(7)).next_s == np.inf


@pytest.mark.parametrize(
    ("what", "state", "becomes"),
    [("start", OFF, STARTING), ("drain", UP, OFF), ("fail", UP, DOWN), ("repair", DOWN, OFF), ("slow", UP, UP)],
)
def test_what_a_scenario_lets_happen(what: str, state: int, becomes: int) -> None:
    event: Any = EventConfig(at_s=4.0, what=what, replica=1, factor=3.0)  # type: ignore[arg-type]
    given = Given(UP, state, events=(event,))
    assert given.times == [4.0]
    given.events.happen(0, 4.0)
    assert given.replicas.state.tolist() == [UP, becomes]
    assert given.cluster.replicas.slowdown.tolist() == [0.0, 0.0, *([2.0] * 2 if what == "slow" else [0.0] * 2)]


def test_something_happens_to_a_replica_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="there is no replica 2"):
        Given(UP, UP, events=(EventConfig(at_s=4.0, what="fail", replica=2),))


# The manager.


def _managed(**changes: Any) -> tuple[Any, list[Any]]:
    told: list[Any] = []

    def tells(name: str) -> Any:
        return lambda *what: told.append((name, *what))

    calendar = new_calendar(1, 8)
    made = Bag(
        env=Bag(calendar=calendar), events=Bag(happen=tells("happen"), tick_at=tells("tick_at")),
        lifecycle=Bag(notice_drained=tells("drained")), replicas=Bag(),
        observer=Bag(take_samples=tells("samples"), view=lambda *what: what[:2]),
        traffic=Bag(
            admit=tells("admit"), send_stranded=tells("stranded"), ended_since=lambda: np.arange(2), goes_on=True
        ),
        _tick=tells("tick"), _reconcile=tells("reconcile"), _goes_on=lambda: True, most=None, spec=Bag(shares=False),
        config=Bag(controller=Bag(interval_s=2.5)), pools=[Bag(desired=2, decisions=[]), Bag(desired=3, decisions=[])],
    )  # fmt: skip
    for name, value in changes.items():
        setattr(made, name, value)
    return made, told


@pytest.mark.parametrize(("kind", "step"), [(CONTROL_TICK, ("tick", 4.0)), (REPLICA_CHANGES, ("happen", 5, 4.0))])
def test_a_manager_handles_what_the_loop_stopped_at(kind: int, step: Any) -> None:
    made, told = _managed()
    made.env.calendar.book.kind, made.env.calendar.book.subject, made.env.calendar.book.time_s = kind, 5, 4.0
    Manager.handle(made)
    assert told == [("drained", 4.0), step, ("admit", 4.0), ("stranded", 4.0)]


def test_a_manager_asks_for_each_pool_and_notes_what_changes() -> None:
    made, told = _managed(_asked=lambda seen: {0: 2, 1: 5}[seen[0]])
    Manager._tick(made, 4.0)
    assert [pool.desired for pool in made.pools] == [2, 5]
    assert [pool.decisions for pool in made.pools] == [[], [(4.0, 5)]]
    assert told == [("reconcile", 0, 4.0), ("reconcile", 1, 4.0), ("samples", 4.0), ("tick_at", 6.5)]


@pytest.mark.parametrize("kind", [CONTROL_TICK, REPLICA_CHANGES])
def test_nothing_more_happens_to_a_fleet_that_is_done(kind: int) -> None:
    """Neither decisions nor failures: a controller that is asked once in two years left 60 requests with a thousand."""
    made, told = _managed(_goes_on=lambda: False)
    made.traffic.goes_on = False
    made.env.calendar.book.kind, made.env.calendar.book.num_events = kind, 3
    Manager.handle(made)
    assert made.env.calendar.book.num_events == 0 and [one[0] for one in told] == ["drained"]


@pytest.mark.parametrize(
    ("answer", "count"), [(3, 3), (0, 1), (9, 8), (4.0, 4), (3.5, None), (-1, None), (np.inf, None), ("x", None)]
)
def test_an_answer_is_cut_to_the_limits_or_refused(answer: Any, count: int | None) -> None:
    """From 1 to 8 replicas."""
    made: Any = Bag(spec=Bag(decide=lambda view: answer))
    view: Any = Bag(min_replicas=1, max_replicas=8, now_s=4.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager, "is_own", lambda function: False)
        if count is None:
            with pytest.raises(ConfigError, match="at 4 s: that is no number of replicas"):
                Manager._asked(made, view)
        else:
            assert Manager._asked(made, view) == count


@pytest.mark.parametrize(("interval_s", "ticks"), [(2.0, 1), (5.0, 0)])
def test_a_controller_is_asked_before_the_end(interval_s: float, ticks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is at 5 s."""
    given = Given(UP)
    fleet: Any = Bag(cluster=given.cluster, candidates=np.arange(2))
    given.env.dependents, given.env.decode = np.zeros(0, np.int64), Bag(candidates=np.arange(2))
    admitted: list[float] = []
    monkeypatch.setattr(Traffic, "admit", lambda self, now_s: admitted.append(now_s))
    pools = [PoolView(min_replicas=1, max_replicas=1, desired=1, cold_start_s=1.0, rates={})]
    config = FleetConfig(controller=ControllerConfig(interval_s=interval_s))
    made = Manager(
        config, CONTROLLERS["fixed"], given.replicas, pools, Traffic(config.failures, fleet, given.env, given.replicas),
        None, 0, 5.0,
    )  # fmt: skip
    book = given.env.calendar.book[0]
    assert book.num_events == ticks and (not ticks or given.env.calendar.events[0].time_s == interval_s)
    assert made.fleet.candidates.tolist() == [0, 1] and made.idle_ticks == 0 and not made.gave_up
    assert admitted == [0.0]


# What a controller sees.


def _seen(has_roles: bool = False, parked: int = 3) -> Any:
    """Two pools of two and one replicas, of which 1, 2 and 6 requests were taken."""
    given = Given(UP, STARTING, DOWN, has_roles=has_roles)
    a = given.cluster.replicas
    a.num_taken, a.num_waiting, a.num_outstanding = [1, 0, 2, 0, 6, 0], [1, 0, 1, 0, 4, 0], [3, 0, 3, 0, 9, 0]
    given.cluster.control[NUM_SHED] = 5
    a.busy_s, a.num_finished = [0.5, 0.0, 0.25, 0.0, 4.0, 0.0], [1, 1, 1, 1, 5, 5]
    given.cluster.control[NUM_PARKED] = parked
    given.env.dependents, given.env.decode = np.zeros(0, np.int64), Bag(candidates=np.arange(6))
    fleet: Any = Bag(cluster=given.cluster, candidates=np.arange(6))
    traffic = Traffic(FailureConfig(), fleet, given.env, given.replicas)
    pools = [PoolView(min_replicas=1, max_replicas=2, desired=n, cold_start_s=1.0, rates={}) for n in (7, 8)]
    return Observer(ControllerConfig(), CONTROLLERS["fixed"], given.replicas, traffic, pools, None)


def test_samples_of_pools_by_hand() -> None:
    """Who waits for any replica counts for the first pool."""
    seen = _seen()
    seen.take_samples(4.0)
    assert seen.last_s == 4.0 and seen.sampled().shape == (1, 2, 13)
    assert seen.sampled()[0, 0].tolist() == [4.0, 1, 1, 0, 0, 7, 2 + 3, 6 - 2, 4.0, 0.0, 0.75, 0.0, 0.0]
    assert seen.sampled()[0, 1].tolist() == [4.0, 0, 0, 0, 1, 8, 4, 9 - 4, 10.0, 0.0, 4.0, 0.0, 0.0]
    assert seen.view(0, 4.0, np.zeros(0, np.int64)).interval_s == 1e-9, "never nothing"
    view = seen.view(1, 6.0, np.zeros(0, np.int64))
    assert (view.waiting, view.running, view.interval_s, view.arrival_rate) == (4, 5, 2.0, 3.0)
    assert (view.min_replicas, view.max_replicas, view.desired, view.cold_start_s) == (1, 2, 8, 1.0)
    assert seen.view(0, 6.0, np.zeros(0, np.int64)).starting == 1


def test_requests_that_were_sent_again_are_counted() -> None:
    samples = np.arange(26.0).reshape(1, 2, 13)
    record = FleetRecord("mine", [], [], [], [], [], 2, [(1.0, 0, 3), (2.0, 1, 4)], samples, False, [], False)
    assert record.retries == 7 and record.column("desired").tolist() == [[5.0, 18.0]]


def test_nobody_is_prefilled_whom_nobody_would_decode() -> None:
    """The second pool decodes; it is down."""
    for state, candidates in ((DOWN, []), (UP, [0, 1])):
        given = Given(UP, OFF, state, has_roles=True)
        given.env.dependents, given.env.decode = np.zeros(0, np.int64), Bag(candidates=np.arange(4, 6))
        fleet: Any = Bag(cluster=given.cluster, candidates=np.arange(4))
        traffic = Traffic(FailureConfig(), fleet, given.env, given.replicas)
        traffic.admit(1.0)
        assert traffic.fleet.candidates.tolist() == candidates


# What is lost with a replica.


@pytest.mark.parametrize("has_roles", [True, False])
def test_the_link_of_a_dead_replica_moves_nothing(has_roles: bool) -> None:
    given = Given(UP, UP, has_roles=has_roles)
    evacuation.cut_link(given.env, range(1, 3), 5.0)
    slow = evacuation.DEAD_LINK_BYTES_S if has_roles else 8.0
    assert given.env.transfers.links.capacity.tolist() == [8.0, slow, slow, 8.0]
    assert slow == 8.0 or given.env.calendar.book[0].shared_s == 5.0


@plain
@pytest.mark.parametrize(
    ("moving_s", "here", "landing", "let_go", "unlinked", "freed"),
    [
        (0.0, 2, 4, [0], [], {1, 2}),  # its KV is on its way
        (-1.0, 2, 5, [], [0], {1, 2}),  # it waits for blocks there
        (-1.0, 1, 5, [], [], {1}),  # nobody there has heard of it
    ],
)
def test_helper_takes_back_kv_that_others_keep(
    moving_s: float, here: int, landing: int, let_go: list[int], unlinked: list[int], freed: set[int]
) -> None:
    """Prefilled in 1, where it is held, for 2. Another one waits in 0 for its adapter."""
    cluster = with_books(2, replicas=3)
    q, replicas = cluster.requests[0], cluster.replicas
    cluster.requests.status[1], cluster.requests.replica[1] = MOVING, 0
    q.status, q.replica, q.prefill_replica, q.decode_replica = MOVING, here, 1, 2
    q.held_blocks, q.moving_s, replicas.num_coming, replicas.num_landing = 1, moving_s, 5, 5
    calls: dict[str, list[int]] = {"free_held": [], "let_go": [], "unlink_ready": [], "stop_transfer": []}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("free_held", "let_go", "unlink_ready"):
            patch.setattr(evacuation, name, lambda replica, r, name=name: calls[name].append(int(r)))
        patch.setattr(evacuation, "stop_transfer", lambda moved, book, r, now_s: calls["stop_transfer"].append(int(r)))
        args = (new_transfers(2, 3, 3), new_tiers(3, 2, 0, 1), new_calendar(3, 8), np.arange(2), 6.0)
        assert evacuation._take_back(cluster, *args) == freed
    assert calls == {"free_held": [0], "let_go": let_go, "unlink_ready": unlinked, "stop_transfer": let_go}
    assert replicas.num_coming.tolist() == [4, 5, 4] and replicas.num_landing.tolist() == [5, 5, landing]


@plain
def test_helper_takes_back_the_only_load() -> None:
    cluster, made, stopped = with_books(1, replicas=1), new_tiers(1, 1, 4, 1), list[int]()
    cluster.requests.status[0], cluster.requests.replica[0], made.num_loading[0] = MOVING, 0, 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evacuation, "stop_transfer", lambda moved, book, r, now_s: stopped.append(int(r)))
        evacuation._take_back(cluster, new_transfers(1, 1, 5), made, new_calendar(1, 8), np.arange(1), 6.0)
    assert stopped == [0] and books(cluster) == {"num_coming": 9, "num_landing": 9} and made.num_loading[0] == 0


@pytest.mark.parametrize(
    ("held", "first_at", "keeps", "prefill"),
    [
        (1, FROM_PREFILL, True, 21),  # its client has the first token
        (1, FROM_TRANSFER, True, 20),
        (0, FROM_PREFILL, True, 24),
        (0, FROM_PREFILL, False, 20),
    ],
)
def test_what_a_request_whose_kv_was_under_way_goes_on_from(
    held: int, first_at: int, keeps: bool, prefill: int
) -> None:
    cluster = arrays(2, replicas=3)
    cluster.replicas.first_token_at[0] = first_at
    q = cluster.requests[1]
    q.status, q.replica, q.processed, q.held_blocks, q.decode_replica = MOVING, 1, 24, held, 2
    q.first_token_s, q.scheduled_s, q.preempted_at_s, q.prefilled_s, q.moving_s, q.landed_s = 0.0, 0.25, 1, 1, 1, 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evacuation, "_take_back", lambda *_: set())
        evacuation.evacuate(
            cluster, _dying(cluster), range(1, 2), np.array([1]), keeps_tokens=keeps, stores_kv=False, now_s=6.0
        )
    assert (q.prefill_tokens, q.processed, q.num_restarts) == (prefill, 0, 1)
    assert (q.first_token_s, q.scheduled_s) == ((0.0, 0.25) if keeps else (-1.0, -1.0))
    assert (q.preempted_at_s, q.prefilled_s, q.moving_s, q.landed_s) == (-1.0, -1.0, -1.0, -1.0)
    assert (q.held_blocks, q.keyed_blocks, q.foreseen, q.replica, q.decode_replica) == (0, 0, 0, NONE, NONE)


def _dying(cluster: Cluster) -> Any:
    return Bag(
        calendar=new_calendar(3, 64), transfers=None, front=np.ones(9), tiers=Bag(used=np.zeros(0)),
        adapters=Bag(free_s=np.ones(3), line=np.full((3, 3), 9)), tool_cache=Bag(held=np.zeros(0)),
    )  # fmt: skip


def test_a_dead_replica_is_as_new_but_for_what_comes_to_it() -> None:
    """Decodes that step together are settled first: the first of two made a token since it joined."""
    cluster = arrays(3, replicas=3)
    q, state = cluster.requests, cluster.replicas[1]
    q.status[:], q.replica[:], q.processed[:], q.joined[:] = RUNNING, [1, 1, 0], [23, 22, 23], [6, 7, 0]
    q.first_token_s[:], q.last_token_s[:], q.decode_replica[:] = 1.0, 2.0, NONE
    state.num_grouped, state.steps, state.last_step_s, state.num_coming = 2, 7, 3.5, 6
    cluster.grouped[1, :2, 0] = [0, 1]
    env = _dying(cluster)
    evacuation.freeze(cluster, range(1, 2))
    evacuation.evacuate(cluster, env, range(1, 2), np.array([0, 1]), keeps_tokens=True, stores_kv=False, now_s=6.0)
    assert q.prefill_tokens.tolist() == [24, 22, 20] and q.last_token_s.tolist() == [3.5, 2.0, 2.0]
    assert (state.num_coming, state.frozen, state.num_grouped) == (6, 1, 0) and q.processed.tolist() == [0, 0, 23]
    assert env.adapters.free_s.tolist() == [1.0, 0.0, 1.0] and env.adapters.line[:, 0].tolist() == [9, 0, 9]


def test_lost_requests_with_a_place_to_decode_at_are_taken_out_of_the_calendar() -> None:
    cluster = arrays(2, replicas=3)
    q = cluster.requests
    q.status[:], q.replica[:], q.decode_replica[:] = MOVING, 1, [2, NONE]
    for chosen, kept in (([0], [1]), ([0, 1], [])):
        env = _dying(cluster)
        schedule_all(env.calendar, KV_LANDS, np.array([7.0, 8.0]), np.arange(2))
        q.status[:], q.replica[:], q.decode_replica[:] = [RUNNING, MOVING], 1, [2, NONE]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evacuation, "_take_back", lambda *_: {0, 1})
            ids = np.array(chosen)
            env.tiers.num_loading = None
            evacuation.evacuate(cluster, env, range(1, 2), ids, keeps_tokens=True, stores_kv=False, now_s=6.0)
        events = env.calendar.events[: env.calendar.book[0].num_events]
        # The other replica that has more room now is told.
        assert [(float(e.time_s), int(e.subject)) for e in events] == [(6.0, 0), *((8.0, i) for i in kept)]


def test_front_ends_as_the_client_sees_them() -> None:
    """Half a second before the first scheduler, one worker; replies take a tenth."""
    cluster = arrays(3, replicas=2)
    config = FrontEndConfig(per_request_s=0.5, reply_s=0.125, stream_interval=4, per_message_s=0.25)
    q = cluster.requests
    q.arrival_s[:], q.front_s[:] = [0.75, 1.25, 9.5], [0.5, 0.75, 0.5]
    assert not open_front_end(FrontEndConfig(per_replica=True), cluster, 2).any()
    assert open_front_end(config, cluster, 1).tolist() == [0.5, 0.0, 0.0, 0.0]
    assert (cluster.replicas.base_reply_s == 0.125).all()
    assert (cluster.replicas.reply_s == 0.125).all() and (cluster.replicas.message_s == 0.25).all()
    assert (cluster.replicas.stream_interval == 4).all()
    q.first_token_s[:], q.last_token_s[:], q.finished_s[:] = [2.0, 0.0, -1.0], [3.0, 4.0, -1.0], [0.0, -1.0, -1.0]
    q.first_reply_s[:], q.last_reply_s[:] = 0.25, 0.5
    as_client_sees(cluster)
    assert q.arrival_s.tolist() == [0.25, 0.5, 9.0] and q.first_token_s.tolist() == [2.25, 0.25, -1.0]
    assert q.last_token_s.tolist() == [3.5, 4.0, -1.0] and q.finished_s.tolist() == [0.5, -1.0, -1.0]
