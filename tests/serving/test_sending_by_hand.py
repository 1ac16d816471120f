"""Requests that arrive, are computed, end and move on, one step at a time on small arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gnomon.serving.engine import arrivals, completions, loop
from gnomon.serving.engine.calendar import (
    ADAPTER_READY,
    FRONT_END_PASSED,
    KV_LANDS,
    KV_LOST,
    KV_READY,
    NEVER,
    REQUEST_ARRIVES,
    REQUEST_SENT,
    new_calendar,
)
from gnomon.serving.engine.log import new_log
from gnomon.serving.engine.state import (
    BUDGET,
    FINISHED,
    IN_FLIGHT,
    MOVING,
    NONE,
    NOT_ARRIVED,
    PARKED,
    REJECTED,
    RUNNING,
    SHED,
    WAITING,
    Cluster,
    replica_view,
)
from gnomon.serving.features import adapters, dependent_calls, handover
from gnomon.serving.features import tiers as tiers_of_kv
from gnomon.serving.features.transfers import TIMEOUT_S, new_transfers
from serving_kit import Bag, arrays, books, plain, with_books

Told = list[tuple[Any, ...]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Told]:
    """Let functions of a module only say that they were called, and with which numbers; some answer."""

    def replaced(module: Any, *names: str, **answers: Any) -> Told:
        calls: Told = []

        def one(name: str) -> Any:
            def called(*given: Any) -> Any:
                calls.append((name, *(float(x) for x in given if isinstance(x, int | float | np.number))))
                answer = answers.get(name)
                return answer.pop(0) if isinstance(answer, list) else answer

            return called

        for name in (*names, *answers):
            monkeypatch.setattr(module, name, one(name))
        return calls

    return replaced


def _events(env: Any) -> list[tuple[float, int, int]]:
    book = env.calendar.book[0]
    return [(float(e.time_s), int(e.kind), int(e.subject)) for e in env.calendar.events[: book.num_events]]


def _around(cluster: Cluster, **more: Any) -> tuple[Any, Any, Any]:
    """What is outside a cluster, an engine that says whom it wakes, and those it has woken."""
    woken: Told = []
    engine = Bag(proceed=lambda *given: woken.append(given[4:]), policies=(), router=None)
    env = Bag(calendar=new_calendar(cluster.replicas.size, 16), front=np.zeros(9), **more)
    return Bag(cluster=cluster, tables=None), engine, (env, woken)


# Arrivals.


@plain
def test_helper_brings_up_those_whose_batch_ends_before() -> None:
    cluster = arrays(1)
    cluster.next_end_s[:] = [1.0, 2.0, 0.5]
    fleet, engine, (_, woken) = _around(cluster)
    arrivals.advance_replicas(fleet, engine, None, 1.0)  # type: ignore[arg-type]
    assert woken == [(2, NEVER, 1.0)]


@plain
@pytest.mark.parametrize(
    ("first", "last", "budget", "served"), [(0, 2, 1, [0, 1, 2]), (1, 2, 9, [1, 2]), (2, 2, 9, []), (0, 5, 0, [])]
)
def test_helper_serves_arrivals_of_one_moment_together(
    first: int, last: int, budget: int, served: list[int], told: Callable[..., Told]
) -> None:
    cluster = arrays(5)
    cluster.requests.arrival_s[:], cluster.control[BUDGET] = [0.0, 1.0, 1.0, 2.0, 3.0], budget
    fleet, engine, _ = _around(cluster)
    calls = told(arrivals, "advance_replicas", "enqueue", "wake_groups", ask=2)
    arrivals.serve_arrivals(fleet, engine, None, first, last)  # type: ignore[arg-type]
    assert [call[1:] for call in calls if call[0] == "enqueue"] == [
        (2.0, request, float(request > 0)) for request in served
    ]
    assert [call[1:] for call in calls if call[0] == "wake_groups"] == [
        (one, after, float(one > 0)) for one, after in ((0, 1), (1, 3)) if one in served
    ]
    assert [call[1] for call in calls if call[0] == "advance_replicas"] == [
        float(one > 0) for one in (0, 1) if one in served
    ]


@plain
def test_helper_sends_through_the_front_end_of_the_replica(told: Callable[..., Told]) -> None:
    """A second for each request and a tenth for each of 20 tokens; the second rank of a group is served by the first
    one's."""
    cluster = with_books(2, replicas=2)
    cluster.replicas.group_first, cluster.replicas.group_size = 0, 2
    fleet, _, (env, _) = _around(cluster)
    env.front[:] = [1.0, 0.1, 1.0, 7.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    arrivals.send_to_replica(fleet, env, 1, 0, 5.0)
    assert _events(env) == [(10.0, FRONT_END_PASSED, 0)] and books(cluster, 1) == {"num_coming": 11}
    assert (cluster.requests.replica[0], cluster.requests.status[0]) == (1, MOVING)
    env.front[2] = 0.0
    calls = told(arrivals, "take_adapter_slot")
    arrivals.send_to_replica(fleet, env, 1, 1, 5.0)
    assert calls == [("take_adapter_slot", 1, 1, 5.0)] and cluster.requests.status[1] == NOT_ARRIVED


@plain
@pytest.mark.parametrize(
    ("adapter", "ready_s", "called", "events"),
    [
        (NONE, 9.0, "load_prefix", []),
        (3, 5.0, "load_prefix", []),  # it is there
        (0, 5.5, None, [(5.5, ADAPTER_READY, 1)]),
        (3, NEVER, "wait_in_line", []),
    ],
)
def test_helper_lets_a_request_wait_for_its_adapter(
    adapter: int, ready_s: float, called: str | None, events: list[Any], told: Callable[..., Told]
) -> None:
    cluster = with_books(2, replicas=2)
    cluster.requests.adapter[1] = adapter
    fleet, _, (env, _) = _around(cluster, adapters=None)
    calls = told(arrivals, "wait_in_line", "load_prefix", take_adapter=ready_s)
    arrivals.take_adapter_slot(fleet, env, 1, 1, 5.0)
    assert [name for name, *_ in calls if name != "take_adapter"] == ([called] if called else [])
    waits = called != "load_prefix"
    assert _events(env) == events and books(cluster, 1) == ({"num_coming": 11} if waits else {})
    assert (cluster.requests.status[1], cluster.requests.replica[1]) == ((MOVING, 1) if waits else (NOT_ARRIVED, NONE))


@plain
@pytest.mark.parametrize(("has_tiers", "loads", "status"), [(0, True, WAITING), (1, False, WAITING), (1, True, MOVING)])
def test_helper_lets_a_request_wait_for_kv_of_other_tiers(
    has_tiers: int, loads: bool, status: int, told: Callable[..., Told]
) -> None:
    cluster = with_books(2, replicas=2)
    cluster.replicas.num_waiting = 0
    fleet, _, (env, _) = _around(cluster, tiers=None, transfers=None)
    env.calendar.book.has_tiers = has_tiers
    told(arrivals, begin_load=loads)
    arrivals.load_prefix(fleet, env, 1, 1, 5.0)
    assert (cluster.requests.status[1], cluster.requests.replica[1]) == (status, 1)
    assert cluster.replicas.num_waiting[1] == int(status == WAITING)


@plain
@pytest.mark.parametrize(
    ("change", "after", "sent", "left"),
    [
        ({}, 2, [0, 1], 4),
        ({"budget": 0}, 0, [], 0),
        ({"sees_state": 1}, 2, [0, 1], 1),  # it looks at three replicas
        ({"sees_state": 1, "budget": 3}, 0, [], 0),
        ({"is_plain": 1}, 0, [], 4),
        ({"is_plain": 1, "replica": 1}, 2, [0, 1], 4),  # somebody has chosen already
        ({"status": FINISHED}, 2, [1], 4),
        ({"passes": False, "status_after": SHED}, 2, [], 4),
        ({"passes": False, "status_after": PARKED}, 2, [], 4),
        ({"uses": 4}, 0, [], 0),
        ({"uses": 2}, 0, [0], 0),
        ({"uses": 3}, 0, [0], -2),
    ],
)
def test_helper_serves_an_instant(
    change: dict[str, Any], after: int, sent: list[int], left: int, told: Callable[..., Told]
) -> None:
    """Two requests at 5 s and one later; the third replica is chosen, the second rank of a group of two."""
    cluster = arrays(3)
    q, control = cluster.requests, cluster.control
    q.arrival_s[:], q.replica[:2], q.status[0] = [5.0, 5.0, 6.0], change.get("replica", NONE), change.get("status", 0)
    cluster.replicas.group_first[:], control[BUDGET] = [0, 1, 1], change.get("budget", 4)
    fleet, engine, (env, woken) = _around(cluster)
    env.calendar.book.sees_state, env.calendar.book.is_plain = change.get("sees_state", 0), change.get("is_plain", 0)

    def proceed(*given: Any) -> None:
        woken.append(given[4:])
        control[BUDGET] -= change.get("uses", 0)

    def passes(fleet: Any, engine: Any, request_id: int, now: float) -> Any:
        q.status[request_id] = change.get("status_after", NOT_ARRIVED)
        return change.get("passes", True)

    engine.proceed = proceed
    calls = told(arrivals, "advance_replicas", "send_to_replica", "wake_groups", "give_up_dependents", choose=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrivals, "passes_admission", passes)
        patch.setattr(arrivals, "LOOKS", 1)
        assert arrivals.serve_instant(fleet, engine, env, None, 0) == after  # type: ignore[arg-type]
    r = change.get("replica", 2)
    assert [call[1:] for call in calls if call[0] == "send_to_replica"] == [(r, request, 5.0) for request in sent]
    assert [call[1:] for call in calls if call[0] == "wake_groups"] == ([(0.0, 2.0, 5.0)] if after else [])
    given_up = [call[1] for call in calls if call[0] == "give_up_dependents"]
    assert given_up == ([0.0, 1.0] if change.get("status_after") == SHED else [])
    is_brought_up = not change.get("sees_state", 0) and change.get("passes", True)
    assert woken == [(1, NEVER, 5.0)] * (len(sent) + ("uses" in change) if is_brought_up else 0)
    assert control[BUDGET] == left


@plain
def test_helper_takes_requests_in_before_the_router() -> None:
    """Half a second each, one after another; who comes at 2 s waits for the one before."""
    cluster = with_books(3)
    _, _, (env, _) = _around(cluster)
    env.front[:] = [0.5, 0.0, 0.0, 0.0, *[9.0] * 5]
    for request_id, sent_s in ((0, 1.75), (1, 2.0)):
        dependent_calls.enter_front_end(cluster, env, request_id, sent_s)
    assert cluster.requests.arrival_s.tolist()[:2] == [2.25, 2.75] and cluster.requests.front_s.tolist()[:2] == [
        0.5, 0.75
    ]  # fmt: skip
    dependent_calls._send(cluster, env, 2, 4.0)
    assert _events(env) == [(2.25, REQUEST_ARRIVES, 0), (2.75, REQUEST_ARRIVES, 1), (4.0, REQUEST_SENT, 2)]


# Adapters and shelves.


@plain
def test_helper_hands_a_slot_on_to_all_in_line_that_can_have_one(told: Callable[..., Told]) -> None:
    cluster = with_books(2)
    _, _, (env, _) = _around(cluster, adapters=None)
    calls = told(completions, "leave_adapter", next_in_line=[6.0, 5.0, NEVER], leave_line=[4, 3])
    completions._leave_adapter(cluster, env, 0, 1, 5.0)
    assert calls[0] == ("leave_adapter", 0, 1, 5.0)
    assert sorted(_events(env)) == [(5.0, ADAPTER_READY, 3), (6.0, ADAPTER_READY, 4)]


def test_slots_and_lines_at_the_start_and_of_one_that_is_gone() -> None:
    made = adapters.new_adapters(np.ones(2), np.zeros(1), 2)
    assert made.line.tolist() == [[0, NONE, NONE]] * 2 and made.counts.tolist() == [[0] * 3] * 2
    assert not made.free_s.any()
    made.free_s[:], made.line[:] = 5.0, 3
    adapters.forget_adapters(made, 1)
    assert made.line.tolist() == [[3, 3, 3], [0, NONE, NONE]] and made.free_s.tolist() == [5.0, 0.0]


def test_shelves_at_the_start() -> None:
    """Host memory and SSDs of three replicas, and the one store."""
    made = tiers_of_kv.new_tiers(3, 5, 8, 4)
    assert made.block_key.shape == (7, 8) and made.newer.shape == made.older.shape == (7, 9)
    assert made.slot_key.shape == made.slot_block.shape == (7, 32) and made.used.shape == (7, 1)
    assert made.loading.shape == (5, 4) and made.num_loading.shape == made.source.shape == (5,)
    assert made.loaded_tokens.shape == (3, 5) and made.block_bytes.shape == (3,)
    none = tiers_of_kv.new_tiers(3, 5, 0, 4)
    assert none.block_key.shape == none.slot_key.shape == (0, 0) and none.loading.shape == (0, 4)
    assert none.num_loading.shape == none.source.shape == (0,)


@plain
def test_helper_finds_how_far_a_prefix_goes_on() -> None:
    """Blocks 0 and 1 in host memory of the second replica of two, block 2 in the store, 0 in the GPU of the first."""
    cluster, made = with_books(1, replicas=2), tiers_of_kv.new_tiers(2, 1, 4, 4)
    made.tiers.max_blocks, made.tiers.is_shared[tiers_of_kv.REMOTE] = 4, 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers_of_kv.prefix_cache, "key_of", lambda replica, r, position: 70 + position)
        for tier, number, key in ((0, 1, 70), (0, 1, 71), (2, 4, 72)):
            tiers_of_kv._put(made, tier, number, key)

        def reach(source: int, r: int, first: int, last: int) -> int:
            return tiers_of_kv._run_in(cluster, made, source, r, 0, first, last)

        assert (reach(0, 1, 0, 3), reach(0, 1, 1, 3), reach(0, 1, 0, 1), reach(0, 0, 0, 3)) == (2, 2, 1, 0)
        assert (reach(2, 0, 2, 3), reach(2, 1, 2, 3), reach(2, 1, 1, 3)) == (3, 3, 1)
        assert reach(tiers_of_kv.PEERS, 0, 1, 3) == 1, "its blocks are only counted"
        cluster.replicas.tracks_blocks[0] = 1
        tiers_of_kv.prefix_cache.remember(replica_view(cluster, 0), 70, 5)
        assert (reach(tiers_of_kv.PEERS, 0, 0, 3), reach(tiers_of_kv.PEERS, 0, 0, 1)) == (1, 1)


@plain
@pytest.mark.parametrize(("is_fifo", "evicted"), [(0, 8), (1, 7)])
def test_helper_evicts_as_the_tier_does(is_fifo: int, evicted: int) -> None:
    made = tiers_of_kv.new_tiers(1, 1, 4, 1)
    made.tiers.max_blocks, made.tiers.is_fifo = 2, is_fifo
    assert [tiers_of_kv._put(made, 1, 1, key) for key in (7, 8, 7, 9)] == [0, 0, 0, evicted]


@plain
@pytest.mark.parametrize(
    ("writes_back", "held"), [((0, 1, 1), [[9], [8], [7]]), ((1, 0, 0), [[], [7, 8, 9], [7, 8, 9]])]
)
def test_helper_writes_back_only_what_is_evicted(writes_back: tuple[int, ...], held: list[list[int]]) -> None:
    """Of three tiers; nothing is evicted by what is not there."""
    made = tiers_of_kv.new_tiers(1, 1, 4, 1)
    made.tiers.is_there[:3], made.tiers.writes_back[:3] = 1, writes_back
    made.tiers.max_blocks = [1, 1, 4, 0] if writes_back[1] else 4
    for key in (7, 8, 9):
        tiers_of_kv._write(made, 0, 1, key, 1.0)
    assert [made.block_key[tier, : made.used[tier, 0]].tolist() for tier in range(3)] == held


@plain
@pytest.mark.parametrize(("tokens", "most", "chunk"), [(500, 200, 200), (100, 200, 100), (3000, 5000, 1000)])
def test_helper_computes_a_prefix_in_chunks(tokens: int, most: int, chunk: int) -> None:
    """As many tokens as a batch or the tables have; the mean chunk stands in the middle of them."""
    seen: list[Any] = []
    replica: Any = Bag(state=Bag(max_batch_tokens=most, row=3, num_stages=2))
    tables: Any = Bag(token_s=np.zeros((1, 1001)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers_of_kv, "iteration_s", lambda *given: seen.append(given) or 2.0)
        assert tiers_of_kv._prefill_s(tables, replica, tokens, 64) == 2.0 * tokens / chunk
    kv = 64 + 0.5 * (tokens - chunk)
    assert seen == [(tables, 3, 2, (chunk, 1, float(chunk * chunk), chunk * kv, 0, 0.0, 0.0, 0, kv), chunk)]


@plain
@pytest.mark.parametrize(
    ("prefill", "prefix", "per_hash", "last"),
    [(64, 3, 1, 3), (48, 3, 1, 2), (49, 3, 1, 3), (113, 3, 2, 6), (64, 1, 1, 1)],
)
def test_helper_loads_no_more_than_may_be_found(prefill: int, prefix: int, per_hash: int, last: int) -> None:
    """A token is left to compute; the first block is here."""
    cluster, made, seen = with_books(1), tiers_of_kv.new_tiers(1, 1, 8, 8), list[tuple[int, int]]()
    q, made.tiers.is_there[0] = cluster.requests[0], 1
    q.prefill_tokens, q.prefix_count = prefill, prefix
    cluster.replicas.prefix_cache, cluster.replicas.tracks_blocks, cluster.replicas.blocks_per_hash = 1, 1, per_hash
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers_of_kv.prefix_cache, "count_hits", lambda *_: 1)
        patch.setattr(tiers_of_kv.prefix_cache, "count_free_hits", lambda *_: 0)
        patch.setattr(tiers_of_kv, "_run_in", lambda *given: seen.append(given[-2:]) or 1)
        assert not tiers_of_kv.begin_load(cluster, None, made, None, None, 0, 0, 5.0)  # type: ignore[arg-type]
    assert seen == [(1, last)]


@plain
@pytest.mark.parametrize(
    ("source", "is_fifo", "free_blocks", "used"),
    [(0, 0, 9, [(0, 1), (0, 2)]), (0, 1, 9, []), (3, 0, 9, []), (2, 0, 5, [(2, 1), (2, 2)]), (2, 0, 4, None)],
)
def test_helper_loads_what_is_beyond_the_blocks_that_are_here(
    source: int, is_fifo: int, free_blocks: int, used: list[tuple[int, int]] | None
) -> None:
    """Block 0 is here, and free; 1 and 2 come from elsewhere. Two blocks stay free. What is loaded was used there."""
    cluster, made = with_books(1, replicas=2), tiers_of_kv.new_tiers(2, 1, 8, 4)
    state, q, asked = cluster.replicas[0], cluster.requests[0], list[Any]()
    made.tiers.is_there, made.tiers.is_fifo, made.tiers.latency_s = 1, is_fifo, [1.0, 2.0, 3.0, 4.0]
    made.block_bytes[:] = 8.0
    q.prefill_tokens, q.prefix_count, state.watermark_blocks = 64, 3, 2
    state.prefix_cache = state.tracks_blocks = state.blocks_per_hash = 1
    state.free_blocks, state.peak_blocks, cluster.replicas.frozen = free_blocks, 0, 0
    taken, put = iter((21, 22)), list[tuple[int, int]]()
    with pytest.MonkeyPatch.context() as patch:
        cache = tiers_of_kv.prefix_cache
        for name, answer in (("count_hits", 1), ("count_free_hits", 1), ("find", 20), ("share", None)):
            patch.setattr(cache, name, lambda *_, answer=answer: answer)
        patch.setattr(cache, "take_oldest", lambda replica: next(taken))
        patch.setattr(cache, "key_of", lambda replica, r, position: position)
        patch.setattr(tiers_of_kv, "_run_in", lambda cluster, made, tier, *_: 3 if tier == source else 1)
        patch.setattr(tiers_of_kv, "load_s", lambda moved, book, link, size, now: asked.append((link, size)) or 5.0)
        patch.setattr(tiers_of_kv, "_prefill_s", lambda *given: asked.append(given[-2:]) or 99.0)
        patch.setattr(tiers_of_kv, "start_load", lambda *given: asked.append(given[2:]))
        patch.setattr(tiers_of_kv, "_put", lambda made, tier, number, key: put.append((tier, key)))
        is_loading = tiers_of_kv.begin_load(cluster, None, made, None, None, 0, 0, 6.0)  # type: ignore[arg-type]
    assert is_loading is (used is not None)
    if used is None:
        return
    link = (1 + source) * 2 + (1 if source == 3 else 0)
    assert asked == [(link, 16.0), (32, 16), (0, link, 16.0, 6.0)] and put == used
    assert made.loading[0].tolist() == [20, 21, 22, 0] and made.num_loading[0] == 3 and q.loaded_from == 1
    assert made.loaded_tokens[0, source] == 32 and state.free_blocks == free_blocks - 2
    assert [tiers_of_kv.latency_s(cluster, made, (1 + one) * 2) for one in range(4)] == [1.0, 2.0, 3.0, 4.0]


# Requests that end.


def _reported(cluster: Cluster, r: int, *ids: int) -> None:
    state = cluster.replicas[r]
    state.num_reported, state.first_reported = len(ids), ids[0]
    for one, following in zip(ids, (*ids[1:], NONE), strict=True):
        cluster.requests.next_waiting[one] = following


@plain
@pytest.mark.parametrize("has", [0, 1])
def test_helper_does_what_follows_from_requests_that_ended(has: int, told: Callable[..., Told]) -> None:
    """A group of two ranks: three end in the first, of which one was rejected and one moves on, half a second after the
    batch ended; one with an adapter in the second, that would have gone to the first."""
    cluster = with_books(4, replicas=3)
    q, replicas = cluster.requests, cluster.replicas
    replicas.group_first[:2], replicas.group_size[:2], replicas.num_ready[:] = 0, 2, [0, 1, 1]
    q.status[:], q.last_reply_s[:] = [FINISHED, REJECTED, MOVING, FINISHED], [0.5, 0.25, 9.0, 0.0]
    q.adapter[:], q.decode_replica[:], q.prefilled_s[2] = [NONE, NONE, NONE, 0], [NONE, 0, 2, 0], 4.5
    _reported(cluster, 0, 0, 1, 2)
    _reported(cluster, 1, 3)
    moved = new_transfers(4, 3, 3)
    moved.settings[1] = 0.125
    more = {"transfers": moved, "tiers": None, "tool_cache": None, "dependent_first": None, "dependents": None}
    _, _, (env, _) = _around(cluster, **more)
    env.calendar.book.has_tiers = env.calendar.book.has_roles = has
    calls = told(completions, "write_prefix", "_leave_adapter", "send_next", "give_up_dependents", "note_end",
                 "send_dependents", "land_ready", "_count_leaving")  # fmt: skip
    completions.take_reports(cluster, env, 0, 4.0)
    said = {name: [call[1:] for call in calls if call[0] == name] for name, *_ in calls}
    assert said["send_next"] == [(4.5,), (4.25,), (4.0,)] and said["give_up_dependents"] == [(1, 4.0)]
    assert said["note_end"] == [(0, 4.0), (3, 4.0)] and said["send_dependents"] == [(0, 4.5), (3, 4.0)]
    assert said["_leave_adapter"] == [(1, 3, 4.0)] and said["land_ready"] == [(1, 4.0)]
    assert said.get("write_prefix", []) == ([(0, 0, 4.0), (0, 2, 4.0), (1, 3, 4.0)] if has else [])
    assert said.get("_count_leaving", []) == ([(0,), (1,)] if has else [])
    assert _events(env) == [(4.625, KV_READY, 2)] and replicas.num_reported.tolist() == [0, 0, 0]
    assert replicas.num_coming.tolist() == [9, 10, 10]


@plain
@pytest.mark.parametrize(
    ("waits", "reports", "asked"), [((0, 0), (0, 0), 0), ((0, 1), (0, 0), 1), ((1, 0), (0, 0), 1), ((0, 0), (0, 1), 1)]
)
def test_helper_lets_kv_move_while_there_is_room(
    waits: tuple[int, int], reports: tuple[int, int], asked: int, told: Callable[..., Told]
) -> None:
    """The first one can never land; of the next 4 of 20 tokens are there, and two bytes for each of the others move."""
    cluster = with_books(2, replicas=3)
    q, replicas, moved = cluster.requests, cluster.replicas, new_transfers(2, 3, 3)
    replicas.group_first[1:], replicas.group_size[1:] = 1, 2
    replicas.num_ready[1:], replicas.reports[1:] = waits, reports
    q.processed[1], q.prefill_replica[1], q.prefilled_s[1], q.scheduled_s[1] = 4, 0, 3.0, 1.0
    moved.bytes_per_token[:] = [7.0, 2.0, 7.0]
    _, _, (env, _) = _around(cluster, transfers=moved)
    env.calendar.reports[:] = [5, 5, 5]
    calls = told(completions, "_refuse", "start_transfer", "note_soonest", never_lands=[True, False, False],
                 may_land=[True, False], begin_landing=1)  # fmt: skip
    completions.land_ready(cluster, env, 1, 6.0)
    assert [call for call in calls if call[0] in ("_refuse", "start_transfer", "begin_landing")] == [
        ("_refuse", 1, 6.0), ("begin_landing", 6.0), ("start_transfer", 1, 0, 1, 32.0, 2.0, 6.0)
    ]  # fmt: skip
    assert calls[-1] == ("note_soonest", 1) and env.calendar.reports.tolist() == [5, asked, 5]


@plain
@pytest.mark.parametrize(
    ("kind", "status", "moving_s", "held", "steps", "events"),
    [
        (KV_READY, MOVING, -1.0, 2, ["push_ready", "land_ready"], [(6.0 + 8.0, KV_LOST, 1)]),
        (KV_READY, MOVING, 0.0, 2, ["push_ready", "land_ready"], []),  # it moves
        (KV_READY, REJECTED, -1.0, 2, ["push_ready", "land_ready"], []),
        (KV_LANDS, MOVING, 5.0, 2, ["land", "wake", "_free_held"], []),
        (KV_LOST, MOVING, -1.0, 2, ["prefill_here", "wake", "_free_held"], []),
        (KV_LOST, MOVING, 0.0, 2, [], []),
        (KV_LOST, REJECTED, -1.0, 1, ["_free_held"], []),
        (KV_LOST, REJECTED, -1.0, 0, [], []),
        (KV_LOST, RUNNING, -1.0, 2, [], []),
    ],
)
def test_helper_takes_a_step_on_the_way_of_kv(
    kind: int, status: int, moving_s: float, held: int, steps: list[str], events: list[Any], told: Callable[..., Told]
) -> None:
    cluster, moved = with_books(2, replicas=3), new_transfers(2, 3, 3)
    moved.settings[TIMEOUT_S] = 8.0
    q = cluster.requests[1]
    q.status, q.moving_s, q.held_blocks, q.decode_replica = status, moving_s, held, 2
    cluster.replicas.group_first[:], fleet_engine_env = [0, 1, 1], _around(cluster, transfers=moved)
    fleet, engine, (env, _) = fleet_engine_env
    env.calendar.book.time_s = 6.0
    calls = told(completions, "push_ready", "land_ready", "land", "wake", "_free_held", "prefill_here")
    completions.handle_move(fleet, engine, env, None, kind, 1)  # type: ignore[arg-type]
    assert [name for name, *_ in calls] == steps and _events(env) == events
    assert all(call[1:] == (1.0, 6.0) for call in calls if call[0] == "wake"), "its group"


@plain
def test_helper_wakes_a_group_and_asks_what_ended(told: Callable[..., Told]) -> None:
    cluster = with_books(1, replicas=2)
    fleet, engine, (env, woken) = _around(cluster)
    env.calendar.reports[:] = [0, 1]
    calls = told(completions, "take_reports")
    for group in (0, 1):
        completions.wake(fleet, engine, env, None, group, 3.0)  # type: ignore[arg-type]
    assert woken == [(0, 3.0, 3.0), (1, 3.0, 3.0)] and calls == [("take_reports", 1, 3.0)]


@plain
def test_helper_frees_what_the_prefill_replica_held(told: Callable[..., Told]) -> None:
    cluster = with_books(2, replicas=3)
    cluster.requests.prefill_replica[:], cluster.replicas.group_first[:] = [0, 2], [0, 1, 1]
    fleet, engine, (env, _) = _around(cluster)
    calls = told(completions, "free_held", "wake")
    completions._free_held(fleet, engine, env, None, 1, 3.0)  # type: ignore[arg-type]
    assert calls == [("free_held", 1), ("wake", 1, 3.0)]


@plain
@pytest.mark.parametrize("hits", [0, 1, 2])
def test_helper_gives_blocks_to_kv_that_comes(hits: int) -> None:
    """33 tokens take three blocks of 16, some of which are there."""
    cluster, found = with_books(1), list[int]()
    state, q = cluster.replicas[0], cluster.requests[0]
    state.num_ready, state.first_ready, state.free_blocks, state.peak_blocks, q.prefill_tokens = 1, 0, 9, 0, 33

    def hold_found(replica: Any, r: int, hits: int) -> None:
        found.append(hits)
        replica.requests[r].num_blocks = hits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handover.prefix_cache, "count_hits", lambda *_: hits)
        patch.setattr(handover, "hold_found", hold_found)
        assert handover.begin_landing(replica_view(cluster, 0), 6.0) == 0
    assert found == ([hits] if hits else []) and (q.status, q.processed) == (MOVING, 16 * hits)
    assert (q.num_blocks, q.moving_s, state.free_blocks) == (3, 6.0, 6 + hits)
    assert (state.num_landing, state.num_ready) == (11, 0)


@plain
@pytest.mark.parametrize(("free_blocks", "may"), [(2, True), (1, False)])
def test_helper_needs_fewer_blocks_for_kv_that_is_there(free_blocks: int, may: bool) -> None:
    """Of three blocks two are there; one of those is free, and would be taken."""
    cluster = with_books(1)
    state = cluster.replicas[0]
    state.num_ready, state.first_ready, state.num_holding, state.watermark_blocks = 1, 0, 0, 0
    state.free_blocks, cluster.requests.prefill_tokens = free_blocks, 33
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handover.prefix_cache, "count_hits", lambda *_: 2)
        patch.setattr(handover.prefix_cache, "count_free_hits", lambda *_: 1)
        assert bool(handover.may_land(replica_view(cluster, 0))) is may


@plain
def test_helper_frees_blocks_from_the_last_on() -> None:
    cluster, released = with_books(1), list[int]()
    q, cluster.replicas.tracks_blocks = cluster.requests[0], 1
    cluster.tables[0, 0, :3], q.held_blocks, q.held_table, cluster.replicas.free_blocks = [7, 8, 9], 3, 0, 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handover.prefix_cache, "release", lambda replica, block: released.append(int(block)))
        handover.free_held(replica_view(cluster, 0), 0)
    assert released == [9, 8, 7] and cluster.replicas.free_blocks[0] == 5 and q.held_blocks == 0


# A batch that ends.


@plain
@pytest.mark.parametrize(
    ("change", "processed", "produced", "goes_to"),
    [
        ({"processed": 4, "tokens": 8}, 12, 0, "running"),
        ({"processed": 12, "tokens": 8}, 21, 1, "running"),  # its prompt is complete
        ({"processed": 12, "tokens": 8, "may_step": True}, 21, 1, "join"),
        ({"processed": 4, "tokens": 8, "may_step": True}, 12, 0, "running"),
        ({"processed": 12, "tokens": 8, "leaves": True}, 20, 0, "hand_over"),
        ({"processed": 12, "tokens": 8, "leaves": True, "overlaps": 1}, 20, 0, "defer"),
        ({"processed": 12, "tokens": 7, "leaves": True}, 19, 0, "running"),
        ({"processed": 25, "tokens": 1}, 26, 1, "running"),
        ({"processed": 25, "tokens": 1, "may_step": True}, 26, 1, "join"),
        ({"processed": 25, "tokens": 1, "may_step": True, "may_join": False}, 26, 1, "running"),
        ({"processed": 21, "tokens": 3, "accepted": 2}, 24, 3, "running"),
        ({"processed": 28, "tokens": 3, "accepted": 2}, 30, 2, "finish"),
        ({"processed": 29, "tokens": 1}, 30, 1, "finish"),
        ({"processed": 29, "tokens": 1, "overlaps": 1}, 30, 1, "defer"),
    ],
)
def test_helper_counts_what_a_batch_computed(
    change: dict[str, Any], processed: int, produced: int, goes_to: str, told: Callable[..., Told]
) -> None:
    """Of a request with 20 tokens of prompt and 10 to make."""
    cluster, log, given = with_books(2), new_log(), {"accepted": 0, "may_join": True, "leaves": False, **change}
    state, q = cluster.replicas[0], cluster.requests[1]
    state.overlaps, state.num_running, state.reply_s = change.get("overlaps", 0), 1, 0.5
    q.processed, q.status, q.first_token_s, q.last_token_s = change["processed"], IN_FLIGHT, -1.0, -1.0
    if q.processed > 20:
        q.first_token_s, q.last_token_s = 0.0, 4.0
    had_token = bool(q.first_token_s >= 0.0)
    calls = told(loop, "defer", "finish", "hand_over", _accepted=given["accepted"], leaves=given["leaves"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.decode_group, "may_join", lambda replica, r: given["may_join"])
        patch.setattr(loop.decode_group, "join", lambda replica, r: calls.append(("join", r)))
        loop._end_for_request(replica_view(cluster, 0), log, 1, change["tokens"], given.get("may_step", False), 6.0)
    went = [name for name, *_ in calls if name not in ("_accepted", "leaves")]
    assert went == ([goes_to] if goes_to != "running" else []) and q.processed == processed
    if goes_to == "running":
        assert (q.status, state.num_running, cluster.running[0, 1]) == (RUNNING, 2, 1)
    left = {} if had_token else {"prefill_left": 10 - change["tokens"]}
    made = {"stalled": 0, "decode_left": 10 - produced, "num_produced": 10 + produced} if produced else {}
    assert books(cluster) == {name: n for name, n in {**left, **made}.items() if n != 10}
    if produced:
        assert (q.first_token_s, q.last_token_s) == (0.0 if had_token else 6.0, 6.0)
        assert had_token or q.first_reply_s == 0.5
        gaps = dict(zip(log.gap_s[: log.used[2]].tolist(), log.gap_count[: log.used[2]].tolist(), strict=True))
        assert gaps == ({2.0: 1} if had_token else {}) | ({0.0: produced - 1} if produced > 1 else {})


@plain
@pytest.mark.parametrize(
    ("change", "steps", "again"),
    [
        ({}, ["end", "form"], False),
        ({"ends_s": (6.5,)}, ["form"], False),
        ({"ends_s": (5.0, 6.0)}, ["end", "end", "form"], False),
        ({"num_in_flight": 3, "num_stages": 2}, ["end"], False),  # as many as there are stages
        ({"num_in_flight": 2, "num_stages": 2}, ["end", "form"], False),
        ({"overlaps": 1}, ["end", "form", "apply"], True),
        ({"overlaps": 1, "forms": 1}, ["end", "form", "apply"], False),
        ({"overlaps": 1, "ends_s": (6.5,)}, ["form"], False),  # nothing has ended: it was asked for an arrival
    ],
)
def test_helper_wakes_a_replica(change: dict[str, Any], steps: list[str], again: bool) -> None:
    """At 6 s a batch ends. What is formed ahead was formed when that one began."""
    cluster, done, ends = with_books(1), list[str](), [*change.get("ends_s", (6.0,)), NEVER]
    state = cluster.replicas[0]
    state.overlaps, state.num_stages = change.get("overlaps", 0), change.get("num_stages", 1)
    state.num_in_flight, state.next_end_s, state.forms_s = change.get("num_in_flight", 1), ends.pop(0), 1.0

    def end(*_: Any) -> None:
        done.append("end")
        state.num_in_flight = max(0, state.num_in_flight - 1)
        state.next_end_s = ends.pop(0)

    def form(*_: Any) -> None:
        done.append("form")
        state.num_in_flight += change.get("forms", 0)

    if "ends_s" in change and change["ends_s"][0] > 6.0:
        state.num_in_flight = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_end_oldest_batch", end)
        patch.setattr(loop, "_form_batches", form)
        patch.setattr(loop, "apply_deferred", lambda *_: done.append("apply"))
        assert bool(loop._wake(cluster, None, (), None, 0, 6.0)) is again  # type: ignore[arg-type]
    assert done == steps and bool(state.forms_s == 1.0) is ("apply" in steps or "form" not in steps)


@plain
@pytest.mark.parametrize(
    ("now", "next_end_s", "budget", "fast", "steps"),
    [
        (5.0, 9.0, 9, False, [("wake", 5.0)]),
        (5.0, 9.0, 0, False, [("wake", 5.0)]),
        (NEVER, 7.0, 1, False, [("wake", 7.0)]),
        (NEVER, 8.0, 9, False, []),  # not before 8 s
        (NEVER, 7.0, 0, False, []),
        (NEVER, 7.0, 9, True, [("fast", 8.0)]),
        (5.0, 7.0, 9, True, [("wake", 5.0)]),
    ],
)
def test_helper_runs_a_group_alone(
    now: float, next_end_s: float, budget: int, fast: bool, steps: list[tuple[str, float]]
) -> None:
    """Up to 8 s, or the next moment somebody else is asked."""
    cluster, done = with_books(1), list[tuple[str, float]]()
    state, cluster.control[BUDGET] = cluster.replicas[0], budget
    state.next_end_s = next_end_s

    def went(kind: str, at_s: float) -> bool:
        done.append((kind, at_s))
        state.next_end_s = 9.0
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "may_fast_forward", lambda *_: fast)
        patch.setattr(loop, "fast_forward", lambda *given: went("fast", given[-1]))
        patch.setattr(loop, "_wake", lambda *given: went("wake", given[-1]))
        loop.proceed(cluster, None, (), None, 0, now, 8.0)  # type: ignore[arg-type]
    assert done == steps


@plain
@pytest.mark.parametrize(
    ("prefix", "goes_to", "cached", "tracks", "expected"),
    [(0, NONE, 1, 0, 0), (1, NONE, 1, 0, 1), (0, 1, 1, 0, 1), (1, NONE, 0, 0, 0), (1, NONE, 1, 1, 0)],
)
def test_helper_tracks_blocks_from_the_first_that_can_be_found_on(
    prefix: int, goes_to: int, cached: int, tracks: int, expected: int
) -> None:
    cluster, tracked = with_books(1, replicas=2), list[int]()
    cluster.requests.prefix_count, cluster.requests.decode_replica = prefix, goes_to
    cluster.replicas.prefix_cache, cluster.replicas.tracks_blocks = cached, tracks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.prefix_cache, "track_blocks", lambda replica: tracked.append(1))
        patch.setattr(loop, "push_waiting", lambda *_: None)
        loop.enqueue(cluster, 0, 0, 3.0)
        assert len(tracked) == expected
        cluster.replicas.num_ready = 0
        handover.push_ready(replica_view(cluster, 1), 0)
    assert len(tracked) == expected + (expected and prefix), "one that moves, too"
