"""Parts of a fleet, worked out by hand on small arrays: who is lost with a replica, what is seen of a pool, histories,
shelves and lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnomon import jit
from gnomon.core.errors import ConfigError
from gnomon.serving.autoscaling import evacuation
from gnomon.serving.autoscaling.controllers import CONTROLLERS
from gnomon.serving.autoscaling.evacuation import evacuate, freeze, redirect, requests_of
from gnomon.serving.autoscaling.events import FleetEvents
from gnomon.serving.autoscaling.lifecycle import Lifecycle
from gnomon.serving.autoscaling.manager import Manager
from gnomon.serving.autoscaling.observation import Observer, PoolView
from gnomon.serving.autoscaling.replicas import (
    DOWN,
    DRAINING,
    OFF,
    STARTING,
    UP,
    Replica,
    Replicas,
    history,
    replicas_of,
)
from gnomon.serving.autoscaling.traffic import Traffic
from gnomon.serving.engine import contract, dispatch
from gnomon.serving.engine.allocation import renew
from gnomon.serving.engine.calendar import REQUEST_ARRIVES, new_calendar
from gnomon.serving.engine.state import (
    FAULT,
    FAULT_REPLICA,
    FINISHED,
    IN_FLIGHT,
    MOVING,
    NONE,
    NOT_ARRIVED,
    NUM_PARKED,
    NUM_SHED,
    PARKED,
    REJECTED,
    RUNNING,
    SHED,
    WAITING,
    Cluster,
)
from gnomon.serving.features import tiers as tiers_of_kv
from gnomon.serving.features.adapters import (
    FIRST_IN_LINE,
    NUM_IN_LINE,
    adapter_figures,
    leave_adapter,
    leave_line,
    new_adapters,
    new_slots,
    next_in_line,
    take_adapter,
    wait_in_line,
)
from gnomon.serving.features.front_end import (
    forget_front_end,
    is_before_router,
    leaves_front_end,
    leaves_replica_front_end,
    open_front_end,
)
from gnomon.serving.features.tiers import BlockSet, new_tiers, num_slots, put
from gnomon.serving.features.transfers import new_transfers
from gnomon.serving.scenario.autoscaling import ControllerConfig, FailureConfig
from gnomon.serving.scenario.config import FrontEndConfig
from gnomon.timing.iteration import blank, geometric_axis
from serving_kit import Bag, arrays, plain, run, scenario
from serving_kit import requests_of as offered


@pytest.mark.skipif(not jit.ENABLED, reason="this is the child")
def test_helpers_in_plain_python() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", "helper"]
    words += sorted(map(str, Path(__file__).parent.glob("test_*_by_hand.py")))
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "GNOMON_JIT": "0", "PYTHONPATH": paths}
    ended = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:]


STATES = (NOT_ARRIVED, WAITING, RUNNING, IN_FLIGHT, FINISHED, REJECTED, SHED, PARKED, MOVING)


# Who is lost with a replica.


def test_all_that_is_in_a_dead_replica_is_lost_and_nothing_else() -> None:
    cluster = arrays(18)
    cluster.requests.status[:] = STATES * 2
    cluster.requests.replica[:] = [1] * 9 + [2] * 9
    assert requests_of(cluster, range(1, 2), slice(0, None)).tolist() == [1, 2, 3, 8]
    assert requests_of(cluster, range(2, 3), slice(0, None)).tolist() == [10, 11, 12, 17]
    assert requests_of(cluster, range(1, 3), slice(2, 12)).tolist() == [2, 3, 8, 10, 11]
    assert requests_of(cluster, range(1), slice(0, None)).size == 0


def test_kv_on_its_way_is_lost_with_either_end() -> None:
    """Prefilled in 0 and to be decoded in 2: only while it is held does the death of either matter."""
    cluster = arrays(3)
    q = cluster.requests
    q.status[:], q.replica[:] = [MOVING, MOVING, RUNNING], [0, 0, 1]
    q.prefill_replica[:], q.decode_replica[:], q.held_blocks[:] = 0, 2, [4, 0, 4]
    assert requests_of(cluster, range(2, 3), slice(0, None)).tolist() == [0]
    assert requests_of(cluster, range(1), slice(0, None)).tolist() == [0, 1]
    assert requests_of(cluster, range(1, 2), slice(0, None)).tolist() == [2]


@pytest.mark.parametrize(("keeps", "prefill", "first_s"), [(True, [20, 25], 3.0), (False, [20, 20], -1.0)])
def test_what_a_lost_request_goes_on_from(keeps: bool, prefill: list[int], first_s: float) -> None:
    """One was in its prompt, the other had five tokens: those are prefilled again, or it starts over."""
    cluster = arrays(2, replicas=1)
    q, state = cluster.requests, cluster.replicas[0]
    q.replica[:], q.status[:], q.processed[:], q.num_blocks[:] = 0, [RUNNING, IN_FLIGHT], [7, 25], 2
    q.first_token_s[:], q.scheduled_s[:], q.charged[:] = [-1.0, 3.0], [2.0, 2.5], 4
    state.num_outstanding, state.free_blocks, state.num_produced, state.busy_s = 2, 5, 9, 1.5
    env = _env(cluster)
    freeze(cluster, range(1))
    evacuate(cluster, env, range(1), np.array([0, 1]), keeps_tokens=keeps, stores_kv=False, now_s=4.0)
    assert q.prefill_tokens.tolist() == prefill and q.processed.tolist() == [0, 0]
    assert q.first_token_s[1] == first_s and q.scheduled_s.tolist() == ([-1.0, 2.5] if keeps else [-1.0, -1.0])
    assert q.num_restarts.tolist() == [1, 1] and q.charged.tolist() == ([4, 4] if keeps else [0, 0])
    assert (q.status == NOT_ARRIVED).all() and (q.replica == NONE).all() and not q.num_blocks.any()
    assert (state.frozen, state.num_outstanding, state.free_blocks) == (1, 0, state.num_blocks)
    assert (state.num_produced, state.busy_s) == (9, 1.5), "accounts stay"


def test_a_batch_that_is_taken_back_leaves_no_negative_time() -> None:
    """0.1 + 0.7 is less than 1.8 - 1.0."""
    cluster = arrays(1, replicas=1)
    state = cluster.replicas[0]
    state.num_in_flight, state.num_iterations, state.busy_s, state.flops = 1, 3, 0.1 + 0.7, 0.1 + 0.7
    cluster.stage_start_s[0, 0, 0], cluster.stage_end_s[0, 0, 0], cluster.flights[0, 0].flops = 1.0, 1.8, 0.8
    cluster.stage_free_s[0, 0] = 1.8
    renew(cluster, 0)
    assert cluster.stage_free_s[0, 0] == 1.0, "as before it"
    renew(cluster, 0)
    assert cluster.stage_free_s[0, 0] == 1.0, "what it has done stays, beyond the end of the run, too"
    assert (state.busy_s, state.flops, state.num_iterations, state.num_in_flight) == (0.0, 0.0, 2, 0)


def test_redirected_requests_go_where_the_fewest_are_or_come() -> None:
    """4 and 5 against 6 and 2: the third replica has fewer, for one more request."""
    cluster = arrays(3, replicas=3)
    q, replicas = cluster.requests, cluster.replicas
    q.status[:], q.replica[:], q.decode_replica[:] = RUNNING, NONE, [0, 0, 1]
    replicas.num_outstanding, replicas.num_coming = [0, 4, 6], [2, 5, 2]
    redirect(cluster, range(1), np.array([1, 2]), slice(0, None))
    assert q.decode_replica.tolist() == [2, 1, 1] and replicas.num_coming.tolist() == [0, 6, 3]


def _env(cluster: Cluster) -> Any:
    adapters = new_adapters(np.zeros(0), np.zeros(1), cluster.replicas.size)
    nothing = np.zeros(0, np.int64)
    return Bag(
        calendar=new_calendar(cluster.replicas.size, 64), transfers=None, front=np.zeros(8), adapters=adapters,
        tiers=Bag(used=nothing), tool_cache=Bag(held=nothing), dependents=nothing,
        decode=Bag(candidates=np.arange(cluster.replicas.size)),
    )  # fmt: skip


# Who may be chosen, and who is watched.


def members(*states: int, pools: tuple[int, ...] = (), size: int = 1) -> Replicas:
    of = pools or (0,) * len(states)
    some = [Replica(pool, range(size * i, size * i + size)) for i, pool in enumerate(of)]
    return Replicas(some, np.array(states, np.int64))


def test_a_router_may_choose_those_that_are_up_and_those_whose_death_nobody_noticed() -> None:
    replicas = members(UP, STARTING, DRAINING, DOWN, DOWN, OFF, size=2)
    assert replicas.taking_requests().tolist() == [0, 1]
    replicas.dead.add(3)
    assert replicas.taking_requests().tolist() == [0, 1, 6, 7]
    replicas.change(5.0, 1, UP)
    assert replicas.taking_requests().tolist() == [0, 1, 2, 3, 6, 7]
    assert replicas.since.tolist() == [0.0, 5.0, 0.0, 0.0, 0.0, 0.0] and replicas.changes == [(5.0, 1, UP)]


def test_replicas_of_a_pool_by_state() -> None:
    replicas = members(UP, OFF, UP, DOWN, pools=(0, 0, 1, 1))
    assert (replicas.of(0, UP), replicas.of(1, UP, DOWN), replicas.of(0, DOWN)) == ([0], [2, 3], [])


def test_places_for_replicas_of_every_kind() -> None:
    """Two of one rank, then three of two ranks each; one and two of them are up at the start."""
    pools: Any = [Bag(replica=Bag(data_parallel=size), num_replicas=count) for size, count in ((1, 2), (2, 3))]
    made = replicas_of(pools, [1, 2])
    assert [(one.pool, one.ranks) for one in made.members] == [
        (0, range(1)), (0, range(1, 2)), (1, range(2, 4)), (1, range(4, 6)), (1, range(6, 8)),
    ]  # fmt: skip
    assert made.state.tolist() == [UP, OFF, UP, UP, OFF] and made.replica_of.tolist() == [0, 1, 2, 2, 3, 3, 4, 4]
    assert made.changes == [(0.0, 0, UP), (0.0, 2, UP), (0.0, 3, UP)]


def test_history_by_hand() -> None:
    """Replica 1 starts at 2 s, is up from 5 to 9; replica 0 is up throughout. The end is at 10 s."""
    some = [Replica(0, range(1)), Replica(1, range(1, 2))]
    seen = history(some, [(0.0, 0, UP), (9.0, 1, DRAINING), (2.0, 1, STARTING), (5.0, 1, UP)], 10.0)
    assert seen.time_s.tolist() == [0.0, 2.0, 5.0, 9.0]
    assert seen.seconds[0].tolist() == [0.0, 0.0, 10.0, 0.0, 0.0]
    assert seen.seconds[1].tolist() == [2.0, 3.0, 4.0, 1.0, 0.0]
    assert seen.counts[:, 1, OFF].tolist() == [1, 0, 0, 0] and not seen.counts[:, 0, OFF].any()
    assert seen.counts[:, 1, UP].tolist() == [0, 0, 1, 0] and seen.counts[:, 0, UP].tolist() == [1, 1, 1, 1]
    assert history(some, [(0.0, 0, UP), (12.0, 0, DOWN)], 10.0).seconds[0].tolist() == [0.0, 0.0, 10.0, 0.0, 0.0]


def traffic(cluster: Cluster, replicas: Replicas, **failures: Any) -> Traffic:
    env: Any = _env(cluster)
    fleet: Any = Bag(cluster=cluster, candidates=np.arange(cluster.replicas.size))
    return Traffic(FailureConfig(**failures), fleet, env, replicas)


def test_ended_requests_are_told_once() -> None:
    cluster = arrays(6)
    one = traffic(cluster, members(UP, UP, UP))
    one.env.calendar.book.num_sent = 4
    cluster.requests.status[:] = [FINISHED, WAITING, SHED, RUNNING, FINISHED, NOT_ARRIVED]
    assert one.ended_since().tolist() == [0, 2]
    cluster.requests.status[1] = REJECTED
    assert one.ended_since().tolist() == [1], "the fifth has not been sent"
    assert one.under_way == slice(3, 4)
    one.env.calendar.book.num_sent = 6
    assert one.ended_since().tolist() == [4]


def test_parked_requests_arrive_when_somebody_is_there() -> None:
    cluster = arrays(4)
    one = traffic(cluster, members(OFF, OFF, OFF))
    cluster.requests.status[:] = [PARKED, FINISHED, PARKED, WAITING]
    cluster.control[NUM_PARKED] = 2
    assert one.is_stuck
    cluster.control[NUM_PARKED] = 0
    for frozen, is_stuck in (([0, 1, 0], True), ([1, 0, 1], False)):
        cluster.replicas.frozen, cluster.replicas.num_outstanding[1], cluster.replicas.num_coming[1] = frozen, 1, 1
        assert one.is_stuck is is_stuck
    cluster.replicas.num_outstanding = cluster.replicas.num_coming = 0
    cluster.control[NUM_PARKED] = 2
    one.admit(3.0)
    assert one.env.calendar.book.num_events == 0 and one.fleet.candidates.size == 0
    one.replicas.change(4.0, 2, UP)
    one.admit(4.0)
    events = one.env.calendar.events[:2]
    assert one.fleet.candidates.tolist() == [2] and not one.is_stuck
    assert (events.subject.tolist(), events.kind.tolist()) == ([0, 2], [REQUEST_ARRIVES] * 2)
    assert events.time_s.tolist() == [4.0, 4.0] and cluster.requests.num_tries.tolist() == [1, 0, 1, 0]
    assert cluster.requests.status.tolist() == [NOT_ARRIVED, FINISHED, NOT_ARRIVED, WAITING]


def test_whether_a_fleet_goes_on() -> None:
    cluster = arrays(2)
    one = traffic(cluster, members(UP, UP, UP))
    cluster.requests.status[:] = [FINISHED, REJECTED]
    assert not one.goes_on
    for what in ("num_outstanding", "num_held"):
        cluster.replicas[what][1] = 1
        assert one.goes_on
        cluster.replicas[what][1] = 0
    cluster.control[NUM_PARKED] = 1
    assert one.goes_on
    cluster.control[NUM_PARKED] = 0
    one.env.calendar.book.end_open = 1
    assert one.goes_on, "one is to come"
    one.env.calendar.book.num_sent = 1
    assert not one.goes_on
    cluster.requests.status[1] = NOT_ARRIVED
    assert one.goes_on


def test_all_requests_are_looked_at_where_some_follow_others() -> None:
    cluster = arrays(3)
    one = traffic(cluster, members(UP, UP, UP))
    one.env.calendar.book.num_sent = 2
    assert one.under_way == slice(0, 2)
    one.env.dependents = np.array([1])
    assert one.under_way == slice(0, None), "the first, too"


@pytest.mark.parametrize("can_go", [True, False])
def test_requests_at_a_dead_replica_arrive_again_when_another_can_decode(can_go: bool) -> None:
    """Of three replicas the second is off with requests that come to it; the third is off and has none."""
    cluster = arrays(4)
    one, sent = traffic(cluster, members(UP, OFF, DOWN)), list[Any]()
    stranded: Any = Bag(
        has_roles=True, migrates=False, cluster=cluster, replicas=one.replicas,
        send_again=lambda *what: sent.append(what), env=Bag(decode=Bag(candidates=np.arange(2 if can_go else 0))),
    )  # fmt: skip
    cluster.replicas.num_coming, cluster.replicas.num_outstanding = [1, 2, 0], [0, 2, 0]
    Traffic.send_stranded(stranded, 5.0)
    assert sent == ([(1, 5.0)] if can_go else [])
    stranded.has_roles = False
    Traffic.send_stranded(stranded, 6.0)
    assert len(sent) == can_go
    stranded.migrates = True  # As with roles.
    Traffic.send_stranded(stranded, 6.0)
    assert len(sent) == 2 * can_go
    one.replicas.dead.add(1)
    Traffic.send_stranded(stranded, 6.0)
    assert len(sent) == 2 * can_go, "nobody has noticed"


@pytest.mark.parametrize(
    ("states", "has_roles", "is_stuck", "idle"),
    [
        ((OFF, DOWN), False, True, 1),
        ((OFF, DOWN), False, False, 0),  # nobody waits
        ((UP, DOWN), False, True, 0),
        ((OFF, STARTING), False, True, 0),
        ((UP, DOWN), True, True, 1),  # one pool of each role is needed
        ((UP, STARTING), True, True, 0),
    ],
)
def test_a_fleet_gives_up_when_requests_wait_and_nobody_comes(
    states: tuple[int, int], has_roles: bool, is_stuck: bool, idle: int
) -> None:
    manager: Any = Bag(
        pools=[0, 1], replicas=members(*states, pools=(0, 1)), idle_ticks=0,
        traffic=Bag(is_stuck=is_stuck, has_roles=has_roles, goes_on=True),
    )  # fmt: skip
    assert Manager._goes_on(manager) and manager.idle_ticks == idle
    manager.idle_ticks = 1000
    assert Manager._goes_on(manager) is (idle == 0) and manager.gave_up is (idle == 1)
    manager.idle_ticks, manager.traffic.goes_on = 0, False
    assert not Manager._goes_on(manager)


def _said(counts: list[int], gap_s: float = 1.0) -> list[str]:
    decisions = [(gap_s * i, count) for i, count in enumerate(counts)]
    manager: Any = Bag(
        pools=[Bag(decisions=[], cold_start_s=3.0), Bag(decisions=decisions, cold_start_s=3.0)],
        spec=Bag(name="mine"), config=Bag(controller=Bag(interval_s=2.0)),
    )  # fmt: skip
    manager._undoes_quickly = lambda pool: Manager._undoes_quickly(manager, pool)
    return Manager.flaps(manager)


def test_a_controller_flaps_that_undoes_a_quarter_of_its_changes_within_a_cold_start() -> None:
    up_and_down = [1, 2, 1, 2, 1, 2, 1, 2]
    assert "mine flaps: 6 of its 8 changes in pool 1" in _said(up_and_down)[0]
    assert len(_said(up_and_down, 4.0)) == 1 and not _said(up_and_down, 4.1), "twice its interval, or a cold start"
    assert not _said(up_and_down[:7]), "seven changes are few"
    assert not _said([1, 2, 1, 2, 1, 2, 3, 4]), "four turns are few"
    assert _said([1, 2, 1, 2, 1, 2, 1, 3])
    assert not _said([*range(1, 18), 16, 17, 16, 17, 16]), "5 of 22 are no quarter"
    assert _said([*range(1, 14), 12, 13, 12, 13, 12]), "5 of 18 are"


@pytest.mark.parametrize(("seconds", "is_refused"), [(86_400.0, False), (86_401.0, True)])
def test_a_replica_that_starts_for_more_than_a_day_is_refused(seconds: float, is_refused: bool) -> None:
    cold_start = {"node_s": seconds, "weights_s": 0.0, "compile_s": 0.0, "warmup_s": 0.0}
    given = scenario(fleet={"cold_start": cold_start}, time_limit_s=1e-9)
    if is_refused:
        with pytest.raises(ConfigError, match="86,401 s: a replica that takes longer than a day is never ready"):
            run(given)
    else:
        assert run(given).fleet is not None


@plain
@pytest.mark.parametrize("answer", [-1, 0, 2, 3, 4])
def test_helper_stops_at_a_replica_that_is_not_there(answer: int) -> None:
    """Of three; a router answers with 1 + the replica."""
    cluster = arrays(1)
    fleet: Any = Bag(cluster=cluster)
    is_there = 1 <= answer <= 3
    assert dispatch.ask(fleet, lambda fleet, request_id: answer, 0) == (answer - 1 if is_there else 0)
    assert cluster.control[FAULT] == (0 if is_there else contract.NO_SUCH_REPLICA)
    assert is_there or cluster.control[FAULT_REPLICA] == answer - 1


@plain
def test_helper_takes_back_what_others_keep_for_lost_requests() -> None:
    """The first was to be decoded in 2; the second loads KV into 1; the third waits there for its adapter; the fourth
    is where it is decoded."""
    cluster = arrays(4)
    q, replicas, tiers = cluster.requests, cluster.replicas, new_tiers(3, 4, 8, 1)
    q.status[:], q.replica[:] = [WAITING, MOVING, MOVING, RUNNING], [0, 1, 1, 2]
    q.decode_replica[:], q.held_blocks[:] = [2, NONE, NONE, 2], 0
    replicas.num_coming, replicas.num_landing, tiers.num_loading[:] = [5, 5, 5], [3, 3, 3], [0, 1, 0, 0]
    stopped: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evacuation, "stop_transfer", lambda flows, book, r, now_s: stopped.append(int(r)))
        freed = evacuation._take_back(cluster, new_transfers(4, 3, 1), tiers, new_calendar(3, 8), np.arange(4), 2.0)
    assert freed == set() and stopped == [1]
    assert replicas.num_coming.tolist() == [5, 3, 4] and replicas.num_landing.tolist() == [3, 2, 3]
    assert not tiers.num_loading.any()


@plain
def test_helper_takes_a_tier_to_be_up_but_for_its_outage() -> None:
    tier: Any = Bag(is_there=1, down_from_s=2.0, down_to_s=4.0)
    up = [tiers_of_kv._is_up(tier, now_s) for now_s in (1.9, 2.0, 3.9, 4.0)]
    assert up == [True, False, False, True]
    tier.is_there = 0
    assert not tiers_of_kv._is_up(tier, 0.0)


@plain
@pytest.mark.parametrize(("processed", "expected"), [(64, [0, 1, 2]), (47, [0, 1]), (15, [])])
def test_helper_writes_the_full_blocks_of_a_prefix(processed: int, expected: list[int]) -> None:
    """Three blocks of 16 tokens may be found again, of those that are computed."""
    cluster, tiers, written = arrays(2, replicas=1), new_tiers(1, 2, 8, 4), list[int]()
    cluster.requests.prefix_count, cluster.requests.processed = 3, processed
    cluster.replicas.block_size, cluster.replicas.blocks_per_hash = 16, 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers_of_kv, "_write", lambda tiers, r, count, key, now_s: written.append(key))
        patch.setattr(tiers_of_kv.prefix_cache, "key_of", lambda replica, r, position: position)
        tiers_of_kv.write_prefix(cluster, tiers, 0, 1, 1.0)
        assert written == expected
        cluster.requests.prefix_count = 0
        tiers_of_kv.write_prefix(cluster, tiers, 0, 1, 1.0)
        assert written == expected, "nobody shares it"


@plain
def test_helper_holds_a_load_against_a_prefill_alone() -> None:
    """500 tokens in chunks of 200, 1 ms a token, 0.5 s a sequence: 0.7 s for each 200."""
    cluster = arrays(1, replicas=1)
    cluster.replicas.max_batch_tokens, cluster.replicas.num_stages, cluster.replicas.row = 200, 1, 0
    axis = geometric_axis(4096.0)
    tables = blank(1)._replace(
        token_s=np.arange(1001.0)[None] * 1e-3, sequence_s=np.arange(65.0)[None] * 0.5, expert_s=np.zeros((1, 0)),
        prompt_s=np.zeros((1, 0)), prefill_s=np.zeros((1, axis.size, axis.size)), mixed_s=np.zeros((1, 0, 1, 1, 1)),
        decode_s=np.zeros((1, 65, axis.size)), skew=np.zeros((1, 0, 1)), chunk_axis=axis, kv_axis=axis,
        decodes_axis=axis,
    )  # fmt: skip
    replica: Any = Bag(state=cluster.replicas[0])
    assert tiers_of_kv._prefill_s(tables, replica, 500, 0) == pytest.approx(0.7 * 2.5)
    assert tiers_of_kv._prefill_s(tables, replica, 100, 0) == pytest.approx(0.6)


def test_every_iteration_is_logged_also_of_one_request() -> None:
    for explained in (False, True):
        done = run(scenario(), requests=offered([0.0], [10], [4]), explained=explained)
        assert done.log.used[0] == 4 and done.cluster.replicas.num_iterations[0] == 4
    parts = done.cluster.parts_ns.sum() * 1e-9
    assert parts == pytest.approx(float(done.cluster.requests.finished_s[0]))


# What a controller sees.


def test_what_is_seen_of_a_pool_that_is_not_there() -> None:
    """Nobody is up; what is booked for ever, of one that died, was no time in use."""
    cluster = arrays(4, replicas=2)
    one, a = traffic(cluster, members(OFF, DOWN)), cluster.replicas
    pool = PoolView(min_replicas=1, max_replicas=2, desired=2, cold_start_s=1.0, rates={1: 3.0})
    seen = Observer(ControllerConfig(), CONTROLLERS["fixed"], one.replicas, one, [pool], None)
    assert seen.sampled().shape == (0, 1, 13)
    a.busy_s, cluster.stage_free_s[:, 0] = [1.0, 1.0], [np.inf, 1.0]
    view = seen.view(0, 4.0, np.zeros(0, np.int64))
    assert (view.ready, view.kv_use, view.utilization, view.slo_met) == (0, 0.0, 0.5, None)
    pool.taken, pool.busy_s = 9, 9.0
    view = seen.view(0, 5.0, np.zeros(0, np.int64))
    assert (view.arrival_rate, view.utilization) == (0.0, 0.0), "never below"
    pool.busy_s = -9.0
    assert seen.view(0, 6.0, np.zeros(0, np.int64)).utilization == 1.0, "nor above"
    met = Observer(
        ControllerConfig(), CONTROLLERS["fixed"], one.replicas, one, [pool], lambda ids: np.isin(ids, [2, 3, 4])
    )
    assert met.view(0, 7.0, np.array([1, 2, 3, 5])).slo_met == 0.5


def test_what_is_seen_of_a_pool() -> None:
    """Two ranks, four seconds: busy for 1 and 5 s, of which 2 s lie beyond now: half of the time. Then a quarter."""
    cluster = arrays(4, replicas=2)
    one, a = traffic(cluster, members(UP, UP)), cluster.replicas
    pool = PoolView(min_replicas=1, max_replicas=2, desired=2, cold_start_s=1.0, rates={1: 3.0})
    seen = Observer(ControllerConfig(), CONTROLLERS["fixed"], one.replicas, one, [pool], None)
    a.busy_s, cluster.stage_free_s[:, 0] = [1.0, 5.0], [2.0, 6.0]
    a.num_taken, a.num_waiting, a.num_outstanding = [3, 5], [1, 0], [2, 3]
    a.free_blocks[:] = a.num_blocks // 4
    cluster.control[NUM_SHED] = 4
    view = seen.view(0, 4.0, np.zeros(0, np.int64))
    assert (view.utilization, view.arrival_rate, view.interval_s) == (0.5, 12 / 4.0, 4.0)
    assert (view.waiting, view.running, view.ready, view.starting, view.draining) == (1, 4, 2, 0, 0)
    assert view.kv_use == pytest.approx(1 - (a.num_blocks[0] // 4) / a.num_blocks[0])
    seen.take_samples(4.0)
    a.busy_s, cluster.stage_free_s[:, 0], a.num_taken = [2.0, 5.0], [5.0, 6.0], [4, 5]
    cluster.control[NUM_PARKED] = 2
    view = seen.view(0, 12.0, np.zeros(0, np.int64))
    # Of the second rank's 5 s, 2 fell into this interval, and a second of the first's: 3 of 16.
    assert view.utilization == pytest.approx(3 / 16) and (view.arrival_rate, view.waiting) == (3 / 8.0, 3)
    one.replicas.change(12.0, 1, DRAINING)
    assert seen.view(0, 13.0, np.zeros(0, np.int64)).draining == 1
    assert seen.samples[0][0][:6] == [4.0, 2, 0, 0, 0, 2]


def test_the_idlest_replicas_drain_first_and_starting_ones_before_them() -> None:
    cluster = arrays(2, replicas=4)
    cluster.replicas.num_outstanding = [5, 2, 2, 0]
    states = members(UP, UP, UP, STARTING)
    drained: list[int] = []
    manager: Any = Bag(
        replicas=states, pools=[Bag(desired=2)], traffic=Bag(cluster=cluster),
        lifecycle=Bag(drain=lambda i, _: drained.append(i), start=lambda i, _: drained.append(-i)), most=None,
    )  # fmt: skip
    manager._outstanding = lambda i: Manager._outstanding(manager, i)
    Manager._reconcile(manager, 0, 1.0)
    assert drained == [3, 2], "of equals the last"
    manager.replicas, manager.pools[0].desired = members(UP, OFF, DOWN, OFF), 3
    drained.clear()
    Manager._reconcile(manager, 0, 1.0)
    assert drained == [-1, -3]
    for desired, started in ((2, [-1]), (1, [])):
        manager.pools[0].desired = desired
        drained.clear()
        Manager._reconcile(manager, 0, 1.0)
        assert drained == started


def test_starting_replicas_drain_from_the_last_on() -> None:
    drained: list[int] = []
    manager: Any = Bag(
        replicas=members(UP, STARTING, STARTING, STARTING), pools=[Bag(desired=1)], traffic=Bag(cluster=None),
        lifecycle=Bag(drain=lambda i, _: drained.append(i)), _outstanding=lambda i: 0, most=None,
    )  # fmt: skip
    Manager._reconcile(manager, 0, 1.0)
    assert drained == [3, 2, 1]


# Replicas that fail in vain.


def test_every_fifty_failures_of_each_replica_somebody_looks_whether_anything_is_served() -> None:
    looked: list[int] = []
    lifecycle: Any = Bag(
        config=Bag(failures=FailureConfig()), replicas=members(UP, UP), failures=0, interruptions=0,
        events=FleetEvents(new_calendar(2, 512)), _noticed=None, moving=set(),
        traffic=Bag(cluster=arrays(1, replicas=2), env=_env(arrays(1, replicas=2))),
    )  # fmt: skip
    lifecycle._check_progress = lambda now_s: looked.append(lifecycle.failures)
    for now_s in range(201):
        lifecycle.replicas.state[:] = UP
        Lifecycle.fail(lifecycle, now_s % 2, float(now_s))
    assert looked == [100, 200]


@pytest.mark.parametrize(
    ("status", "arrival_s", "produced", "interruptions", "keeps_tokens", "refused"),
    [
        (WAITING, 5.0, 3, 0, True, "gave 3 tokens, and 10 are missing"),  # none since somebody looked last
        (WAITING, 5.1, 3, 0, True, ""),  # it has not arrived
        (FINISHED, 5.0, 3, 0, True, ""),  # nobody waits
        (WAITING, 5.0, 4, 8_000, True, ""),  # a token since: 8,000 x 10 / 4 failures to come
        (WAITING, 5.0, 4, 8_001, True, "gave 4 tokens, and 10 are missing"),  # two more than anybody waits for
        (WAITING, 5.0, 4, 0, False, "gave 1 requests, and 1 are missing"),  # tokens are lost again: only ends count
        (WAITING, 5.1, 4, 0, False, ""),
        (FINISHED, 5.0, 3, 0, False, ""),
    ],
)
def test_failures_in_vain_are_refused(
    status: int, arrival_s: float, produced: int, interruptions: int, keeps_tokens: bool, refused: str
) -> None:
    """At 5 s; when somebody looked last, there were three tokens, and one request had ended."""
    cluster = arrays(2, replicas=1)
    cluster.requests.status[:], cluster.requests.arrival_s[:] = [FINISHED, status], [0.0, arrival_s]
    cluster.replicas.num_produced[:] = produced
    config = Bag(failures=FailureConfig(keeps_tokens=keeps_tokens))
    before = 3 if keeps_tokens else 1
    lifecycle: Any = Bag(
        config=config, traffic=Bag(cluster=cluster), progress=before, failures=7, interruptions=interruptions
    )
    if refused:
        with pytest.raises(ConfigError, match=f"7 failures until 5 s {refused}"):
            Lifecycle._check_progress(lifecycle, 5.0)
    else:
        Lifecycle._check_progress(lifecycle, 5.0)
        assert lifecycle.progress == (produced if keeps_tokens else 1 + (status == FINISHED))


def test_the_first_look_at_failures_is_none_in_vain() -> None:
    cluster = arrays(1, replicas=1)
    cluster.requests.status[:], cluster.requests.arrival_s[:] = WAITING, 0.0
    config = Bag(failures=FailureConfig())
    lifecycle: Any = Bag(
        config=config, traffic=Bag(cluster=cluster), progress=Lifecycle.progress, failures=7, interruptions=7
    )
    Lifecycle._check_progress(lifecycle, 5.0)
    assert lifecycle.progress == 0


def test_what_was_planned_for_a_former_life_does_not_happen() -> None:
    events, happened = FleetEvents(new_calendar(1, 8)), []
    for at_s in (1.0, 2.0):
        events.at(at_s, events.in_life(0, lambda i, now_s: happened.append((i, now_s))))
    events.happen(0, 1.0)
    events.begin_life(0)
    events.happen(1, 2.0)
    assert happened == [(0, 1.0)]


# Shelves of keys.


def blocks(max_keys: int) -> BlockSet:
    def zeros(count: int) -> Any:
        return np.zeros(count, np.int64)

    slots = num_slots(max_keys)
    return BlockSet(zeros(max_keys), zeros(max_keys + 1), zeros(max_keys + 1), zeros(slots), zeros(slots), zeros(1))


def test_the_one_not_used_for_longest_or_the_first_is_evicted() -> None:
    """Room for three: 11 is used again before 14 comes."""
    for is_fifo, evicted, left in ((False, [12, 13, 11], [14, 15, 16]), (True, [11, 12, 13], [14, 15, 16])):
        one = blocks(3)
        assert [put(one, key, 3, is_fifo) for key in (11, 12, 13, 11)] == [0] * 4
        assert [put(one, key, 3, is_fifo) for key in (14, 15, 16)] == evicted
        assert one.used[0] == 3 and sorted(one.block_key.tolist()) == left


def test_a_key_that_is_there_takes_no_more_room() -> None:
    one = blocks(2)
    assert [put(one, key, 2, False) for key in (5, 5, 5, 6, 5)] == [0] * 5
    assert one.used[0] == 2 and put(one, 7, 2, False) == 6


def test_slots_for_keys() -> None:
    assert [num_slots(count) for count in (1, 2, 3, 4, 8)] == [4, 8, 8, 16, 32]


# Adapters.


def test_slots_of_adapters_by_hand() -> None:
    """Two slots. Adapters take 2, 3 and 4 s; two in use make iterations half as long again, and it is a straggler."""
    cluster = arrays(5, replicas=1)._replace(adapter_slots=new_slots(1, 2))
    cluster.replicas.straggling = 1.0
    cluster.requests.adapter[:] = [0, 1, 2, 0, 2]
    adapters = new_adapters(np.array([2.0, 3.0, 4.0]), np.array([0.0, 0.1, 0.5]), 1)
    assert take_adapter(cluster, adapters, 0, 0, 1.0) == 3.0
    assert cluster.replicas.slowdown[0] == pytest.approx(2 * 1.1 - 1)
    assert take_adapter(cluster, adapters, 0, 1, 1.5) == 6.0, "loaded one after the other"
    assert cluster.replicas.slowdown[0] == pytest.approx(2 * 1.5 - 1)
    assert take_adapter(cluster, adapters, 0, 2, 2.0) == np.inf, "both slots are in use"
    for request in (2, 4):
        wait_in_line(cluster, adapters, 0, request)
    assert take_adapter(cluster, adapters, 0, 3, 2.5) == 3.0, "it is being loaded"
    leave_adapter(cluster, adapters, 0, 0, 7.0)
    assert next_in_line(cluster, adapters, 0, 7.0) == np.inf, "another one uses it"
    leave_adapter(cluster, adapters, 0, 3, 8.0)
    assert cluster.replicas.slowdown[0] == pytest.approx(2 * 1.1 - 1)
    assert next_in_line(cluster, adapters, 0, 8.0) == 12.0
    assert leave_line(cluster, adapters, 0) == 2 and adapters.line[0, NUM_IN_LINE] == 1
    assert next_in_line(cluster, adapters, 0, 8.5) == 12.0 and leave_line(cluster, adapters, 0) == 4
    assert adapters.line[0, NUM_IN_LINE] == 0 and adapters.line[0, FIRST_IN_LINE] == NONE
    assert next_in_line(cluster, adapters, 0, 9.0) == np.inf
    figures = adapter_figures(adapters)
    assert (figures.requests, figures.loads) == (5, 3) and (figures.found, figures.waited) == (2 / 5, 2 / 5)
    assert cluster.adapter_slots.adapter[0].tolist() == [2, 1] and cluster.adapter_slots.num_users[0].tolist() == [2, 1]


def test_the_adapter_that_was_left_first_makes_room() -> None:
    cluster = arrays(3, replicas=1)._replace(adapter_slots=new_slots(1, 2))
    cluster.requests.adapter[:] = [0, 1, 2]
    adapters = new_adapters(np.ones(3), np.zeros(1), 1)
    for request, left_s in ((0, 9.0), (1, 4.0)):
        take_adapter(cluster, adapters, 0, request, 0.0)
        leave_adapter(cluster, adapters, 0, request, left_s)
    take_adapter(cluster, adapters, 0, 2, 10.0)
    assert cluster.adapter_slots.adapter[0].tolist() == [0, 2]
    leave_adapter(cluster, adapters, 0, 2, 9.0)
    take_adapter(cluster, adapters, 0, 1, 11.0)
    assert cluster.adapter_slots.adapter[0].tolist() == [1, 2], "of two that were left at one moment the first"


@pytest.mark.parametrize(("counts", "figures"), [([0, 0, 0], (0, 0.0, 0, 0.0)), ([1, 0, 1], (1, 1.0, 0, 1.0))])
def test_shares_of_few_requests_with_adapters(counts: list[int], figures: tuple[int, float, int, float]) -> None:
    adapters = new_adapters(np.ones(1), np.zeros(1), 1)
    adapters.counts[0] = counts
    one = adapter_figures(adapters)
    assert (one.requests, one.found, one.loads, one.waited) == figures


# Front ends.


def test_the_worker_that_is_free_first_takes_the_next() -> None:
    cluster = arrays(1, replicas=1)
    front = open_front_end(FrontEndConfig(per_request_s=1.0, per_prompt_token_s=0.1, workers=2), cluster, 1)
    assert is_before_router(front) and is_before_router(np.array([0.0, 1e-4, 0.0, 0.0]))
    assert not is_before_router(np.zeros(4)) and not is_before_router(np.array([1.0, 1.0, 1.0, 0.0]))
    sent = [(0.0, 20), (0.0, 0), (0.5, 0), (0.5, 10), (9.0, 0)]
    assert [leaves_front_end(front, at_s, tokens) for at_s, tokens in sent] == [3.0, 1.0, 2.0, 4.0, 10.0]


def test_front_ends_of_replicas_do_not_share_workers() -> None:
    cluster = arrays(1, replicas=3)
    front = open_front_end(FrontEndConfig(per_request_s=1.0, workers=2, per_replica=True), cluster, 3)
    passed = [leaves_replica_front_end(front, group, 0.0, 0) for group in (1, 1, 1, 2, 0, 1)]
    assert passed == [1.0, 1.0, 2.0, 1.0, 1.0, 2.0]
    forget_front_end(front, 1)
    passed = [leaves_replica_front_end(front, group, 0.0, 0) for group in (1, 1, 1, 2, 2, 0)]
    assert passed == [1.0, 1.0, 2.0, 1.0, 2.0, 1.0], "of the others nothing is forgotten"


def test_no_stage_of_a_new_life_waits_for_a_batch_of_the_former_one() -> None:
    """The first stage would have been at it until 3, the second one until 4; the replica dies before."""
    cluster = arrays(1, replicas=1, replica={"pipeline_parallel": 2})
    cluster.replicas[0].num_in_flight, cluster.replicas[0].oldest = 1, 0
    cluster.stage_start_s[0, 0], cluster.stage_end_s[0, 0], cluster.stage_free_s[0] = [1.0, 3.0], [3.0, 4.0], [3.0, 4.0]
    renew(cluster, 0)
    assert cluster.stage_free_s[0].tolist() == [1.0, 1.0]
