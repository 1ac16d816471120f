"""Steps of the engine, worked out by hand on small arrays: from one replica to another, from other tiers, calls that
follow others, the books of a batch that ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gnomon.serving.engine import (
    arrivals,
    batch_operations,
    completions,
    contract,
    decode_fast_path,
    decode_group,
    dispatch,
    launch,
    loop,
)
from gnomon.serving.engine.calendar import KV_LOST, NEVER, REQUEST_ARRIVES, REQUEST_SENT, new_calendar
from gnomon.serving.engine.log import log_gap, log_iteration, new_log
from gnomon.serving.engine.state import (
    BUDGET,
    FAULT,
    FAULT_REPLICA,
    FINISHED,
    FROM_DECODE,
    FROM_PREFILL,
    FROM_TRANSFER,
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
    replica_view,
)
from gnomon.serving.features import cancel, dependent_calls, handover, tiers, tool_cache, transfers
from gnomon.serving.policies import sglang, trtllm
from gnomon.timing.iteration import blank
from gnomon.timing.lookup import Shape
from serving_kit import Bag, arrays, books, plain, requests_of, run, scenario, with_books

# From the replica that prefills a request to the one that decodes it.


@plain
@pytest.mark.parametrize(
    ("goes_to", "first_at", "output", "expected"),
    [
        (NONE, FROM_DECODE, 10, False),  # nowhere
        (0, FROM_DECODE, 10, False),  # it is there
        (1, FROM_DECODE, 1, True),
        (1, FROM_PREFILL, 1, False),  # it is done with its first token
        (1, FROM_PREFILL, 2, True),
        (1, FROM_TRANSFER, 1, False),
    ],
)
def test_helper_says_who_leaves(goes_to: int, first_at: int, output: int, expected: bool) -> None:
    cluster = with_books(1, replicas=2)
    cluster.requests.decode_replica, cluster.replicas.first_token_at = goes_to, first_at
    cluster.requests.total_tokens = 20 + output
    assert bool(handover.leaves(replica_view(cluster, 0), 0)) is expected


@plain
@pytest.mark.parametrize(
    ("first_at", "processed", "produced", "stamp_s"),
    [(FROM_DECODE, 20, 10, -1.0), (FROM_TRANSFER, 21, 11, -1.0), (FROM_PREFILL, 21, 11, 5.0)],
)
@pytest.mark.parametrize(("max_moving", "counts"), [(11, 0), (10, 1)])
def test_helper_hands_a_request_over(
    first_at: int, processed: int, produced: int, stamp_s: float, max_moving: int, counts: int
) -> None:
    """Of those that move, so many do not count among those that run; what is held stays held."""
    cluster = with_books(1)
    cluster.replicas.first_token_at, cluster.replicas.max_moving, cluster.replicas.reply_s = first_at, max_moving, 0.5
    q = cluster.requests[0]
    q.processed, q.num_blocks, q.table, q.first_token_s, q.last_token_s, q.first_reply_s = 20, 2, 7, -1.0, -1.0, 0.0
    handover.hand_over(replica_view(cluster, 0), 0, 5.0)
    assert (q.status, q.processed, q.prefilled_s, q.num_blocks) == (MOVING, processed, 5.0, 0)
    assert (q.held_blocks, q.held_table, q.held_counts) == (2, 7, counts)
    assert (q.first_token_s, q.last_token_s, q.first_reply_s) == (stamp_s, stamp_s, 0.5 if stamp_s > 0 else 0.0)
    moved = {"num_moving": 11, "num_holding": 9} if counts == 0 else {}
    made = {"num_produced": 11} if produced == 11 else {}
    expected = {"num_outstanding": 9, "num_held": 11, "decode_left": 0, "stalled": 0, **moved, **made}
    assert books(cluster) == expected
    assert (cluster.replicas.num_reported[0], cluster.replicas.first_reported[0]) == (1, 0)


@plain
def test_helper_stamps_the_first_token_once() -> None:
    """One that was sent again has had it before."""
    cluster = with_books(1)
    cluster.replicas.first_token_at, cluster.replicas.max_moving = FROM_PREFILL, 99
    q = cluster.requests[0]
    q.first_token_s, q.first_reply_s = 0.0, 0.25
    handover.hand_over(replica_view(cluster, 0), 0, 5.0)
    assert (q.first_token_s, q.first_reply_s, q.last_token_s) == (0.0, 0.25, 5.0)


@plain
@pytest.mark.parametrize(("counts", "expected"), [(0, {"num_moving": 9}), (1, {"num_holding": 9})])
def test_helper_frees_what_was_held(counts: int, expected: dict[str, int]) -> None:
    cluster = with_books(4)
    q, state = cluster.requests[0], cluster.replicas[0]
    q.held_counts, q.held_blocks, q.held_table, state.free_blocks = counts, 3, 4, 7
    handover.free_held(replica_view(cluster, 0), 0)
    assert books(cluster) == {"num_held": 9, **expected} and (state.free_blocks, q.held_blocks) == (10, 0)
    state.prefix_cache, state.num_holding, state.num_moving = 1, 1 + counts, 2 - counts
    handover.free_held(replica_view(cluster, 0), 0)
    assert cluster.free_rows[0].tolist() == [0, 1, 4, 3], "its row can be had again"


@plain
def test_helper_keeps_those_that_wait_for_blocks_in_line() -> None:
    cluster = with_books(4)
    replica, state = replica_view(cluster, 0), cluster.replicas[0]
    state.num_ready, state.first_ready, state.last_ready = 0, NONE, NONE
    for r in (2, 0, 3, 1):
        handover.push_ready(replica, r)
    assert (state.num_ready, state.first_ready, state.last_ready) == (4, 2, 1)
    assert (cluster.requests.replica == 0).all() and cluster.requests.next_waiting.tolist() == [3, NONE, 0, 1]
    handover.unlink_ready(replica, 3)
    assert cluster.requests.next_waiting[0] == 1 and (state.num_ready, state.last_ready) == (3, 1)
    handover.unlink_ready(replica, 1)
    assert (state.num_ready, state.first_ready, state.last_ready) == (2, 2, 0)
    handover.unlink_ready(replica, 2)
    assert (state.num_ready, state.first_ready) == (1, 0) and handover.pop_ready(replica) == 0
    assert state.num_ready == 0


@plain
@pytest.mark.parametrize(
    ("change", "may", "never"),
    [
        ({}, True, False),
        ({"num_ready": 0}, False, False),
        ({"num_holding": 4}, False, False),  # of at most 4
        ({"free_blocks": 2}, False, False),  # 20 tokens need two blocks, and one stays free
        ({"num_blocks": 2, "free_blocks": 2}, False, True),
        ({"num_blocks": 3}, True, False),
    ],
)
def test_helper_lets_kv_in_when_there_is_room(change: dict[str, int], may: bool, never: bool) -> None:
    cluster = with_books(1)
    state = cluster.replicas[0]
    state.num_ready, state.first_ready, state.num_holding, state.max_running = 1, 0, 3, 4
    state.free_blocks, state.watermark_blocks, state.num_blocks = 3, 1, 50
    for name, value in change.items():
        state[name] = value
    replica = replica_view(cluster, 0)
    assert bool(handover.may_land(replica)) is may
    assert bool(handover.never_lands(replica)) is never


@plain
@pytest.mark.parametrize(
    ("first_at", "expected", "processed", "stamp_s"),
    [
        (FROM_DECODE, {"prefill_left": 11, "decode_left": 20}, 19, -1.0),
        (FROM_TRANSFER, {"decode_left": 19}, 21, 6.0),
        (FROM_PREFILL, {"decode_left": 19}, 21, -1.0),
    ],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_helper_lets_kv_land(
    first_at: int, expected: dict[str, int], processed: int, stamp_s: float, is_late: bool
) -> None:
    """What comes while a batch is under way, after the next one was formed, is acted on one batch later."""
    cluster = with_books(1)
    state, q = cluster.replicas[0], cluster.requests[0]
    state.first_token_at, state.num_running, state.overlaps = first_at, 0, int(is_late)
    state.num_in_flight, state.forms_s = 1, 5.9
    q.first_token_s, q.keyed_blocks = -1.0, 0
    handover.land(replica_view(cluster, 0), 0, 6.0)
    assert books(cluster) == {
        "num_landing": 9, "num_coming": 9, "num_taken": 11, "num_outstanding": 11, "stalled": 0, **expected
    }  # fmt: skip
    assert (q.status, q.processed, q.landed_s, q.first_token_s) == (RUNNING, processed, 6.0, stamp_s)
    assert (state.num_running, state.num_deferred) == ((0, 1) if is_late else (1, 0))
    assert is_late or cluster.running[0, 0] == 0


@plain
@pytest.mark.parametrize(
    ("first_at", "processed", "prefill", "produced"),
    [(FROM_DECODE, 20, 20, 10), (FROM_TRANSFER, 21, 20, 9), (FROM_PREFILL, 21, 21, 10)],
)
def test_helper_prefills_here_what_has_waited_too_long(
    first_at: int, processed: int, prefill: int, produced: int
) -> None:
    """A token that a client has is part of what is computed again; one that nobody has seen was not produced."""
    cluster = with_books(1, replicas=2)
    state, q = cluster.replicas[1], cluster.requests[0]
    state.first_token_at, state.num_waiting, state.waiting_tokens = first_at, 0, 0
    state.num_ready, state.first_ready = 1, 0
    q.processed, q.prefill_replica, q.decode_replica, q.num_restarts = processed, 0, 1, 2
    handover.prefill_here(replica_view(cluster, 1))
    assert books(cluster, 1) == {
        "num_coming": 9, "num_taken": 11, "num_outstanding": 11, "stalled": 0, "num_ready": 0,
        "prefill_left": 10 + prefill, "decode_left": 10 + 30 - prefill,
    }  # fmt: skip
    assert cluster.replicas.num_produced.tolist() == [produced, 10]
    assert (q.prefill_tokens, q.processed, q.decode_replica, q.num_restarts) == (prefill, 0, 1, 3)
    assert (q.status, state.num_waiting, state.waiting_tokens) == (WAITING, 1, prefill)


@plain
def test_helper_counts_whose_kv_leaves_together() -> None:
    """Of four that ended, three move on."""
    cluster = with_books(5)
    q, state, moved = cluster.requests, cluster.replicas[0], transfers.new_transfers(5, 1, 1)
    q.status[:], q.next_waiting[:] = [MOVING, FINISHED, MOVING, MOVING, MOVING], [1, 2, 3, 4, NONE]
    state.first_reported, state.num_reported = 0, 4
    completions._count_leaving(cluster, moved, 0)
    assert moved.flows.num_with.tolist() == [3, 0, 3, 3, 0]


@plain
def test_helper_refuses_whose_kv_can_never_land() -> None:
    cluster, sent, given_up = with_books(2), list[Any](), list[Any]()
    q, state, env = cluster.requests, cluster.replicas[0], Bag(calendar=new_calendar(1, 8))
    state.num_ready, state.first_ready, state.reply_s, state.num_rejected = 1, 1, 0.5, 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completions, "send_next", lambda cluster, env, at_s: sent.append(at_s))
        patch.setattr(completions, "give_up_dependents", lambda cluster, env, r, at_s: given_up.append((int(r), at_s)))
        completions._refuse(cluster, env, 0, 4.0)  # type: ignore[arg-type]
    assert (q.status[1], q.finished_s[1], q.last_reply_s[1]) == (REJECTED, 4.0, 0.5)
    assert books(cluster) == {"num_coming": 9, "num_ready": 0} and state.num_rejected == 4
    assert (sent, given_up) == ([4.5], [(1, 4.0)])
    event = env.calendar.events[0]
    assert (env.calendar.book[0].num_events, event.time_s, event.kind, event.subject) == (1, 4.0, KV_LOST, 1)


# KV on its way.


def _links(*capacity: float) -> tuple[transfers.Transfers, Any]:
    moved = transfers.new_transfers(4, 2, len(capacity))
    moved.links.capacity[:], moved.weights[:] = capacity, 0.0
    moved.flows.num_with = 1
    return moved, new_calendar(2, 8).book[0]


@plain
def test_helper_finds_the_transfer_that_ends_first() -> None:
    """A byte a second, shared by two: half a byte takes a second, and then the other has half a byte left."""
    moved, book = _links(1.0, 9.0, 9.0)
    transfers.start_load(moved, book, 0, 0, 1.0, 2.0)
    assert (book.next_drain_s, book.next_drained) == (3.0, 0)
    transfers.start_load(moved, book, 1, 0, 0.5, 2.0)
    assert (book.next_drain_s, book.next_drained, book.num_active) == (3.0, 1, 2)
    assert transfers.load_s(moved, book, 0, 0.25, 2.5) == pytest.approx(0.25 + 2 * 0.25)
    assert transfers.end_transfer(moved, book) == 1
    assert (book.next_drain_s, book.next_drained, book.num_active) == (3.5, 0, 1)
    assert (moved.flows.end_s[1], moved.flows.remaining.tolist()[:2]) == (3.0, [0.5, 0.0])
    transfers.start_load(moved, book, 2, 0, 0.0, 3.25)
    assert (book.next_drain_s, book.next_drained) == (3.25, 2), "nothing to move: at once"
    transfers.stop_transfer(moved, book, 2, 3.25)
    transfers.stop_transfer(moved, book, 0, 3.25)
    assert (book.next_drain_s, book.next_drained, book.num_active) == (NEVER, NONE, 0)


@plain
def test_helper_moves_nothing_between_replicas_while_links_are_down() -> None:
    moved, book = _links(2.0, 2.0, 1.0)
    transfers.start_transfer(moved, book, 0, 0, 1, 4.0, 9.0, 0.0)
    transfers.start_load(moved, book, 1, 2, 4.0, 0.0)
    assert (book.next_drain_s, book.next_drained) == (2.0, 0)
    transfers.switch_links(moved, book, 1, 1.0)
    assert moved.flows.remaining.tolist()[:2] == [2.0, 3.0] and moved.flows.share.tolist()[:2] == [0.0, 1.0]
    assert (book.next_drain_s, book.next_drained) == (4.0, 1), "another tier is no other replica"
    transfers.switch_links(moved, book, 0, 3.0)
    assert moved.flows.remaining.tolist()[:2] == [2.0, 1.0] and (book.next_drain_s, book.next_drained) == (4.0, 0)


@plain
@pytest.mark.parametrize(
    ("ahead_s", "num_with", "left"), [(1.0, 1, 60.0), (1.0, 2, 80.0), (9.0, 1, 25.0), (0.0, 1, 100.0)]
)
def test_helper_has_moved_layers_while_others_were_computed(ahead_s: float, num_with: int, left: float) -> None:
    """100 bytes at 40 a second, shared with those of the same batch; of the last layer are 25."""
    moved, book = _links(40.0, 90.0)
    moved.settings[[transfers.OVERLAP, transfers.LAST_PART]], moved.flows.num_with = (1.0, 0.25), num_with
    transfers.start_transfer(moved, book, 0, 0, 1, 100.0, ahead_s, 5.0)
    assert (moved.flows.remaining[0], moved.flows.bytes[0], moved.flows.start_s[0]) == (left, 100.0, 5.0)
    assert book.next_drain_s == pytest.approx(5.0 + left / 40.0)


# KV from other tiers.


def _shelves(replicas: int = 3) -> tuple[Cluster, tiers.Tiers]:
    cluster, made = with_books(2, replicas=replicas), tiers.new_tiers(replicas, 2, 8, 4)
    cluster.requests.prefix_count, cluster.requests.prefill_tokens = 3, 64
    cluster.replicas.blocks_per_hash = cluster.replicas.prefix_cache = 1
    for r in range(replicas):
        cluster.replicas.num_holding[r] = cluster.replicas.num_moving[r] = 0
        tiers.prefix_cache.track_blocks(replica_view(cluster, r))
        cluster.replicas.num_holding[r] = cluster.replicas.num_moving[r] = 10
    cluster.replicas.free_blocks, cluster.replicas.watermark_blocks = 20, 2
    made.tiers.is_there, made.tiers.is_fifo, made.block_bytes[:] = 1, 1, 8.0
    made.tiers.is_shared[tiers.REMOTE] = 1
    return cluster, made


@plain
@pytest.mark.parametrize(
    ("change", "link", "count"),
    [
        ({}, 3 + 1, 2),  # host memory of replica 1, of three: behind the links between replicas
        ({"reach": (1, 3, 3, 3)}, 3 + 3 + 1, 3),  # an SSD has more; of equals the first
        ({"reach": (1, 1, 3, 3)}, 3 + 6, 3),  # the store is one for all
        ({"reach": (1, 1, 1, 2)}, 3 + 9, 2),  # replica 0; not itself
        ({"reach": (1, 1, 1, 2), "block_bytes": 9.0}, 3 + 9 + 2, 2),  # replica 0 is of another kind: replica 2
        ({"reach": (1, 1, 1, 2), "block_size": 8}, 3 + 9 + 2, 2),
        ({"reach": (1, 1, 1, 2), "frozen": 1}, 3 + 9 + 2, 2),
        ({"reach": (0, 0, 0, 0)}, None, 0),
        ({"prefix_count": 0}, None, 0),
        ({"prefix_cache": 0}, None, 0),
        ({"free_blocks": 4}, 3 + 1, 2),  # two stay free
        ({"free_blocks": 3}, None, 0),
        ({"prefill_s": 3.0}, 3 + 1, 2),  # two blocks of 8 bytes at 8 bytes a second, and a second more: 3 s
        ({"prefill_s": 2.9}, None, 0),
        ({"prefill_s": 2.9, "always": 1}, 3 + 1, 2),
        ({"down": 1, "reach": (3, 2, 1, 1)}, 3 + 3 + 1, 2),  # host memory is down
    ],
)
def test_helper_loads_from_the_place_that_has_most(change: dict[str, Any], link: int | None, count: int) -> None:
    """Replica 1 holds nothing itself; blocks of 16 tokens, of which three may be found."""
    cluster, made = _shelves()
    moved, book = transfers.new_transfers(2, 3, 15), new_calendar(3, 8).book[0]
    moved.links.capacity = 8.0
    reach, seen = change.get("reach", (2, 2, 2, 2)), list[tuple[int, int]]()
    made.tiers.latency_s, made.always_loads[0] = 1.0, change.get("always", 0)
    cluster.requests.prefix_count[1] = change.get("prefix_count", 3)
    cluster.replicas.prefix_cache = change.get("prefix_cache", 1)
    cluster.replicas.free_blocks[1] = change.get("free_blocks", 20)
    cluster.replicas.frozen[0], made.block_bytes[0] = change.get("frozen", 0), change.get("block_bytes", 8.0)
    cluster.replicas.block_size[0] = change.get("block_size", 16)
    if "down" in change:
        made.tiers.down_from_s[0], made.tiers.down_to_s[0] = 0.0, 9.0

    def run_in(cluster: Any, made: Any, source: int, r: int, request_id: int, first: int, last: int) -> int:
        seen.append((first, last))
        return reach[source]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers, "_run_in", run_in)
        patch.setattr(tiers.prefix_cache, "key_of", lambda replica, r, position: 70 + position)
        patch.setattr(tiers, "_prefill_s", lambda *_: change.get("prefill_s", 99.0))
        tables: Any = None
        is_loading = tiers.begin_load(cluster, tables, made, moved, book, 1, 1, 5.0)
    state, flow = cluster.replicas[1], moved.flows[1]
    assert is_loading is (link is not None) and set(seen) <= {(0, 3)}
    if link is None:
        assert not made.num_loading.any() and book.num_active == 0 and books(cluster, 1) == {}
        assert made.loaded_tokens[1].tolist() == [0, 0, 0, 0, 32 if "prefill_s" in change else 0]
        return
    source = link // 3 - 1
    assert (flow.rank, flow.bytes, made.num_loading[1], made.source[1]) == (link, 8.0 * count, count, source)
    assert made.loaded_tokens[1].tolist() == [16 * count * (one == source) for one in range(5)]
    assert (state.free_blocks, state.peak_blocks) == (change.get("free_blocks", 20) - count, 30 - state.free_blocks)
    assert books(cluster, 1) == {"num_landing": 11, "num_coming": 11} and cluster.requests.loaded_from[1] == 0
    assert len(set(made.loading[1, :count].tolist())) == count, "blocks of its own"
    assert tiers.latency_s(cluster, made, link) == 1.0
    # What was loaded can be found.
    keyed: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers.prefix_cache, "key_of", lambda replica, r, position: 70 + position)
        patch.setattr(tiers.prefix_cache, "remember", lambda replica, key, block: keyed.append(key))
        cluster.requests.replica[1] = 1
        tiers.end_load(cluster, made, 1, 7.0)
    assert keyed == [70 + i for i in range(count)] and made.num_loading[1] == 0
    assert books(cluster, 1) == {} and state.free_blocks == change.get("free_blocks", 20)
    assert (cluster.requests.loaded_s[1], cluster.requests.loaded_from[1]) == (7.0, NONE)


@plain
@pytest.mark.parametrize(
    ("replica", "prefix", "is_up", "processed", "keys"),
    [(1, 3, 1, 40, [0, 1]), (NONE, 3, 1, 40, []), (1, 0, 1, 40, []), (1, 3, 0, 40, []), (1, 1, 1, 40, [0])],
)
def test_helper_stores_what_a_lost_request_has_computed(
    replica: int, prefix: int, is_up: int, processed: int, keys: list[int]
) -> None:
    cluster, made = _shelves()
    made.tiers.is_there[tiers.REMOTE], put = is_up, list[tuple[int, int, int]]()
    q = cluster.requests[0]
    q.replica, q.prefix_count, q.processed = replica, prefix, processed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers.prefix_cache, "key_of", lambda replica, r, position: position)
        patch.setattr(tiers, "_put", lambda made, tier, number, key: put.append((tier, int(number), key)))
        tiers.store_prefixes(cluster, made, np.arange(1), 1.0)
    assert put == [(tiers.REMOTE, 6, key) for key in keys]


@plain
def test_helper_writes_on_what_the_tier_above_evicts() -> None:
    """One place in host memory, an SSD that gets what that evicts, and a store that gets all at once."""
    _, made = _shelves(replicas=1)
    made.tiers.max_blocks, made.tiers.is_fifo, made.tiers.writes_back = [1, 2, 8, 0], 0, [0, 1, 0, 0]
    for key in (7, 8, 9):
        tiers._write(made, 0, 1, key, 1.0)
    assert [made.used[number, 0] for number in range(3)] == [1, 2, 3]
    assert made.block_key[0, 0] == 9 and made.block_key[1, :2].tolist() == [7, 8]
    assert made.block_key[2, :3].tolist() == [7, 8, 9]


def test_host_memory_and_disk_of_one_replica_are_forgotten() -> None:
    """Of three replicas the third."""
    made = tiers.new_tiers(3, 1, 4, 1)
    made.used[:], made.block_key[:] = 4, 9
    tiers.forget_tiers(made, 2, 3)
    assert made.used[:, 0].tolist() == [4, 4, 0, 4, 4, 0, 4] and made.block_key[:, 0].tolist() == [9, 9, 0, 9, 9, 0, 9]
    tiers.forget_tiers(tiers.new_tiers(3, 1, 0, 1), 2, 3)


# Calls that follow others.


def test_nobody_follows_anybody() -> None:
    assert [one.size for one in dependent_calls.dependents_of(requests_of([0.0], [1], [1]))] == [0, 0, 0]


def test_who_follows_whom() -> None:
    """1 and 2 wait for 0, and 3 for both of them."""
    made = replace(
        requests_of([0.0] * 4, [1] * 4, [1] * 4),
        parents=np.array([0, 0, 1, 2], np.int32), parent_offsets=np.array([0, 0, 1, 2, 4], np.int64),
    )  # fmt: skip
    first, dependents, left = dependent_calls.dependents_of(made)
    assert (first.tolist(), dependents.tolist(), left.tolist()) == ([0, 2, 3, 4, 4], [1, 2, 3, 3], [0, 1, 1, 2])


def _agents(cluster: Cluster, front: Any = None) -> Any:
    first, dependents = np.array([0, 2, 3, 4, 4]), np.array([1, 2, 3, 3])
    front = np.zeros(4) if front is None else front
    return Bag(
        calendar=new_calendar(1, 8), dependent_first=first, dependents=dependents, parents_left=np.array([0, 1, 1, 2]),
        think_s=np.array([0.0, 0.5, 0.25, 1.0]), front=front,
    )  # fmt: skip


@plain
def test_helper_sends_calls_when_all_that_they_wait_for_have_ended() -> None:
    cluster = with_books(4)
    env, events = _agents(cluster), []
    for request_id, ended_s in ((0, 1.0), (1, 2.0), (2, 3.0)):
        dependent_calls.send_dependents(cluster, env, request_id, ended_s)
        events.append(int(env.calendar.book[0].num_events))
    assert events == [2, 2, 3] and cluster.requests.arrival_s.tolist()[1:] == [1.5, 1.25, 4.0]
    assert env.calendar.events.kind[:3].tolist() == [REQUEST_ARRIVES] * 3
    env = _agents(cluster, np.array([0.1, 0.0, 0.0, 0.0]))
    cluster.requests.status[2] = SHED
    dependent_calls.send_dependents(cluster, env, 0, 1.0)
    assert env.calendar.book[0].num_events == 1, "one was given up"
    assert (env.calendar.events[0].kind, env.calendar.events[0].subject) == (REQUEST_SENT, 1)


@plain
def test_helper_gives_up_all_that_would_have_followed() -> None:
    cluster = with_books(4)
    q, env = cluster.requests, _agents(cluster)
    q.status[1] = FINISHED
    dependent_calls.give_up_dependents(cluster, env, 0, 6.0)
    assert q.status.tolist() == [NOT_ARRIVED, FINISHED, SHED, SHED] and cluster.control[NUM_SHED] == 2
    assert q.finished_s.tolist()[2:] == [6.0, 6.0] and q.arrival_s.tolist()[2:] == [6.0, 6.0]
    env.dependent_first = np.zeros(0, np.int64)
    dependent_calls.give_up_dependents(cluster, env, 0, 6.0)
    dependent_calls.send_dependents(cluster, env, 0, 6.0)
    assert cluster.control[NUM_SHED] == 2 and env.calendar.book[0].num_events == 0


@plain
def test_helper_sends_the_next_request_of_a_closed_loop() -> None:
    cluster = with_books(4)
    env = _agents(cluster)
    dependent_calls.send_first(cluster, env, 0, 2, 4)
    book = env.calendar.book[0]
    assert (book.num_sent, book.end_closed, book.num_events) == (2, 4, 2)
    dependent_calls.send_next(cluster, env, 5.0)
    env.think_s = np.zeros(0)
    dependent_calls.send_next(cluster, env, 6.0)
    dependent_calls.send_next(cluster, env, 7.0)
    assert (book.num_sent, book.num_events, book.num_answered) == (4, 4, 3)
    assert cluster.requests.arrival_s.tolist()[2:] == [5.25, 6.0]
    dependent_calls.send_first(cluster, env, 3, 5, 4)
    assert (book.num_sent, book.end_closed, book.num_events) == (4, 4, 5), "no more than there are"


# Who gets an arriving request.


@plain
@pytest.mark.parametrize(
    ("verdict", "tries", "places", "passes", "status"),
    [
        (2, 0, 1, True, NOT_ARRIVED), (1, 0, 1, False, SHED), (0, 0, 1, False, SHED), (2, 0, 0, False, PARKED),
        (1, 3, 1, True, NOT_ARRIVED), (1, 3, 0, False, PARKED),
    ],
)  # fmt: skip
def test_helper_turns_away_or_parks(verdict: int, tries: int, places: int, passes: bool, status: int) -> None:
    """Who was let in once is not asked again."""
    cluster = with_books(1)
    q = cluster.requests[0]
    q.num_tries, fleet = tries, Bag(cluster=cluster, candidates=np.arange(places))
    engine: Any = Bag(admission=lambda fleet, request_id: verdict)
    assert dispatch.passes_admission(fleet, engine, 0, 3.0) is passes  # type: ignore[arg-type]
    assert (q.status, q.num_tries) == (status, max(tries, int(status != SHED)))
    assert cluster.control[NUM_SHED] == (status == SHED) and cluster.control[NUM_PARKED] == (status == PARKED)
    assert q.finished_s == (3.0 if status == SHED else -1.0)
    assert cluster.control[FAULT] == (contract.ADMISSION_RAISED if verdict == 0 else 0)
    assert verdict > 0 or cluster.control[FAULT_REPLICA] == NONE


@plain
@pytest.mark.parametrize(
    ("is_down", "decides", "prefill", "goes", "coming"),
    [(0, 2, 1, 0, [10, 10, 11]), (0, 2, 3, 2, [10, 10, 10]), (0, 1, 1, 2, [10, 10, 10]), (1, 2, 1, 2, [10, 10, 10])],
)
def test_helper_chooses_who_decodes_then_who_prefills(
    is_down: int, decides: int, prefill: int, goes: int, coming: list[int]
) -> None:
    """Routers answer with 1 + the replica: the third decodes."""
    cluster = with_books(1, replicas=3)
    nothing, moved = np.zeros(0), transfers.new_transfers(1, 3, 3)
    moved.settings[transfers.IS_DOWN] = is_down
    names = ("draws", "parameters", "memory", "predicted_output", "known", "candidates")
    inputs = Bag(**dict.fromkeys(names, nothing))
    fleet = Bag(cluster=cluster, tables=None, gate=nothing, gate_memory=nothing, **vars(inputs))
    calendar = new_calendar(3, 8)
    calendar.book.has_roles = 1
    env: Any = Bag(decode=inputs, decider=nothing, transfers=moved, calendar=calendar)
    engine: Any = Bag(decode_router=lambda *_: 3, decider=lambda *_: decides, router=lambda *_: prefill)
    assert dispatch.choose(fleet, engine, env, 0) == goes  # type: ignore[arg-type]
    assert cluster.requests.decode_replica[0] == 2 and cluster.replicas.num_coming.tolist() == coming
    assert cluster.requests.prefill_replica[0] == (prefill - 1 if decides == 2 and not is_down else NONE)


@plain
def test_helper_takes_in_what_arrives_at_one_instant() -> None:
    requests = with_books(5).requests
    requests.arrival_s[:] = [0.0, 1.0, 1.0, 1.0, 2.0]
    assert [arrivals._together_until(requests, first) for first in range(5)] == [1, 4, 4, 4, 5]


@plain
def test_helper_wakes_each_group_once() -> None:
    cluster, woken = with_books(4, replicas=2), list[Any]()
    cluster.requests.replica[:], cluster.replicas.group_first = [1, NONE, 1, 0], [0, 1]
    engine: Any = Bag(proceed=lambda *what: woken.append(what[4:]), policies=())
    fleet: Any = Bag(cluster=cluster, tables=None)
    log: Any = None
    arrivals.wake_groups(fleet, engine, log, 0, 4, 2.5)
    assert woken == [(1, 2.5, 2.5), (0, 2.5, 2.5)]


# Books of a batch.


@plain
def test_helper_puts_an_arrival_into_the_queue() -> None:
    cluster = with_books(2)
    state = cluster.replicas[0]
    state.num_waiting, state.waiting_tokens, state.num_in_flight = 0, 0, 1
    loop.enqueue(cluster, 0, 1, 3.0)
    assert books(cluster) == {
        "num_outstanding": 11, "num_taken": 11, "prefill_left": 30, "decode_left": 20, "stalled": 0
    }  # fmt: skip
    assert (cluster.requests.status[1], cluster.requests.replica[1], state.first_waiting) == (WAITING, 0, 1)
    state.overlaps, state.forms_s = 1, 2.9
    loop.enqueue(cluster, 0, 0, 3.0)
    assert (state.num_waiting, state.num_deferred, state.first_deferred) == (1, 1, 0), "it hears of it later"


@plain
def test_helper_rejects_the_first_of_a_queue() -> None:
    """One that had made 3 of its 10 tokens: they are part of what it would have computed again."""
    cluster = with_books(2)
    state, q = cluster.replicas[0], cluster.requests[1]
    q.prefill_tokens, state.first_waiting, state.num_waiting, state.reply_s = 23, 1, 1, 0.5
    state.num_rejected, state.num_reported, state.reports = 4, 0, 1
    loop._reject_first_waiting(cluster, 0, 8.0)
    assert books(cluster) == {"num_outstanding": 9, "prefill_left": -13, "decode_left": 3, "stalled": 0}
    assert (q.status, q.finished_s, q.last_reply_s, state.num_rejected) == (REJECTED, 8.0, 0.5, 5)
    assert (state.num_reported, state.first_reported, state.num_waiting) == (1, 1, 0)
    q.prefill_tokens, state.first_waiting, state.num_waiting, state.reports = 20, 1, 1, 0
    loop._reject_first_waiting(cluster, 0, 8.0)
    assert state.num_reported == 1 and state.decode_left == 3 - 10


def _answering(*sizes: int) -> Any:
    """A policy that forms batches of these sizes, and takes nobody from the queue; all that it was asked."""
    asked = list[float]()

    def policy(replica: Any) -> None:
        replica.state.answered = 1
        replica.state.batch_size = sizes[len(asked)]
        asked.append(float(replica.state.now_s))

    return (policy,), asked


@plain
@pytest.mark.parametrize(
    ("change", "sizes", "times_asked", "rejected"),
    [
        ({"num_waiting": 0, "num_outstanding": 0}, (0,), 1, 0),  # nobody waits, whoever was the first
        ({}, (3,), 1, 0),
        ({}, (0, 0, 0), 3, 1),  # asked twice in vain: the first goes, and then nobody waits
        ({"num_outstanding": 2}, (0,), 1, 0),  # another one runs
        ({"num_landing": 1}, (0,), 1, 0),  # what it holds will be free
        ({"num_held": 1}, (0,), 1, 0),
        ({"never_fits": 1}, (0,), 1, 1),
    ],
)
def test_helper_rejects_who_can_never_run(
    change: dict[str, int], sizes: tuple[int, ...], times_asked: int, rejected: int
) -> None:
    cluster = with_books(1)
    state = cluster.replicas[0]
    state.policy, state.first_waiting, state.num_waiting, state.num_outstanding = 0, 0, 1, 1
    state.num_landing = state.num_held = state.num_grouped = state.num_rejected = state.num_reported = 0
    for name, value in change.items():
        if name != "never_fits":
            state[name] = value
    cluster.requests.never_fits[0] = int("num_waiting" in change or "never_fits" in change)
    policies, asked = _answering(*sizes)
    assert loop._choose_or_reject(cluster, policies, 0, 4.0) == sizes[-1]
    assert asked == [4.0] * times_asked and (state.num_rejected, cluster.control[FAULT]) == (rejected, 0)


@plain
@pytest.mark.parametrize(
    ("change", "sizes", "times_asked", "launched", "fault"),
    [
        ({}, (0, 0), 2, 0, contract.LEFT_ALONE),  # it has requests, and does nothing about them
        ({}, (0, 1), 2, 1, 0),
        ({}, (1,), 1, 1, 0),
        ({"num_stages": 2, "num_in_flight": 1}, (0,), 1, 0, 0),
        ({"num_in_flight": 1}, (), 0, 0, 0),
        ({"frozen": 1}, (), 0, 0, 0),
        ({"num_outstanding": 0, "num_waiting": 0}, (0,), 1, 0, 0),
        ({"num_landing": 1}, (0,), 1, 0, 0),
        ({"num_held": 1}, (0,), 1, 0, 0),
        ({"num_deferred": 1}, (0,), 1, 0, 0),
    ],
)
def test_helper_forms_batches_until_all_stages_have_one(
    change: dict[str, int], sizes: tuple[int, ...], times_asked: int, launched: int, fault: int
) -> None:
    cluster, at = with_books(1), list[float]()
    state = cluster.replicas[0]
    state.policy = state.num_landing = state.num_held = state.num_grouped = state.num_in_flight = 0
    state.num_outstanding, state.num_waiting, state.num_stages = 2, 0, 1
    for name, value in change.items():
        state[name] = value

    def launched_at(cluster: Any, tables: Any, first: int, now: float) -> None:
        state.num_in_flight += 1
        at.append(now)

    policies, asked = _answering(*sizes)
    tables: Any = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "launch", launched_at)
        loop._form_batches(cluster, tables, policies, 0, 4.0)
    assert (len(asked), at) == (times_asked, [4.0] * launched)
    assert cluster.control[FAULT] == fault and (not fault or cluster.control[FAULT_REPLICA] == 0)


@plain
def test_helper_stops_where_a_policy_fails() -> None:
    cluster = with_books(1)
    state = cluster.replicas[0]
    state.policy, state.num_waiting, state.batch_size, state.in_step, state.answered = 0, 0, 7, 1, 1
    assert loop._choose_batch(cluster, (lambda replica: None,), 0, 4.0) == 0
    assert (state.now_s, state.in_step, cluster.control[FAULT]) == (4.0, 0, contract.POLICY_RAISED)


@plain
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True), ({"num_stages": 2}, False), ({"num_speculative": 1}, False), ({"steppable": 0}, False),
        ({"num_running": 1}, False), ({"steppable": 2}, True),
    ],
)  # fmt: skip
def test_helper_lets_decodes_step_together(change: dict[str, int], expected: bool) -> None:
    state: Any = Bag(**{"num_stages": 1, "num_speculative": 0, "steppable": 1, "num_running": 0, **change})
    log: Any = Bag(members=np.zeros((0, 2)))
    assert loop._may_step(state, log) is expected
    log.members = np.zeros((1, 2))
    assert not loop._may_step(state, log)


@plain
def test_helper_accepts_drafts_up_to_the_first_refusal() -> None:
    """Chances of 1, 1 and 0; then of 1 each."""
    cluster = with_books(1)
    cluster.replicas.num_speculative, cluster.requests.draw = 3, 12345
    replica = replica_view(cluster, 0)._replace(acceptance=np.array([1.0, 1.0, 0.0]))
    assert loop._accepted(replica, 0) == 2
    draw = 12345
    for _ in range(3):
        draw = draw * 48_271 % (2**31 - 1)
    assert cluster.requests.draw[0] == draw
    assert loop._accepted(replica._replace(acceptance=np.ones(3)), 0) == 3


@plain
@pytest.mark.parametrize(
    ("free_s", "decodes", "interval", "reply_s", "after_s"),
    [
        (0.0, 4, 1, 0.5 + 0.5 * 6.0 * 0.1, 10.0 + 5 * 0.1),
        (0.0, 4, 4, 0.5 + 0.5 * 3.0 * 0.1, 10.0 + 2 * 0.1),
        (11.0, 4, 4, 0.5 + 1.0 + 0.5 * 3.0 * 0.1, 11.0 + 2 * 0.1),
    ],
)
def test_helper_writes_messages_one_after_another(
    free_s: float, decodes: int, interval: int, reply_s: float, after_s: float
) -> None:
    """A batch of four decodes that step together, and two prompts, one of which is complete. In the mean a token waits
    for half of the messages, and its own."""
    cluster = with_books(2)
    state, flight = cluster.replicas[0], cluster.flights[0, 0]
    state.stream_interval, state.message_s, state.base_reply_s, state.writer_free_s = interval, 0.1, 0.5, free_s
    flight.decodes, flight.num_grouped, flight.num_requests, flight.end_s = decodes, 4, 6, 10.0
    cluster.flight_requests[0, 0, 4:6], cluster.flight_tokens[0, 0, 4:6] = [0, 1], [12, 12]
    cluster.requests.processed[:] = [8, 7]
    loop._write_messages(cluster, 0, 0)
    assert state.reply_s == pytest.approx(reply_s) and state.writer_free_s == pytest.approx(after_s)


def test_gaps_between_tokens_are_logged_once() -> None:
    """Four tokens one by one are three gaps; all drafts accepted, four at a time, are one gap and three of nothing."""
    done = run(scenario(), requests=requests_of([0.0], [10], [4]))
    assert done.log.gap_count[: done.log.used[2]].sum() == 3 and (done.log.gap_s[: done.log.used[2]] > 0).all()
    drafts = {"num_kv_blocks": 60, "speculative": {"num_tokens": 3, "acceptance": 1.0}}
    done = run(scenario(replica=drafts), requests=requests_of([0.0], [10], [5]))
    gaps = done.log.gap_s[: done.log.used[2]]
    assert done.log.gap_count[: done.log.used[2]].tolist() == [1, 3] and gaps[0] > 0.0 and gaps[1] == 0.0


__all__ = ["IN_FLIGHT"]


def test_the_running_list_is_sorted_by_arrival() -> None:
    replica = Bag(state=Bag(num_running=5), running=np.array([7, 2, 9, 3, 1, 0]))
    plain(batch_operations.sort_running_by_arrival)(replica)
    assert replica.running.tolist() == [1, 2, 3, 7, 9, 0], "what is behind them stays"


def test_a_prompt_that_is_given_up_ends_with_what_is_in_flight() -> None:
    """4 of 20 tokens are there, 8 and 3 are in the last two of three stages; another request's 7 are beside them, and 5
    are left over from a batch that has ended."""
    cluster = arrays(2, replicas=1, replica={"pipeline_parallel": 3, "num_kv_blocks": 30})
    state, q = cluster.replicas[0], cluster.requests[0]
    stages = cluster.flights.shape[1]
    state.oldest, state.num_in_flight, state.prefill_left, state.decode_left = stages - 1, 2, 100, 100
    for place, (members, tokens, count) in {
        stages - 1: ((0, 1), (8, 7), 2),
        0: ((0, 0), (3, 5), 1),
        1: ((0, 0), (5, 5), 2),
    }.items():
        cluster.flight_requests[0, place, :2], cluster.flight_tokens[0, place, :2] = members, tokens
        cluster.flights.num_requests[0, place] = count
    q.processed, q.prefill_tokens, q.total_tokens = 4, 20, 30
    cancel._end_with_batch(cluster, cancel._view(cluster, 0), 0)
    assert (q.prefill_tokens, q.total_tokens) == (4 + 8 + 3, 4 + 8 + 3 + 1)
    assert (state.prefill_left, state.decode_left) == (100 - 5, 100 - 9)
    q.processed, q.prefill_tokens, q.total_tokens, state.decode_left = 22, 20, 30, 100
    cancel._end_with_batch(cluster, cancel._view(cluster, 0), 0)
    assert (q.total_tokens, state.decode_left) == (23, 93), "the token in flight is its last"


@plain
def test_helper_forgets_blocks_that_nobody_has_used_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 s at 10 s: those last used at 1 and 8 s, not at 8.5; the second is not there, and somebody uses the third."""
    cluster, gone = with_books(1), list[int]()
    blocks = [3, NONE, 4, 5, 6]
    monkeypatch.setattr(tool_cache.prefix_cache, "key_of", lambda replica, call, position: blocks[position])
    monkeypatch.setattr(tool_cache.prefix_cache, "find", lambda replica, key: key)
    monkeypatch.setattr(tool_cache.prefix_cache, "forget", lambda replica, block: gone.append(block))
    cluster.requests.keyed_blocks, cluster.requests.replica = 5, 0
    cluster.block_users[0], cluster.block_users[0, 4] = 0, 1
    used_s = np.zeros((1, 30))
    used_s[0, [3, 5, 6]] = 1.0, 8.5, 8.0
    none = np.zeros(0, np.int64)
    cache = tool_cache.ToolCache(np.array([0.0, 2.0]), none, none, none, used_s)
    tool_cache.expire(cluster, cache, 0, 10.0)
    assert gone == [3, 6]


@plain
def test_helper_makes_only_steps_of_decodes_alone_in_one_loop() -> None:
    """Four decodes that step together, at step 33, of whom two need a block more for step 34; whoever ends first does
    so at step 36. Whatever is as little in the way as said here, it is not; one more, and it is."""
    cluster, (growth,) = with_books(1), arrays(1, replicas=1, batching={"block_size": 16}).growth
    now: dict[str, float] = {
        "steppable": 2, "num_waiting": 0, "num_running": 0, "num_grouped": 4, "num_deferred": 0, "steps": 33,
        "next_finish": 35, "num_off_beat": 0, "message_s": 0.0, "group_size": 1, "num_speculative": 0, "checked": 0,
        "max_in_batch": 4, "max_batch_tokens": 4, "free_blocks": 3,
    }  # fmt: skip
    assert growth.size == 16
    cluster.growth[0, 2], cluster.flights.num_grouped, cluster.flights.num_requests = 2, 4, 4
    log: Any = Bag(members=np.zeros((0, 2)))

    def may(cluster: Cluster = cluster, log: Any = log, **changes: float) -> bool:
        for name, value in (now | changes).items():
            cluster.replicas[name] = value
        return bool(decode_fast_path.may_fast_forward(cluster, log, 0))

    assert may() and may(num_grouped=3) and may(num_grouped=1) and may(free_blocks=4, max_in_batch=9)
    in_the_way = {
        "steppable": 1, "num_waiting": 1, "num_running": 1, "num_grouped": 0, "num_deferred": 1, "steps": 34,
        "next_finish": 34, "num_off_beat": 1, "message_s": 0.1, "group_size": 2, "num_speculative": 1, "checked": 1,
        "max_in_batch": 3, "max_batch_tokens": 3, "free_blocks": 2,
    }  # fmt: skip
    assert {name: may(**{name: value}) for name, value in in_the_way.items()} == dict.fromkeys(in_the_way, False)
    assert may(steps=32, free_blocks=1), "nobody needs a block for that step"
    assert not may(steps=32, free_blocks=0)
    assert not may(log=Bag(members=np.zeros((1, 2))))
    assert not may(cluster._replace(flights=np.resize(cluster.flights, (1, 2)).view(np.recarray)))
    assert not may(cluster._replace(recorded_first=np.zeros(1)))
    cluster.flights.num_requests = 5
    assert not may()


@plain
def test_helper_says_what_a_batch_contains() -> None:
    """Two decodes of 30 and 40 tokens step together; by themselves there are a decode of 50 with a draft token, the
    last of the prompt of 20 tokens that one has in full, and 8 tokens of a prompt of which 5 are computed."""
    cluster = with_books(5)
    state, replica, q = cluster.replicas[0], replica_view(cluster, 0), cluster.requests
    state.num_grouped, state.in_step, state.step_kv, state.step_kv_max, state.batch_size = 2, 1, 70, 40, 5
    q.prefill_tokens, q.processed = 20, [30, 40, 50, 20, 5]
    replica.batch[:5], replica.batch_tokens[:5] = range(5), [1, 1, 2, 1, 8]
    assert launch._shape(replica) == (13, 6, 65.0, 60.0, 3, 120.0, 50.0, 4, 25.0)
    state.step_kv_max = 60
    assert launch._shape(replica).decode_kv_max == 60.0
    state.in_step = 0
    assert launch._shape(replica) == (13, 6, 65.0, 60.0, 3, 120.0, 50.0, 4, 25.0)
    state.num_grouped, state.batch_size = 0, 0
    assert launch._shape(replica) == (0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0, 0.0)


@plain
def test_helper_says_what_a_batch_computes_and_reads() -> None:
    """2 FLOP a token, 3 a pair (32 + 50 + 200), 5 a sequence; 11 bytes a KV token (200 + 13). Of experts each of
    which a token asks with 0.25, two tokens read 1 - 0.75 squared."""
    shape, beyond = Shape(100, 4, 64.0, 50.0, 3, 200.0, 90.0, 3, 13.0), np.full(5, np.inf)
    done = launch.work_of((2.0, 3.0, 5.0, 7.0, 11.0), beyond, shape, 1000.0, 6, 0.5)
    assert done == (200 + 846 + 20, 1000 + 11 * 213, 3.0, 0)
    beyond[0] = 99.0
    assert launch.work_of((2.0, 3.0, 5.0, 7.0, 11.0), beyond, shape, 1000.0, 6, 0.5).beyond_measured == 1
    work = np.array([[0.0] * 9, [2.0, 3.0, 5.0, 100.0, 11.0, 0.0, 0.0, 50.0, 0.25]])
    tables: Any = Bag(work=work)
    assert launch.weight_bytes_of(tables, 1, 2) == 100 + 50 * 0.4375
    work[1, 7] = 0.0
    assert launch.weight_bytes_of(tables, 1, 2) == 100.0
    cluster = with_books(1)
    launch.note_flight(cluster.flights[0, 0], 7, shape, done, 1.5, 2.5)
    flight = cluster.flights[0, 0]
    assert (flight.number, flight.start_s, flight.end_s, flight.tokens, flight.prefill_tokens) == (7, 1.5, 2.5, 100, 97)
    assert (flight.decodes, flight.decode_kv, flight.flops, flight.bytes) == (3, 200.0, *done[:2])
    assert (flight.kv_block_s, flight.beyond_measured) == (3.0, 0)


@plain
def test_helper_enters_a_batch_into_the_books_of_its_replica() -> None:
    """Ten times six blocks of 30 for half a second, from 2 s on, the second in flight. Without a token it may run 1,000
    times more than twice what it has to prefill, or had when that began."""
    cluster = with_books(3, replicas=2)
    tables: Any = Bag(work=np.zeros((1, 9)), measured=np.zeros((1, 5)))
    state, flight = cluster.replicas[1], cluster.flights[1, 0]
    tables.work[0, :5] = 2.0, 3.0, 5.0, 7.0, 11.0
    for name in ("num_iterations", "busy_s", "tokens_computed", "kv_block_s", "flops", "bytes", "num_beyond_measured"):
        cluster.replicas[name] = 10
    state.free_blocks, state.batch_size, state.num_grouped, state.in_step, state.num_waiting = 24, 3, 2, 1, 4
    cluster.stage_start_s[1, 0, 0], cluster.stage_end_s[1, 0, 0], cluster.control[BUDGET] = 2.0, 2.5, 10
    state.num_in_flight, state.stalled, state.prefill_left, state.stall_limit, state.next_end_s = 0, 0, 50, 5000, 9.0
    shape = Shape(100, 4, 64.0, 50.0, 3, 200.0, 90.0, 3, 13.0)
    launch._take_off(cluster, tables, 1, 0, shape, 3.0)
    assert (flight.num_requests, flight.num_grouped, flight.number, flight.start_s, flight.end_s) == (
        3,
        2,
        11,
        2.0,
        3.0,
    )
    assert (state.busy_s, state.tokens_computed, state.kv_block_s) == (10.5, 110, 13.0)
    assert (state.flops, state.bytes, state.num_beyond_measured) == (10 + 1066, 10 + 7 + 11 * 213, 11)
    assert (cluster.control[BUDGET], state.num_in_flight, state.formed_waiting, state.next_end_s) == (9, 1, 4, 3.0)
    assert (state.stalled, state.stall_limit, cluster.control[FAULT]) == (1, 1100, 0)
    state.in_step, state.prefill_left = 0, 20
    launch._take_off(cluster, tables, 1, 0, shape, 4.0)
    assert (flight.num_grouped, state.num_in_flight, state.next_end_s) == (0, 2, 3.0), "the first one ends first"
    assert (state.stalled, state.stall_limit) == (2, 1100)
    state.prefill_left, state.stalled = 100, 1199
    launch._take_off(cluster, tables, 1, 0, shape._replace(tokens=0), 4.0)
    assert (state.stalled, state.stall_limit) == (1199, 1100), "nothing is computed"
    launch._take_off(cluster, tables, 1, 0, shape, 4.0)
    assert (state.stalled, state.stall_limit, cluster.control[FAULT]) == (1200, 1200, 0)
    launch._take_off(cluster, tables, 1, 0, shape, 4.0)
    assert (cluster.control[FAULT], cluster.control[FAULT_REPLICA]) == (contract.NO_PROGRESS, 1)


@plain
def test_helper_notes_the_soonest_end_of_32_neighbours() -> None:
    cluster = arrays(1, replicas=34)
    cluster.soonest_s[:], cluster.replicas.group_first = (9.0, 3.0), np.arange(34)
    launch.note_next_end(cluster, 31, 4.0)
    launch.note_next_end(cluster, 32, 5.0)
    assert cluster.soonest_s.tolist() == [4.0, 3.0]
    assert (cluster.next_end_s[31], cluster.next_end_s[32], cluster.replicas.next_end_s[32]) == (4.0, 5.0, 5.0)


@plain
def test_helper_lets_stages_serve_batches_in_turn() -> None:
    cluster = arrays(1, replicas=2, replica={"pipeline_parallel": 2})
    cluster.stage_free_s[1] = 3.0, 7.0
    assert launch._enter_stage(cluster, 1, 0, 0, 4.0, 0.5) == 4.5
    assert launch._enter_stage(cluster, 1, 0, 1, 4.5, 0.5) == 7.5
    assert cluster.stage_start_s[1, 0].tolist() == [4.0, 7.0]
    assert cluster.stage_end_s[1, 0].tolist() == cluster.stage_free_s[1].tolist() == [4.5, 7.5]


@plain
def test_helper_merges_gaps_of_nearly_the_same_size_where_there_is_no_room() -> None:
    """512 bins between a number and its double, from 2^-20 s to 2^15 s; what is beyond goes into the first or last."""
    gaps = [0.5, 0.25, 0.5, 0.50001, 1.0, 1.001, 1.002, 2.0**-20, 1e-9, 1e9, 40_000.0, 32_000.0, 32_760.0, 2.0**-19]
    seconds, counts = np.array(gaps), np.array([2, 1, 3, 5, 1, 3, 1, 1, 3, 2, 2, 1, 4, 1])
    log = new_log(64, 9)._replace(gap_s=seconds, gap_bits=seconds.view(np.int64), gap_count=counts)
    log.used[2] = seconds.size
    log_gap(log, 2.0**-19, 2)
    assert (log.used[2], log.used[4], counts[13]) == (14, 0, 3), "as the one before"
    log_gap(log, 0.125, 7)
    first, last = (2.0**-20 + 3e-9) / 4, (2e9 + 2 * 40_000.0 + 4 * 32_760.0) / 8
    expected = [first, 2.0**-19, 0.25, 0.500005, 1.00075, 1.002, 32_000.0, last, 0.125]
    assert seconds[: log.used[2]] == pytest.approx(expected)
    assert counts[: log.used[2]].tolist() == [4, 3, 1, 10, 4, 1, 1, 8, 7] and log.used[4] == 1


@plain
def test_helper_writes_an_iteration_as_a_row_for_each_stage() -> None:
    """The third of replica 1, of two requests, of whose numbers there is room for two; then the fourth, while one in
    two is kept."""
    cluster = arrays(3, replicas=2, replica={"pipeline_parallel": 2, "num_kv_blocks": 30})
    state, flight, log = cluster.replicas[1], cluster.flights[1, 0], new_log(64, 9, 3)
    flight.number, flight.num_requests, flight.tokens, flight.prefill_tokens = 3, 2, 12, 8
    flight.decodes, flight.decode_kv, state.free_blocks, state.num_waiting = 4, 90.0, 20, 5
    cluster.stage_start_s[1, 0], cluster.stage_end_s[1, 0] = (1.0, 2.0), (1.5, 2.5)
    cluster.flight_requests[1, 0, :2], cluster.flight_tokens[1, 0, :2] = (2, 0), (8, 4)
    log_iteration(cluster, log, 1, 0)
    rows = [(1, 0, 3, 1.0, 1.5, 2, 12, 8, 4, 90.0, 10, 5, 0), (1, 1, 3, 2.0, 2.5, 2, 12, 8, 4, 90.0, 10, 5, 0)]
    assert log.iterations[:2].tolist() == rows
    assert log.members[:2].tolist() == [[2, 8], [0, 4]] and log.used.tolist() == [2, 2, 0, 1, 0, 0]
    log_iteration(cluster, log, 1, 0)
    assert log.iterations[2].first_member == -1 and log.used.tolist() == [4, 2, 0, 1, 0, 0], "no room for its requests"
    flight.number, flight.num_requests, log.used[3] = 4, 1, 2
    log_iteration(cluster, log, 1, 0)
    assert log.used[0] == 4
    flight.number = 5
    log_iteration(cluster, log, 1, 0)
    assert log.used.tolist() == [6, 3, 0, 2, 0, 0] and log.iterations[4].first_member == 2


@plain
def test_helper_logs_parts_of_prompts_while_there_is_room() -> None:
    """Of those beside the first, which steps with others: in the middle of its prompt, just done with it, decoding."""
    cluster, log = arrays(5, replicas=2), new_log(64, 9, 0, 3)
    flight, q = cluster.flights[1, 0], cluster.requests
    flight.number, flight.num_grouped, flight.num_requests, flight.end_s, flight.prefill_tokens = 2, 1, 4, 2.5, 9
    cluster.stage_start_s[1, 0, 0], cluster.flight_requests[1, 0, :4] = 1.5, (0, 4, 2, 3)
    cluster.flight_tokens[1, 0, :4] = 1, 6, 3, 1
    q.prefill_tokens, q.processed, q.num_restarts, q.preempted_s = 20, [9, 0, 21, 22, 12], [0, 0, 0, 0, 2], 0.25
    log.used[3] = 4
    log_iteration(cluster, log, 1, 0)
    rows = [(4, 1, 2, 6, 1.5, 2.5, 0.25), (2, 1, 0, 3, 1.5, 2.5, 0.25)]
    assert log.chunks[:2].tolist() == rows and log.used.tolist() == [0, 0, 0, 4, 0, 2]
    log_iteration(cluster, log, 1, 0)
    assert log.chunks.tolist() == [*rows, rows[0]] and log.used[5] == 4, "the last one is only counted"
    flight.prefill_tokens = 0
    log_iteration(cluster, log, 1, 0)
    assert log.used[5] == 4


@plain
@pytest.mark.parametrize(
    ("holding", "now_s", "was_idle"), [(0, 5.0, True), (1, 5.0, False), (2, 5.0, False), (0, 5.1, False)]
)
def test_helper_of_sglang_says_that_nothing_was_there(holding: int, now_s: float, was_idle: bool) -> None:
    """Until the second request arrived, at 5 s."""
    cluster = with_books(2)
    state, cluster.requests.arrival_s = cluster.replicas[0], [3.0, 5.0]
    state.num_holding, state.first_waiting, state.now_s = holding, 1, now_s
    assert bool(sglang._was_idle(replica_view(cluster, 0))) is was_idle


@plain
def test_helper_tells_what_stays_the_same_from_step_to_step() -> None:
    """Of the second row of the tables, for three decodes."""
    cluster, row = with_books(1), np.arange(9.0)
    tables = blank(2)._replace(
        token_s=np.array([row, 10 * row]), sequence_s=np.array([row, 100 * row]), expert_s=np.array([row, 1000 * row]),
        prompt_s=np.array([row, 1e4 + row]), work=np.array([row, 5.0 + row]), measured=np.arange(10.0).reshape(2, 5),
    )  # fmt: skip
    state = cluster.replicas[0]
    state.row, state.slowdown, state.num_grouped, state.step_kv, state.step_kv_max = 1, 0.25, 3, 60, 30
    found = decode_fast_path._constants(tables, state, 1.0)
    assert (found.row, found.slowdown, found.gpu_s) == (1, 0.25, 30.0 + 300.0 + 3000.0 + 1e4)
    assert (found.exposed_s, found.least_s) == (0.0, 0.0)
    assert found.coefficients == (5.0, 6.0, 7.0, 8.0, 9.0)
    assert found.measured == (5.0, 6.0, 7.0, 8.0, 9.0)
    assert found.weight_bytes == pytest.approx(8.0 + 12.0 * (1.0 - (1.0 - 13.0) ** 3))


@plain
@pytest.mark.parametrize(
    ("processed", "steps", "in_step", "now", "blocks"),
    [
        (23, 40, 0, 33, 2),  # 32 tokens have KV, which fill two blocks
        (23, 40, 1, 33, 3),  # the next one is under way
        (24, 40, 0, 34, 3),
        (33, 30, 0, 33, 2),
        (33, 30, 1, 33, 3),
    ],
)
def test_helper_settles_who_stepped_with_others(
    processed: int, steps: int, in_step: int, now: int, blocks: int
) -> None:
    """Since step 30, in blocks of 16; the last of five blocks that were taken for all is its own."""
    cluster = with_books(1)
    state, q, replica = cluster.replicas[0], cluster.requests[0], replica_view(cluster, 0)
    state.steps, state.in_step, state.num_loose, state.last_step_s, state.tracks_blocks = steps, in_step, 5, 7.0, 1
    q.joined, q.processed, q.num_blocks, q.table, q.last_token_s = 30, processed, 2, 0, 3.0
    loose, tables = np.arange(50, 60), np.full((1, 8), -1)
    decode_group._settle(replica._replace(loose_blocks=loose, tables=tables), 0)
    assert (q.processed, q.joined, q.num_blocks, state.num_loose) == (now, steps, blocks, 7 - blocks)
    assert q.last_token_s == (7.0 if steps > 30 else 3.0)
    assert tables[0].tolist() == [-1, -1, 54 if blocks == 3 else -1, *[-1] * 5]


@plain
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, (3, 60)), ({"num_holding": 3}, (2, 40)), ({"num_holding": 5}, (0, 0)), ({"batch_size": 8}, (1, 20)),
        ({"num_waiting": 2}, (2, 40)), ({"free_blocks": 5}, (2, 40)),
        ({"free_blocks": 3, "watermark_blocks": 2}, (0, 0)),
    ],
)  # fmt: skip
def test_helper_of_trtllm_counts_the_prompts_that_fit(change: dict[str, int], expected: tuple[int, int]) -> None:
    """Of three of 20 tokens in two blocks each; five places, nine in the batch, 100 tokens."""
    cluster = with_books(3)
    state, q, replica = cluster.replicas[0], cluster.requests, replica_view(cluster, 0)
    now = {"num_holding": 1, "max_running": 5, "batch_size": 2, "max_in_batch": 9, "num_waiting": 3, "free_blocks": 30,
           "watermark_blocks": 0, "first_waiting": 0}  # fmt: skip
    for name, value in (now | change).items():
        state[name] = value
    q.next_waiting, q.processed, q.prefill_tokens, q.prompt_tokens, q.total_tokens = [1, 2, -1], 0, 20, 20, 22
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trtllm, "_needed", lambda *_: 2)
        assert trtllm._prompts_that_fit(replica._replace(parameters=np.zeros(9)), 100) == expected


@plain
def test_helper_of_trtllm_counts_those_that_decode() -> None:
    """Two step together; beside them a decode and a chunk of a prompt are in the batch."""
    cluster, asked = with_books(4), list[tuple[int, int]]()
    state, replica = cluster.replicas[0], replica_view(cluster, 0)
    state.num_grouped, state.in_step, state.batch_size, cluster.requests.prefill_tokens = 2, 1, 4, 20
    cluster.requests.processed, replica.batch[:4] = [30, 30, 30, 8], range(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trtllm, "continue_running", lambda *_: True)
        patch.setattr(trtllm, "_prompts_that_fit", lambda *_: (0, 7))
        patch.setattr(trtllm, "_is_held_back", lambda _, *given: asked.append(given) or True)
        trtllm.trtllm(replica)
        state.in_step = 0
        trtllm.trtllm(replica)
        state.batch_size = 1
        trtllm.trtllm(replica)
    assert asked == [(7, 3), (7, 3), (7, 1)]
