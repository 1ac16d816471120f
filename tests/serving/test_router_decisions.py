"""Where every router sends an arriving request, worked out by hand.

The routers that only read the replicas' books are asked directly, with books written for the occasion. Those that look
into prefix caches or timing tables are asked by arrivals at a small fleet.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnomon import jit
from gnomon.core.user_files import plain
from gnomon.serving.engine.allocation import new_cluster
from gnomon.serving.engine.context import Fleet, open_to_all
from gnomon.serving.engine.state import FINISHED, NONE
from gnomon.serving.policies import UNBOUNDED
from gnomon.serving.routers import ROUTERS, gateway, known, llmd
from gnomon.serving.routers.observation import FEATURES, NUM_FEATURES
from gnomon.serving.routers.policy_file import save_policy, shapes
from gnomon.serving.scenario.pools import resolve
from gnomon.timing.iteration import blank
from serving_kit import ROUTERS as BUILT_IN
from serving_kit import requests_of, run, scenario

Books = dict[str, list[float]]


def fleet_of(books: Books, *, router: str, draws: tuple[float, float] = (0.0, 0.0), **request: float) -> Fleet:
    """A fleet whose replicas' records hold these numbers, and one arriving request."""
    count = max(len(column) for column in books.values())
    cluster = new_cluster(count, 1, 1, 1, 1, 1)
    for name, column in books.items():
        cluster.replicas[name] = column
    for name, value in {"session": -1, **request}.items():
        cluster.requests[name] = value
    spec = ROUTERS[router]
    options = np.array([*spec.options.values()] or [0.0])
    return Fleet(
        cluster,
        blank(1),
        np.array([draws]),
        options,
        np.zeros(spec.memory * count + 8),
        np.zeros(0),
        np.zeros(0),  # Nothing is known by reading: it sees all there is.
        *open_to_all(cluster),
    )


def choice(router: str, books: Books, **given: Any) -> int:
    return ROUTERS[router].route(fleet_of(books, router=router, **given), 0)


OF_THREE: Books = {"num_outstanding": [0, 0, 0]}


@pytest.mark.parametrize(("draw", "expected"), [(0.0, 0), (0.33, 0), (0.34, 1), (0.67, 2), (0.999, 2)])
def test_random_takes_equal_parts_of_the_draw(draw: float, expected: int) -> None:
    assert choice("random", OF_THREE, draws=(draw, 0.0)) == expected


def test_round_robin_takes_turns() -> None:
    fleet = fleet_of(OF_THREE, router="round_robin")
    assert [ROUTERS["round_robin"].route(fleet, 0) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_front_ends_take_turns_in_orders_of_their_own() -> None:
    """One draws 0.4 (places 0.92, 0.71, 0.33: replica 2, 1, 0), the other 0.123 (0.09, 0.32, 0.95); asked in turn."""
    fleet = fleet_of(OF_THREE, router="front_ends")
    fleet = fleet._replace(draws=np.array([[0.4, 0], [0.123, 0]]), parameters=np.array([2.0]))
    assert [ROUTERS["front_ends"].route(fleet, 0) for _ in range(7)] == [2, 0, 1, 1, 0, 2, 2]


def test_orders_of_front_ends_are_as_likely_as_each_other() -> None:
    """Six orders of three replicas, 200 front ends each."""
    fleet = fleet_of(OF_THREE, router="front_ends")
    num = 1200
    fleet = fleet._replace(draws=np.random.default_rng(0).random((num, 2)), parameters=np.array([float(num)]))
    sent = np.array([ROUTERS["front_ends"].route(fleet, 0) for _ in range(3 * num)]).reshape(3, num)
    orders, counts = np.unique(sent, axis=1, return_counts=True)
    assert orders.shape[1] == 6 and abs(counts - 200).max() < 45


@pytest.mark.parametrize(
    ("outstanding", "expected"), [([3, 1, 2], 1), ([1, 1, 0], 2), ([2, 1, 1], 1), ([0, 0, 0], 0), ([5, 5, 4], 2)]
)
def test_least_outstanding_counts_waiting_and_running(outstanding: list[float], expected: int) -> None:
    """Ties go to the lowest number; how many of them wait does not matter."""
    assert choice("least_outstanding", {"num_outstanding": outstanding, "num_waiting": [0, 9, 9]}) == expected


@pytest.mark.parametrize(("waiting", "expected"), [([2, 1, 1], 1), ([0, 0, 0], 0), ([3, 2, 1], 2)])
def test_vidur_lor_counts_waiting_requests_only(waiting: list[float], expected: int) -> None:
    assert choice("vidur_lor", {"num_waiting": waiting, "num_outstanding": [0, 9, 99]}) == expected


@pytest.mark.parametrize(
    ("draws", "outstanding", "expected"),
    [
        ((0.0, 0.0), [5, 4, 0], 1),  # 0 against the next, 1; the best of all, 2, is not drawn
        ((0.0, 0.6), [5, 0, 4], 2),  # 0 against the one after, 2
        ((0.99, 0.0), [1, 0, 2], 0),  # 2 against 0, around the end
        ((0.4, 0.0), [9, 3, 3], 1),  # 1 against 2: a tie goes to the first drawn
    ],
)
def test_power_of_two_takes_the_better_of_two(
    draws: tuple[float, float], outstanding: list[float], expected: int
) -> None:
    assert choice("power_of_two", {"num_outstanding": outstanding}, draws=draws) == expected
    assert choice("power_of_two", {"num_coming": outstanding}, draws=draws) == expected


@pytest.mark.parametrize(
    ("outstanding", "coming", "adapter", "expected"),
    [
        ([3, 1, 2], [0, 0, 0], NONE, 1),
        ([3, 1, 2], [0, 3, 0], NONE, 2),  # those on their way count: 3, 4, 2
        ([16, 1, 2], [0, 0, 0], 7, 0),  # 16 against 1 + 16 and 2 + 16, which would have to load it
        ([17, 1, 2], [0, 0, 0], 7, 0),  # a tie
        ([18, 1, 2], [0, 0, 0], 7, 1),
    ],
)
def test_adapter_aware_counts_a_missing_adapter_as_sixteen_requests(
    outstanding: list[float], coming: list[float], adapter: int, expected: int
) -> None:
    books: Books = {"num_outstanding": outstanding, "num_coming": coming}
    fleet = fleet_of(books, router="adapter_aware", adapter=adapter)
    slots = np.zeros((3, 1), fleet.cluster.adapter_slots.dtype).view(np.recarray)
    slots.adapter = [[7], [NONE], [NONE]]
    fleet = fleet._replace(cluster=fleet.cluster._replace(adapter_slots=slots))
    assert ROUTERS["adapter_aware"].route(fleet, 0) == expected


@pytest.mark.parametrize(
    ("free", "waiting_tokens", "expected"),
    [
        ([5, 60, 50], [0, 0, 0], 1),  # 5/10, 40/100, 50/100 in use
        ([5, 60, 50], [0, 192, 0], 0),  # 192 waiting tokens are 12 blocks: 52/100; the first of two halves
        ([4, 60, 50], [0, 192, 0], 2),
    ],
)
def test_least_kv_goes_by_the_share_in_use(free: list[float], waiting_tokens: list[float], expected: int) -> None:
    books: Books = {
        "num_blocks": [10, 100, 100],
        "free_blocks": free,
        "waiting_tokens": waiting_tokens,
        "block_size": [16, 16, 16],
    }
    assert choice("least_kv", books) == expected


@pytest.mark.parametrize(
    ("left", "outstanding", "expected"),
    [([300, 200, 100], [0, 0, 9], 2), ([100, 100, 100], [3, 2, 2], 1), ([100, 200, 100], [1, 0, 1], 0)],
)
def test_least_prefill_tokens_then_fewer_requests(left: list[float], outstanding: list[float], expected: int) -> None:
    assert choice("least_prefill_tokens", {"prefill_left": left, "num_outstanding": outstanding}) == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (100, 1),  # (0 + 100) x 5 = 500 against (300 + 100) x 1 = 400
        (50, 0),  # 50 x 5 = 250 against 350
        (75, 0),  # 375 against 375: the first
    ],
)
def test_lmetric_multiplies_work_and_those_held_up(prompt: int, expected: int) -> None:
    assert choice("lmetric", {"prefill_left": [0, 300], "num_outstanding": [4, 0]}, prompt_tokens=prompt) == expected


def test_sticky_session_hashes_the_session() -> None:
    """Knuth's multiplicative hash: the session times 2,654,435,761, modulo 2^32, as a share of the replicas."""
    shares = [session * 2_654_435_761 % 2**32 / 2**32 for session in (0, 1, 2, 7)]
    assert np.round(shares, 3).tolist() == [0.0, 0.618, 0.236, 0.326]
    assert [choice("sticky_session", OF_THREE, session=session) for session in (0, 1, 2, 7)] == [0, 1, 0, 0]
    assert round(2_000_000_000 * 2_654_435_761 % 2**32 / 2**32, 3) == 0.543
    assert choice("sticky_session", OF_THREE, session=2_000_000_000) == 1
    fleet = fleet_of(OF_THREE, router="sticky_session")
    assert [ROUTERS["sticky_session"].route(fleet, 0) for _ in range(4)] == [0, 1, 2, 0], "without one they take turns"


def test_vllm_dp_goes_by_reports_and_its_own_choices_between_them() -> None:
    """Score = 4 x waiting + running of the last report, a tenth of a second old at most; a choice counts as one more
    waiting at once. Running is what is outstanding and does not wait."""
    books: Books = {"num_waiting": [1, 0], "num_outstanding": [2, 7]}
    fleet = fleet_of(books, router="vllm_dp", arrival_s=0.0)
    route, at = ROUTERS["vllm_dp"].route, fleet.cluster.requests
    assert route(fleet, 0) == 0, "4 x 1 + 1 = 5 against 4 x 0 + 7 = 7"
    assert route(fleet, 0) == 1, "9 against 7"
    fleet.cluster.replicas["num_waiting"] = [0, 0]
    fleet.cluster.replicas["num_outstanding"] = [0, 0]
    at.arrival_s = 0.09
    assert route(fleet, 0) == 0, "the report is not out yet: 9 against 11"
    at.arrival_s = 0.1
    assert [route(fleet, 0) for _ in range(3)] == [0, 1, 0], "both are empty now: 0 against 0, 4 against 0, 4 against 4"


@pytest.fixture
def callable_llmd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its compiled helpers cannot be called from Python; they are plain ones for the occasion."""
    for name in ("look", "score_load", "pick"):
        monkeypatch.setattr(llmd, name, plain(getattr(llmd, name)))


@pytest.mark.parametrize(
    ("waiting", "free", "expected"),
    [
        ([4, 0, 2], [9, 9, 9], 1),  # 0 + .9, 1 + .9, .5 + .9
        ([4, 0, 2], [9, 1, 9], 2),  # 0 + .9, 1 + .1, .5 + .9
        ([3, 3, 3], [5, 6, 4], 1),  # queues of one length count as short
    ],
)
def test_llmd_adds_short_queues_and_free_memory(
    waiting: list[float], free: list[float], expected: int, callable_llmd: None
) -> None:
    books: Books = {"reported_waiting": waiting, "reported_free": free, "num_blocks": [10] * 3, "block_size": [16] * 3}
    assert choice("llmd", books) == choice("llmd_estimated", books) == expected


def test_llmd_goes_by_old_reports_and_draws_among_equals(callable_llmd: None) -> None:
    """Unlike vLLM's own balancer it does not count what it has sent meanwhile: a burst goes to one replica."""
    fleet = fleet_of({"reported_waiting": [1, 0], "reported_free": [9, 9], "num_blocks": [10] * 2}, router="llmd")
    route, at = ROUTERS["llmd"].route, fleet.cluster.requests
    assert [route(fleet, 0) for _ in range(3)] == [1, 1, 1]
    fleet.cluster.replicas["reported_waiting"] = [0, 9]
    at.arrival_s = 0.049
    assert route(fleet, 0) == 1, "the next report is due after 50 ms"
    at.arrival_s = 0.05
    assert route(fleet, 0) == 0
    equal: Books = {"reported_waiting": [0, 0, 0], "reported_free": [9, 9, 9], "num_blocks": [10] * 3}
    assert [choice("llmd", equal, draws=(draw, 0.0)) for draw in (0.1, 0.5, 0.9)] == [0, 1, 2]


@pytest.mark.parametrize(("until_s", "waiting", "held"), [(0.9, 0, 0), (1.5, 0, 2), (2.5, 1, 2), (5.5, 0, 0)])
def test_metrics_are_those_of_the_last_iteration_that_ended(until_s: float, waiting: int, held: int) -> None:
    """Iterations of a second, one request at a time: the first runs until 3, the second, here from 0.5 on, until 5. It
    waits in the batch that was formed at 1 and ends at 2; before that no metric knows of it. Each holds two blocks."""
    setup = scenario(
        timing={"source": "table", "table": {"per_iteration": 1.0}}, batching={"max_sequences": 1},
        replica={"num_kv_blocks": 10}, time_limit_s=until_s,
    )  # fmt: skip
    state = run(setup, requests=requests_of([0.0, 0.5], [20, 20], [3, 2])).cluster.replicas[0]
    assert (state.reported_waiting, state.num_blocks - state.reported_free) == (waiting, held)


@pytest.mark.parametrize("until_s", [17.5, 18.5, 19.5, 40.5])
def test_metrics_are_the_same_whether_decodes_step_together_or_one_by_one(until_s: float) -> None:
    """A prompt of 16 tokens: a block more is taken every 16 iterations of a second, when the next one starts."""
    setup = scenario(
        timing={"source": "table", "table": {"per_iteration": 1.0}},
        replica={"num_kv_blocks": 10},
        time_limit_s=until_s,
    )
    seen = [
        run(setup, requests=requests_of([0.0], [16], [60]), keep_members=kept).cluster.replicas[0].reported_free
        for kept in (0, 1000)
    ]
    assert seen[0] == seen[1]


# Routers that look into caches and tables.


def shared(*prompts: list[int], gap_s: float = 1.0) -> Any:
    """Prompts of 16-token blocks, one after another; equal numbers are equal blocks."""
    offered = requests_of(np.arange(len(prompts)) * gap_s, [16 * len(one) for one in prompts], [1] * len(prompts))
    return replace(
        offered,
        prefix_hashes=np.concatenate(prompts).astype(np.int64),
        prefix_offsets=np.cumsum([0, *map(len, prompts)]),
        prefix_block_tokens=16,
    )


def prefixes_only(router: str, blocks: int = 100, **options: float) -> Any:
    return scenario(
        router={"name": router, "options": {"queue": 0.0, "kv": 0.0, **options}}, num_replicas=4,
        replica={"num_kv_blocks": blocks}, timing={"source": "table", "table": {"per_token": 0.001}},
    )  # fmt: skip


@pytest.mark.parametrize("router", ["llmd", "llmd_estimated"])
def test_llmd_sends_a_prefix_where_most_of_it_is(router: str) -> None:
    """The same prompt four times, then one that shares half of it: all go where the first went, by lot."""
    chosen = run(prefixes_only(router), requests=shared(*[[1, 2, 3, 4]] * 4, [1, 2, 8, 9])).cluster.requests.replica
    assert len(set(chosen.tolist())) == 1


def test_llmd_estimated_looks_no_deeper_than_it_may() -> None:
    """Two blocks deep, prompts that differ in the third are the same to it; two prompts of eight blocks fit into an
    index of sixteen blocks, but not of one."""
    alike = [[1, 2, number] for number in range(10, 30)]
    where = run(prefixes_only("llmd_estimated", depth_tokens=32), requests=shared(*alike)).cluster.requests.replica
    assert len(set(where.tolist())) == 1
    again = [list(range(8 * k, 8 * k + 8)) for k in (1, 2, 1, 2, 1, 2)]
    for tokens, is_remembered in ((256, True), (16, False)):
        done = run(prefixes_only("llmd_estimated", index_tokens=tokens), requests=shared(*again))
        first, last = done.cluster.requests.replica[:2].tolist(), done.cluster.requests.replica[-2:].tolist()
        assert (first == last) == is_remembered


def test_llmd_knows_what_was_evicted_and_llmd_estimated_does_not() -> None:
    """Forty prompts whose KV fits the four GPUs together, over and over, some sent elsewhere for short queues: who sees
    the caches finds more in them."""
    rng = np.random.default_rng(1)
    prompts = [list(range(8 * k, 8 * k + 8)) for k in rng.integers(1, 41, 600)]
    found = {}
    for router in ("llmd", "llmd_estimated"):
        setup = prefixes_only(router, blocks=100, queue=1.0, kv=1.0)
        replicas = run(setup, requests=shared(*prompts, gap_s=0.03)).cluster.replicas
        found[router] = replicas.cache_hits.sum() / replicas.cache_queries.sum()
    assert found["llmd"] > found["llmd_estimated"] + 0.02, found


@pytest.mark.parametrize(("load_weight", "last"), [(1.0, 1), (0.5, 0)])
def test_prefix_aware_weighs_the_cache_against_the_queue(load_weight: float, last: int) -> None:
    """Two replicas at 1 ms a token; all prompts have 160 tokens, and those of A, B and C share the first 144.

    A comes first and goes to replica 0 by number. B comes when A has ended: 16 tokens to compute on replica 0, 160 on
    the other. X shares nothing: 160 on both, replica 0 by number. C comes 1 ms later: on replica 0 it has 16 tokens,
    and X's 160 to wait for times the weight (176 or 96); on replica 1 it has 160.
    """
    common = list(range(1, 10))
    hashes = [[*common, 101], [*common, 102], list(range(201, 211)), [*common, 103]]
    offered = replace(
        requests_of([0.0, 1.0, 2.0, 2.001], [160] * 4, [1] * 4),
        prefix_hashes=np.array(hashes, np.int64).ravel(),
        prefix_offsets=np.arange(5) * 10,
        prefix_block_tokens=16,
    )
    setup = scenario(
        num_replicas=2,
        router={"name": "prefix_aware", "options": {"load_weight": load_weight}},
        timing={"source": "table", "table": {"per_token": 0.001}},
    )
    assert run(setup, requests=offered).cluster.requests.replica.tolist() == [0, 0, 0, last]


def second_choice(router: str, slow_ms: float, **options: float) -> int:
    """Where the second of two requests of 100 prompt and 50 output tokens goes, lengths being known.

    Replica 0 takes `slow_ms` a token, replica 1 takes 1 ms. The first request goes to replica 1 (150 ms). The second
    comes at 120.5 ms: then the first has 21 of its 50 output tokens, and its 22nd is half done.
    """
    slow, fast = ({"source": "table", "table": {"per_token": ms / 1e3}} for ms in (slow_ms, 1.0))
    chosen = {"name": router, "lengths": "oracle", "options": {"omniscient": 1.0, **options}}
    setup = scenario(pools=[{"timing": slow}, {"timing": fast}], router=chosen, timing=slow)
    found = run(setup, requests=requests_of([0.0, 0.1205], [100, 100], [50, 50])).cluster.requests.replica.tolist()
    assert found[0] == 1
    return int(found[1])


@pytest.mark.parametrize(("slow_ms", "expected"), [(1.33, 0), (1.35, 1)])
def test_predicted_latency_adds_up_a_formula(slow_ms: float, expected: int) -> None:
    """On replica 1: 100 prompt tokens beside one decode (101 ms), then 50 steps of two tokens (100 ms): 201 ms. On
    replica 0: 150 tokens alone, 199.5 or 202.5 ms."""
    assert second_choice("predicted_latency", slow_ms) == expected


@pytest.mark.parametrize("router", ["predicted_latency", "lookahead", "unselfish", "gateway"])
def test_who_does_not_see_all_learns_that_a_replica_is_slow(router: str) -> None:
    """Replica 0 is ten times slower. Who sees the tables sends nobody there; the others find out."""
    slow, fast = ({"source": "table", "table": {"per_token": ms / 1e3}} for ms in (5.0, 0.5))
    offered = requests_of(np.arange(80) * 0.1, [100] * 80, [50] * 80)

    def sent_to_slow(omniscient: float) -> list[int]:
        chosen = {"name": router, "options": {"omniscient": omniscient, "scrape_s": 0.2}}
        setup = scenario(pools=[{"timing": slow}, {"timing": fast}], router=chosen, timing=slow)
        found = run(setup, requests=offered).cluster.requests.replica == 0
        return [int(found[first : first + 40].sum()) for first in (0, 40)]

    (early, late), exact = sent_to_slow(0.0), sent_to_slow(1.0)
    assert exact == [0, 0] and early > 0 and late <= 2


def test_gateway_learns_from_iterations_longer_than_the_time_between_readings() -> None:
    """A prompt takes 0.5 s on replica 0, in which metrics are read twice, and 0.05 s on replica 1. One is enough to
    know: all others go to replica 1."""
    slow, fast = ({"source": "table", "table": {"per_token": ms / 1e3}} for ms in (5.0, 0.5))
    chosen = {"name": "gateway", "options": {"scrape_s": 0.2}}
    setup = scenario(pools=[{"timing": slow}, {"timing": fast}], router=chosen, timing=slow)
    found = run(setup, requests=requests_of(np.arange(80) * 0.1, [100] * 80, [50] * 80)).cluster.requests.replica
    assert found.tolist() == [0] + [1] * 79


@pytest.mark.parametrize(("slow_ms", "expected"), [(1.18, 0), (1.20, 1)])
def test_lookahead_plays_the_iterations(slow_ms: float, expected: int) -> None:
    """On replica 1: 0.5 ms to the end of the iteration, 101 ms for the prompt beside a decode, 28 steps of two tokens
    until the first request has its 50, 21 steps alone: 178.5 ms. On replica 0: 177 or 180 ms."""
    assert second_choice("lookahead", slow_ms) == expected


@pytest.mark.parametrize(("slow_ms", "expected"), [(2.03, 0), (2.06, 1)])
def test_lookahead_counts_what_it_costs_others_where_asked(slow_ms: float, expected: int) -> None:
    """The first request would end after 0.5 + 29 ms, and beside the second after 0.5 + 101 + 56 ms: 128 ms later. With
    the second's own 178.5 ms that is 306.5 ms, against 304.5 or 309 ms on replica 0."""
    assert second_choice("lookahead", slow_ms, others=1.0) == expected


@pytest.mark.parametrize(("slow_ms", "expected"), [(1.38, 0), (1.40, 1)])
def test_unselfish_counts_what_it_costs_everybody(slow_ms: float, expected: int) -> None:
    """On replica 1 the first token comes after 0.5 + 101 ms and the last 50 steps of 2 ms later: 201.5 ms. The first
    request is held up by 100 ms and then slowed by 50 x 1 ms. With the weights 2.5, 0.5 and 1 that is 201.5 + 253.75 +
    50 + 50 = 555.25 ms. On replica 0 of s ms a token: 150 s + 2.5 x 100 s = 400 s: equal at 1.388."""
    assert second_choice("unselfish", slow_ms, stalls_to_come=0.0) == expected


@pytest.mark.parametrize(("patience", "expected"), [(0.0, 1), (0.0120, 0), (0.0125, 1)])
def test_unselfish_has_patience(patience: float, expected: int) -> None:
    """As above with 1.40 ms: the first request could have its first token after 140 or 100 ms, in the root mean square
    after 121.7 ms. The second waits for 0.5 ms on replica 1 and takes 1 ms longer beside a decode: too long where 1.46
    ms are allowed, not where 1.52 ms are."""
    assert second_choice("unselfish", 1.40, stalls_to_come=0.0, patience=patience) == expected


@pytest.mark.parametrize(("patience", "expected"), [(0.0, [0, 0, 0]), (1e-6, [0, 1, 1])])
def test_unselfish_takes_the_soonest_where_all_are_late(patience: float, expected: list[int]) -> None:
    """Weights that prefer late first tokens, so replica 0. Without patience the second goes where it need not wait; the
    third would wait on both, and replica 1 is through with its prompt first."""
    slow, fast = ({"source": "table", "table": {"per_token": ms / 1e3}} for ms in (1.4, 1.0))
    options = {"first_token": -10.0, "stall": 0.0, "crowding": 0.0, "stalls_to_come": 0.0, "patience": patience,
               "omniscient": 1.0}  # fmt: skip
    chosen = {"name": "unselfish", "lengths": "oracle", "options": options}
    setup = scenario(pools=[{"timing": slow}, {"timing": fast}], router=chosen, timing=slow)
    offered = requests_of([0.0, 0.001, 0.002], [100] * 3, [50] * 3)
    assert run(setup, requests=offered).cluster.requests.replica.tolist() == expected


def sent_by(router: str, offered: Any, **options: float) -> list[int]:
    """Where a router sends requests to two equal replicas of 1 ms a token, with prefix caches."""
    setup = scenario(
        num_replicas=2, router={"name": router, "options": options},
        timing={"source": "table", "table": {"per_token": 1e-3}}, batching={"policy": "vllm_v1", "prefix_cache": True},
    )  # fmt: skip
    return run(setup, requests=offered).cluster.requests.replica.tolist()


def test_dynamo_kv_adds_blocks_to_compute_and_blocks_in_use() -> None:
    """Prompts of ten blocks; B shares nine with A, which has ended. Replica 0 holds them: B costs 1 + 1 there and 10 +
    10 on the other. X, 1 ms later, finds B's blocks in use on replica 0 and goes to replica 1."""
    hashes = [[*range(1, 10), 101], [*range(1, 10), 102], list(range(201, 211))]
    offered = replace(
        requests_of([0.0, 1.0, 1.001], [160] * 3, [20] * 3), prefix_hashes=np.array(hashes, np.int64).ravel(),
        prefix_offsets=np.arange(4) * 10, prefix_block_tokens=16,
    )  # fmt: skip
    assert sent_by("dynamo_kv", offered) == [0, 0, 1]


@pytest.mark.parametrize(("absolute", "expected"), [(64.0, [0, 0, 0, 0, 1]), (2.0, [0, 0, 0, 1, 1])])
def test_cache_aware_follows_the_longest_match_while_loads_are_even(absolute: float, expected: list[int]) -> None:
    """Four requests share nine blocks of ten, 200 ms apart, while each takes a second: the second to fourth go where
    the first went, unless more than `absolute` are there than on the other; the fifth shares nothing and goes where
    the fewest tokens were sent."""
    hashes = [[*range(1, 10), 100 + number] for number in range(4)] + [list(range(201, 211))]
    offered = replace(
        requests_of([0.0, 0.2, 0.4, 0.6, 0.8], [160] * 5, [1000] * 5), prefix_hashes=np.array(hashes, np.int64).ravel(),
        prefix_offsets=np.arange(6) * 10, prefix_block_tokens=16,
    )  # fmt: skip
    assert sent_by("cache_aware", offered, absolute=absolute, relative=1.0) == expected


def test_hash_spill_keeps_a_session_until_its_replica_is_full() -> None:
    """Of four replicas with ten requests in flight none may get to more than ceil(1.25 x 11 / 4) = 4."""
    even: Books = {"num_outstanding": [2, 2, 2, 2]}
    own = [choice("hash_spill", even, session=session) for session in range(200)]
    assert sorted({own.count(r) > 25 for r in range(4)}) == [True], "sessions spread"
    full: Books = {"num_outstanding": [2, 2, 2, 2]}
    full["num_outstanding"][own[7]] = 4
    elsewhere = choice("hash_spill", full, session=7)
    assert elsewhere != own[7]
    moved = [choice("hash_spill", full, session=session) for session in range(200)]
    assert all(new == old for new, old in zip(moved, own, strict=True) if old != own[7]), "the others stay"
    assert choice("hash_spill", {"num_outstanding": [2, 1, 2], "num_coming": [0, 2, 0]}) == 0, "no session: the fewest"


@pytest.mark.parametrize(("kv_loss", "expected"), [(0.0, 1), (0.3, 1), (1.0, 0)])
def test_gateway_goes_by_the_events_that_came(kv_loss: float, expected: int) -> None:
    """X goes to replica 0, A, while X is there, to replica 1; B shares nine blocks of ten with A, and comes when both
    have ended. Of nine events in ten some come, and the last of them says that the blocks before are there."""
    hashes = [list(range(201, 211)), [*range(1, 10), 101], [*range(1, 10), 102]]
    offered = replace(
        requests_of([0.0, 0.01, 5.0], [160] * 3, [20] * 3), prefix_hashes=np.array(hashes, np.int64).ravel(),
        prefix_offsets=np.arange(4) * 10, prefix_block_tokens=16,
    )  # fmt: skip
    assert sent_by("gateway", offered, kv_loss=kv_loss) == [0, 1, expected]


@pytest.mark.parametrize(("shared", "expected"), [(9, 0), (0, 1)])
def test_gateway_follows_a_prefix_that_waits_to_be_computed(shared: int, expected: int) -> None:
    """X and Y are being computed on replicas 0 and 1 when A comes, which waits behind X. B, 1 ms later, waits behind A
    where it shares nine blocks of ten with it, though none is computed yet, and behind Y where it shares nothing."""
    last = [*range(1, 1 + shared), *range(102, 112 - shared)]
    hashes = [list(range(201, 211)), list(range(301, 311)), [*range(1, 10), 101], last]
    offered = replace(
        requests_of([0.0, 0.001, 0.002, 0.003], [160] * 4, [20] * 4), prefix_hashes=np.array(hashes, np.int64).ravel(),
        prefix_offsets=np.arange(5) * 10, prefix_block_tokens=16,
    )  # fmt: skip
    assert sent_by("gateway", offered) == [0, 1, 0, expected]


def test_speeds_are_fitted_to_what_a_replica_did() -> None:
    """Iterations of 20 ms + 0.1 ms a prompt token + 0.3 ms a decode, read 400 times at random loads."""
    seen, random = known.at_first([100, 100], 0.25, 0.0, 0.0), np.random.default_rng(0)
    usual, fit = 2 * known._PER_REPLICA + known._USUAL, plain(known._fit)
    for _ in range(400):
        iterations, prefill = int(random.integers(5, 40)), float(random.integers(0, 8000))
        made = float(iterations * random.integers(1, 60))
        fit(seen, 0, usual, 0.02 * iterations + 1e-4 * prefill + 3e-4 * made, iterations, prefill, made, 0.0)
    found = seen[known._SPEEDS : known._SPEEDS + 4] * np.array(known._UNITS)
    assert found[:3] == pytest.approx([0.02, 1e-4, 3e-4], rel=0.05)
    assert seen[known._FACTOR] == pytest.approx(1.0, abs=0.05)
    for _ in range(10):
        fit(seen, 0, usual, 3 * (0.02 * 20 + 3e-4 * 400), 20, 0.0, 400.0, 0.0)
    assert seen[known._FACTOR] > 2.0, "three times slower is noticed within a few readings"


def test_gateway_knows_how_late_the_slowest_hundredth_would_be() -> None:
    """First tokens after 1 s but for two in a hundred after 5 s: the 99th percentile is with the latter. Prefills of
    0.5 and 1.5 s alone: who finds one under way finds (0.25 + 2.25) / 2 / (2 x 1) = 0.625 s of it left in the mean."""
    memory = np.zeros(gateway._PER_REPLICA + 10)
    at = gateway._PER_REPLICA
    learn, tail_s = plain(gateway._learn_tail), plain(gateway._tail_s)
    assert tail_s(memory, at) == 0.0, "nothing is known at first"
    for number in range(4000):
        memory[at + gateway._COUNT] += 1.0
        learn(memory, at, 5.0 if number % 50 == 49 else 1.0, 0.5 if number % 2 else 1.5)
    assert memory[at + gateway._TAIL_S] == pytest.approx(5.0, rel=0.1)
    assert tail_s(memory, at) - memory[at + gateway._TAIL_S] == pytest.approx(0.625, rel=0.01)


@pytest.mark.parametrize(("chunked", "expected"), [(0.0, [1, 0, 1, 1]), (1.0, [0, 1, 0, 1])])
def test_gateway_sends_no_prompt_where_it_would_be_rejected(chunked: float, expected: list[int]) -> None:
    """Prompts of 9,000, 8,100, 9,000 and 9,000 tokens, each after the one before has ended; TensorRT-LLM on replica 0
    computes 8,192 in one iteration, and more only where it may cut them."""
    pools = [
        {"num_replicas": 1, "batching": {"policy": "trtllm", "options": {"chunked_prefill": chunked}}},
        {"num_replicas": 1, "batching": {"policy": "vllm_v1"}},
    ]
    setup = scenario(
        pools=pools, router="gateway", timing={"source": "table", "table": {"per_token": 1e-6}},
        replica={"max_request_tokens": 10_000, "num_kv_blocks": 2000},
    )  # fmt: skip
    done = run(setup, requests=requests_of([0.0, 10.0, 20.0, 30.0], [9000, 8100, 9000, 9000], [5] * 4))
    assert done.cluster.requests.replica.tolist() == expected
    assert (done.cluster.requests.status == FINISHED).all()


@pytest.mark.parametrize(
    ("batching", "longest"),
    [
        ({"policy": "vllm_v1"}, UNBOUNDED),
        ({"policy": "vllm", "max_batch_tokens": 3000}, 3000),
        ({"policy": "orca"}, UNBOUNDED),
        ({"policy": "trtllm"}, 8192),
        ({"policy": "trtllm", "options": {"chunked_prefill": 1}}, UNBOUNDED),
    ],
)
def test_the_longest_prompt_is_what_an_iteration_takes_of_one_that_is_not_cut(
    batching: dict[str, Any], longest: int
) -> None:
    (pool,) = resolve(scenario(num_replicas=1, batching=batching), requests_of([0.0], [10], [5]))
    assert pool.longest_prompt == longest


def test_what_classes_expect_is_known_at_the_gateway() -> None:
    """As the scenario says, where a class does not say it."""
    classes = [
        {"name": "urgent", "share": 1, "priority": 2, "weight": 3, "slo": {"ttft_s": 0.3, "tpot_s": 0.05}},
        {"name": "chat", "share": 1, "priority": 1, "slo": {}},
        {"name": "batch", "share": 1, "slo": {"e2e_s": 60}},
    ]
    for chosen, expected in (
        (classes, [[3, 2, 0.3, 0.05], [1, 1, 1.0, math.inf], [1, 0, math.inf, math.inf]]),
        ([], [[1, 1, 1.0, math.inf]]),
    ):
        workload = {"num_requests": 6, "rate": 10.0, "classes": chosen}
        done = run(scenario(num_replicas=1, slo={"ttft_s": 1.0}, workload=workload))
        assert done.cluster.classes.tolist() == expected


@pytest.mark.parametrize(("late", "within", "expected"), [(0.0, 0.3, 0), (14.0, 0.3, 1), (14.0, 0.0, 0)])
def test_gateway_sends_nobody_where_the_first_token_comes_late(late: float, within: float, expected: int) -> None:
    """1 ms a token. X has a prompt of 2 s on replica 0; on replica 1 one decodes and three prompts of 0.5 s wait. At
    0.25 s the next first token would come after 2.25 s on replica 0, and after 1.8 s on replica 1, where it holds up
    more of the others: that may not cost more than a share `within`."""
    arrivals = [0.0, 0.01, 0.1, 0.15, 0.2, 0.25]
    offered = requests_of(arrivals, [2000, 20, 500, 500, 500, 500], [200, 400, 10, 10, 10, 10])
    assert sent_by("gateway", offered, late=late, within=within) == [0, 1, 1, 1, 1, expected]


@pytest.mark.parametrize(("sign", "expected"), [(-1.0, [0, 1, 2, 0, 1]), (1.0, [0, 0, 0, 0, 0])])
def test_learned_follows_its_network(tmp_path: Path, sign: float, expected: list[int]) -> None:
    """A network one unit wide that looks at one feature, the requests at a replica: it likes few of them, or many. Of
    equal scores the first counts."""
    arrays = {name: np.zeros(shape) for name, shape in shapes(1).items()}
    arrays["phi0.weight"][0, FEATURES.index("outstanding")] = 1.0
    arrays["phi1.weight"][0, 0] = arrays["rho0.weight"][0, 0] = 1.0
    arrays["rho1.weight"][0, 0] = 1000.0 * sign  # Whatever the rule says.
    path = save_policy(tmp_path / "p.npz", arrays, np.zeros(NUM_FEATURES), np.ones(NUM_FEATURES), "none", {})
    chosen = {"name": "learned", "checkpoint": str(path)}
    offered = requests_of([0.0, 0.001, 0.002, 0.003, 0.004], [100] * 5, [50] * 5)
    assert run(scenario(num_replicas=3, router=chosen), requests=offered).cluster.requests.replica.tolist() == expected


@pytest.mark.parametrize("router", [name for name in ROUTERS.names() if name not in ROUTERS.own])
def test_every_built_in_router_has_a_table(router: str) -> None:
    assert any(test.startswith(f"test_{router}_") for test in globals())


@pytest.mark.parametrize("name", BUILT_IN)
def test_only_candidates_are_chosen(name: str) -> None:
    """Replicas 1 and 3 are the only ones that take requests, though 0 and 2 are idle."""
    helped = (
        "learned",
        "unselfish",
        "prefix_aware",
        "predicted_latency",
        "lookahead",
        "llmd",
        "dynamo_kv",
        "cache_aware",
    )
    if name in (*helped, "gateway") and jit.ENABLED:
        pytest.skip("its compiled helpers cannot be called from Python; see the fleet's tests")
    if name in ("learned", "unselfish", "gateway"):
        pytest.skip("needs the memory of a whole run")
    books: Books = {
        "num_outstanding": [0, 5, 0, 6], "num_waiting": [0, 5, 0, 6], "prefill_left": [0, 9, 0, 9],
        "free_blocks": [9, 1, 9, 1], "num_blocks": [9, 9, 9, 9], "block_size": [4, 4, 4, 4], "max_running": [8] * 4,
        "max_chunk_tokens": [8] * 4, "max_batch_tokens": [8] * 4,
    }  # fmt: skip
    if name in ("predicted_latency", "lookahead"):
        books |= {"num_outstanding": [0, 0, 0, 0], "num_waiting": [0] * 4}
    fleet = fleet_of(books, router=name, draws=(0.9, 0.9), prompt_tokens=4, session=7)
    fleet = fleet._replace(candidates=np.array([1, 3]))
    for _ in range(3):
        assert ROUTERS[name].route(fleet, 0) in (1, 3)


def test_sticky_until_full_stays_then_takes_the_emptiest() -> None:
    books = {"num_outstanding": [3, 1, 2], "num_coming": [0, 0, 0], "free_blocks": [9] * 3, "num_blocks": [10] * 3}
    fleet = fleet_of(books, router="sticky_until_full")
    route, replicas = ROUTERS["sticky_until_full"].route, fleet.cluster.replicas
    assert route(fleet, 0) == 1
    replicas.num_outstanding = [0, 7, 0]
    assert route(fleet, 0) == 1
    replicas.num_coming[1] = 1
    assert route(fleet, 0) == 0
    replicas.free_blocks[0] = 1
    assert route(fleet, 0) == 2, "its memory is full"
