"""Failures where prefill and decode are apart or KV is kept in tiers, and what controllers of such pools see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gnomon.core.errors import ConfigError
from gnomon.serving.autoscaling.controllers import CONTROLLERS, View, controller
from gnomon.serving.autoscaling.replicas import DRAINING, OFF
from gnomon.serving.engine.state import FINISHED, SHED
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.simulate import Run
from serving_kit import requests_of, run, scenario

FAST = {"weights_s": 1.0, "compile_s": 0.0, "warmup_s": 0.0}
SECOND = {"source": "table", "table": {"per_iteration": 1.0}}
BOOKS = (
    "num_waiting", "num_running", "num_grouped", "num_in_flight", "num_holding", "num_outstanding", "waiting_tokens",
    "prefill_left", "decode_left", "num_loose", "num_held", "num_moving", "num_coming", "num_landing", "num_ready",
    "num_reported",
)  # fmt: skip


def check_books(done: Run) -> None:
    """Every request ended once, with all its tokens, in order of time; nothing is left in any replica."""
    q, replicas = done.cluster.requests, done.cluster.replicas
    assert (q.status == FINISHED).all()
    assert replicas.num_finished.sum() == q.size
    assert (q.processed == q.prompt_tokens + q.output_tokens).all()
    assert np.array_equal(replicas.free_blocks, replicas.num_blocks)
    assert not [book for book in BOOKS if replicas[book].any()]
    assert (q.arrival_s <= q.scheduled_s).all() and (q.scheduled_s < q.first_token_s).all()
    assert (q.first_token_s <= q.finished_s).all()


def pools(prefill: int = 2, decode: int = 2) -> list[dict[str, Any]]:
    return [{"role": "prefill", "num_replicas": prefill}, {"role": "decode", "num_replicas": decode}]


def apart(seed: int, **changes: Any) -> Run:
    """A small fleet with roles in which much goes wrong, and slow links, so that KV is under way when it does."""
    fleet = {
        "failures": {"mtbf_s": 6.0, "mttr_s": 2.0, "detect_s": 0.3, "keeps_tokens": seed % 2 == 0},
        "controller": {
            "name": "queue_driven",
            "interval_s": 0.7,
            "options": {"stabilization_s": 1.0, "running": 4},
        },
        "max_replicas": 3,
        "cold_start": FAST,
    }
    first = ("decode", "transfer", "prefill")[seed % 3]
    given = {
        "num_replicas": 1,
        "pools": pools(),
        "disaggregation": {"bandwidth_gb_s": 0.2, "hop_s": 0.02, "timeout_s": 2.0, "first_token": first},
        "replica": {"num_kv_blocks": 80},
        "batching": {"max_sequences": 6},
        "workload": {"num_requests": 120},
        "fleet": fleet,
    }
    return run(scenario(seed=seed, **{**given, **changes}))


@pytest.mark.parametrize("seed", range(9))
def test_nothing_is_lost_where_prefill_and_decode_fail_apart(seed: int) -> None:
    sessions = {"workload": {"num_requests": 120, "sessions": {"num_active": 6, "turns": 3}}} if seed % 2 else {}
    done = apart(seed, **sessions)
    check_books(done)
    assert done.fleet is not None and done.fleet.failures > 3 and done.fleet.retries > 0


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert apart(4).cluster.requests.tobytes() == apart(4).cluster.requests.tobytes()


def two_pools(events: list[dict[str, Any]], count: int = 1, **fleet: Any) -> Run:
    """One second an iteration; the KV of a token (512 KiB) takes the link a second."""
    setup = scenario(
        timing=SECOND,
        num_replicas=1,
        pools=pools(1, 2),
        replica={"num_kv_blocks": 1000},
        disaggregation={"bandwidth_gb_s": 524_288 / 1e9, "latency_s": 0.0, "first_token": "transfer"},
        fleet={"cold_start": FAST, "failures": {"detect_s": 0.5}, "events": events, **fleet},
    )
    return run(setup, requests=requests_of([0.0] * count, [4] * count, [3] * count))


def test_kv_on_its_way_to_a_replica_that_dies_is_computed_again() -> None:
    """Prefilled at 1 s, on its way until 5 s. Without a failure: tokens at 5, 6 and 7 s. The decode replica dies at
    3 s, which is noticed at 3.5: prefilled again until 4.5 s, there at 8.5, done two iterations later."""
    plain = two_pools([])
    assert plain.cluster.requests.finished_s[0] == pytest.approx(7.0)
    done = two_pools([{"at_s": 3.0, "what": "fail", "replica": 1}])
    q = done.cluster.requests
    check_books(done)
    assert q.replica[0] == 2 and q.num_tries[0] == 2
    assert q.first_token_s[0] == pytest.approx(8.5) and q.finished_s[0] == pytest.approx(10.5)


def test_kv_on_its_way_from_a_replica_that_dies_is_computed_again() -> None:
    """The only prefill replica dies at 3 s, is repaired at 4 and up at 5: prefilled until 6, there at 10."""
    events = [{"at_s": 3.0, "what": "fail", "replica": 0}, {"at_s": 4.0, "what": "repair", "replica": 0}]
    done = two_pools(events)
    check_books(done)
    assert done.cluster.requests.finished_s[0] == pytest.approx(12.0)


def test_a_drain_waits_for_kv_that_is_on_its_way() -> None:
    """Drained at 2 s, while KV is under way until 5 s: the request is decoded there, and it leaves at 7 s."""
    done = two_pools([{"at_s": 2.0, "what": "drain", "replica": 1}], min_replicas=1, controller={"interval_s": 1.0})
    assert done.fleet is not None and done.cluster.requests.finished_s[0] == pytest.approx(7.0)
    told = [(at_s, state) for at_s, i, state in done.fleet.changes if i == 1][1:]
    assert told == [(2.0, DRAINING), (pytest.approx(7.0), OFF)]


def seen_by(name: str, **changes: Any) -> list[View]:
    """What a controller that changes nothing saw."""
    views: list[View] = []

    @controller(name)
    def watch(view: View) -> int:
        views.append(view)
        return view.desired

    try:
        apart(2, fleet={"controller": {"name": name, "interval_s": 0.5}}, **changes)
    finally:
        CONTROLLERS.remove(name)
    return views


def test_controllers_of_both_pools_see_their_arrivals() -> None:
    views = seen_by("watch_both")
    prefill, decode = views[0::2], views[1::2]
    for pool in (prefill, decode):
        assert sum(view.arrival_rate * view.interval_s for view in pool) == pytest.approx(120, abs=12)


def test_planners_scale_both_pools() -> None:
    """Each pool by what one of its replicas was measured to serve, the other pool being ample."""
    slo = {"ttft_s": 2.0, "tpot_s": 0.2}
    fleet = {"controller": {"name": "slo_planner", "interval_s": 1.0}, "max_replicas": 4, "cold_start": FAST}
    done = apart(0, fleet=fleet, slo=slo, disaggregation={"bandwidth_gb_s": 20.0}, replica={"num_kv_blocks": 800})
    assert done.fleet is not None
    prefill, decode = done.fleet.rates
    assert prefill[1] > 0 and decode[1] > 0 and prefill != decode
    assert prefill[4] > 2 * prefill[1]
    assert all(done.fleet.decisions)


# The controllers' view, and admission control.


def test_controllers_go_on_seeing_the_slo_after_a_request_was_turned_away() -> None:
    views: list[View] = []

    @controller("watch_slo")
    def watch(view: View) -> int:
        views.append(view)
        return view.desired

    try:
        done = run(
            scenario(
                timing=SECOND,
                batching={"max_sequences": 1},
                replica={"num_kv_blocks": 1000},
                admission={"name": "queue_limit", "options": {"max_waiting": 1}},
                slo={"e2e_s": 100.0},
                fleet={"controller": {"name": "watch_slo", "interval_s": 4.0}},
            ),
            requests=requests_of([0.0, 0.1, 0.2, 5.0, 9.0, 13.0], [4] * 6, [3] * 6),
        )
    finally:
        CONTROLLERS.remove("watch_slo")
    assert (done.cluster.requests.status == SHED).tolist() == [False, False, True, False, False, False]
    # Until 4 s one ended well and one was turned away; from then on all ended well.
    assert views[0].slo_met == 0.5 and {view.slo_met for view in views[1:]} <= {1.0, None}
    assert sum(view.slo_met is not None for view in views) >= 3
    # The one that was turned away had arrived, too.
    assert views[0].arrival_rate * views[0].interval_s == pytest.approx(3)


# Tiers.

TURNS = {"num_requests": 120, "sessions": {"num_active": 6, "turns": 4, "shared_prefix_tokens": 32}}


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_where_kv_is_kept_in_tiers(seed: int) -> None:
    tier = {"size_gb": 1.0, "bandwidth_gb_s": 0.5}
    done = apart(
        seed,
        pools=pools() if seed % 2 else [{"num_replicas": 2}],
        disaggregation={} if seed % 2 == 0 else {"bandwidth_gb_s": 0.2},
        workload=TURNS,
        kv_tiers={"host": tier, "remote": tier, "peers": {"bandwidth_gb_s": 1.0}, "load": "always"},
    )
    check_books(done)
    assert done.fleet is not None and done.fleet.failures > 3


def recovered(stores_kv: bool, **tier: Any) -> Run:
    """A prompt of 64 tokens in chunks of 16, one second each. The replica dies at 2.5 s with two chunks computed."""
    setup = scenario(
        timing=SECOND,
        num_replicas=2,
        router="round_robin",
        batching={"max_batch_tokens": 16, "block_size": 16},
        replica={"num_kv_blocks": 100},
        workload={"sessions": {}},
        kv_tiers={"remote": {"size_gb": 1.0, "bandwidth_gb_s": 1e6, **tier}, "load": "always"},
        fleet={
            "cold_start": FAST,
            "failures": {"detect_s": 0.5, "stores_kv": stores_kv},
            "events": [{"at_s": 2.5, "what": "fail", "replica": 0}],
        },
    )
    one = requests_of([0.0], [64], [2])
    one = type(one)(**{**vars(one), "prefix_offsets": np.array([0, 4]), "prefix_hashes": np.arange(1, 5)})
    return run(setup, requests=one)


def test_kv_is_recovered_from_the_shared_store() -> None:
    """Sent again at 3 s: all four chunks and a token, or the two that are missing and a token."""
    assert recovered(False).cluster.requests.finished_s[0] == pytest.approx(3.0 + 4.0 + 1.0)
    done = recovered(True)
    assert done.cluster.requests.finished_s[0] == pytest.approx(3.0 + 2.0 + 1.0, abs=1e-3)
    hits = summarize(done).tiers
    assert hits is not None and hits.remote > 0


def test_a_store_that_is_down_takes_nothing() -> None:
    """It is down when the replica's death is noticed at 3 s, and stays so."""
    done = recovered(True, down_s=(2.8, 1000.0))
    assert done.cluster.requests.finished_s[0] == pytest.approx(3.0 + 4.0 + 1.0)
    assert done.tiers is not None and not done.tiers.used.any()


def test_a_store_that_is_not_there_is_said() -> None:
    with pytest.raises(ConfigError, match="shared store"):
        run(scenario(fleet={"failures": {"stores_kv": True}}))
