"""Where every request's time goes: parts that add up to the last nanosecond, under every policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import test_fleet
from gnomon.core.config import build, load
from gnomon.serving.engine import guard
from gnomon.serving.features import breakdown
from gnomon.serving.results.latency_breakdown import NAMES, PARTS, Accounts, accounts
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from scarce_kit import scarce
from serving_kit import POLICIES, requests_of, scenario

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    path for kind in ("serving", "fleet", "routing") for path in (ROOT / "examples" / kind).glob("*.yaml")
)


def check_accounts(setup: Any, requests: Any = None) -> Accounts:
    """Run with and without accounts: the same stamps, parts that add up, no part below zero."""
    plain, done = run(setup, requests=requests), run(setup, requests=requests, explained=True)
    q = done.cluster.requests
    for name in ("arrival_s", "scheduled_s", "first_token_s", "finished_s"):
        assert np.array_equal(plain.cluster.requests[name], q[name]), name
    found = accounts(done)
    arrival, first, end = (
        np.floor(q[name][found.ids] * 1e9 + 0.5).astype(np.int64)
        for name in ("arrival_s", "first_token_s", "finished_s")
    )
    assert np.array_equal(found.parts_ns.sum(axis=(1, 2)), end - arrival)
    assert np.array_equal(found.parts_ns[:, breakdown.BEFORE].sum(axis=1), first - arrival)
    assert found.parts_ns.min(initial=0) >= 0
    if not (q.front_s.any() or q.last_reply_s.any() or q.first_reply_s.any()):
        assert not found.parts_ns[:, :, breakdown.FRONT_END].any()
    return found


def milliseconds(found: Accounts, request: int) -> dict[str, float]:
    """The parts of one request that are not zero."""
    parts = found.parts_ns[found.row(request)].sum(axis=0) / 1e6
    return {name: float(value) for name, value in zip(NAMES, parts, strict=True) if value}


@pytest.mark.parametrize("seed", range(96))
def test_parts_add_up_where_everything_is_scarce(seed: int) -> None:
    check_accounts(*scarce(seed))


@pytest.mark.parametrize("policy", POLICIES)
def test_parts_add_up_on_unequal_replicas(policy: str) -> None:
    pools = [{"timing": {"scale": 1.0}}, {"timing": {"scale": 2.0}, "num_replicas": 2}]
    check_accounts(scenario(batching={"policy": policy}, replica={"max_request_tokens": 512}, pools=pools))


@pytest.mark.parametrize("first_token", ["decode", "transfer", "prefill"])
@pytest.mark.parametrize("blocks", [40, 4000])
def test_parts_add_up_where_prefill_and_decode_are_apart(first_token: str, blocks: int) -> None:
    pools = [
        {"role": "prefill", "num_replicas": 2},
        {"role": "decode", "replica": {"num_kv_blocks": blocks}},
        {"role": "decode", "timing": {"scale": 1.5}, "replica": {"num_kv_blocks": blocks}},
    ]
    way = {"first_token": first_token, "hop_s": 0.002, "timeout_s": 3.0}
    found = check_accounts(scenario(pools=pools, disaggregation=way))
    moved = found.requests.landed_s >= 0
    seconds = (found.requests.landed_s - found.requests.moving_s)[moved] + way["hop_s"]
    booked = found.parts_ns[moved][:, :, breakdown.TRANSFER].sum(axis=1) / 1e9
    assert moved.any() and (booked >= seconds - 1e-8).all()
    more = (booked - seconds)[found.requests.num_restarts[moved] == 0]
    if first_token == "decode":  # The last prompt token is computed once more: 10.4 ms alone.
        assert more.min() > 0.0103
    else:
        assert np.abs(more).max() < 1e-8
    assert not found.parts_ns[found.requests.num_restarts == 0][:, :, breakdown.RECOMPUTED].any()
    waited = found.parts_ns[:, :, breakdown.KV_FULL].sum()
    assert waited > 1e9 if blocks == 40 else waited == 0


def test_waiting_for_a_place_where_it_decodes_is_not_kv_shortage() -> None:
    pools = [{"role": "prefill"}, {"role": "decode", "batching": {"max_sequences": 1}}]
    way = {"first_token": "prefill", "hop_s": 0.002}
    found = check_accounts(scenario(pools=pools, disaggregation=way), requests_of([0.0, 0.0], [100, 100], [20, 20]))
    parts = milliseconds(found, 1)
    assert parts["kv_transfer"] >= 2.0 and "wait_kv" not in parts
    assert parts["wait_batch_cap"] > 100  # The other one decodes for 20 steps of 10 ms.


@pytest.mark.parametrize("policy", ["priority", "vtc", "drr", "dlpm"])
def test_parts_add_up_with_classes_of_users(policy: str) -> None:
    workload = {"rate": 30.0, "classes": [{"name": "chat", "share": 0.5}, {"name": "batch", "share": 0.5}]}
    check_accounts(scenario(batching={"policy": policy, "max_sequences": 4}, workload=workload))


@pytest.mark.parametrize("seed", range(8))
def test_parts_add_up_where_each_replica_has_a_front_end_and_much_goes_wrong(seed: int) -> None:
    front_end = {"per_request_s": 0.2, "per_prompt_token_s": 1e-3, "reply_s": 0.01, "per_replica": True}
    setup = test_fleet.trouble(seed).scenario
    found = check_accounts(build(Scenario, {**setup.model_dump(exclude_unset=True), "front_end": front_end}))
    assert found.parts_ns[:, :, breakdown.FRONT_END].any()


@pytest.mark.parametrize("seed", range(6))
def test_parts_add_up_in_a_fleet_in_which_much_goes_wrong(seed: int) -> None:
    setup = test_fleet.trouble(seed).scenario
    found = check_accounts(setup)
    assert found.parts_ns[:, :, breakdown.OUTAGE].sum() > 0 and found.parts_ns[:, :, breakdown.STRAGGLER].sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_parts_add_up_in_every_example(path: Path) -> None:
    workload = load(Scenario, path, {}).workload
    few = {"workload.num_requests": 400}
    if workload.arrivals.process == "stages":
        few = {"workload.arrivals.stages": [(rate, 2.0) for rate, _ in workload.arrivals.stages]}
    check_accounts(load(Scenario, path, {} if workload.trace else few))


@pytest.mark.parametrize("slowdown", [1.0, 1.5])
def test_accounts_do_not_depend_on_how_a_run_is_sliced(slowdown: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late in a run moments are less exact than nanoseconds, and durations differ with the way they are computed."""
    late = 3e7 + np.sort(np.random.default_rng(5).random(40)) * 20.0
    timing = {"source": "roofline", "host": {"per_iteration_s": 0.0013}}
    pools = [{"timing": timing}, {"timing": {**timing, "scale": slowdown}}]
    setup = build(Scenario, {"pools": pools})
    requests = requests_of(list(late), [50 + 7 * i for i in range(40)], [30 + 11 * i for i in range(40)])
    whole = check_accounts(setup, requests).parts_ns
    monkeypatch.setattr(guard, "SLICE_ITERATIONS", 7)
    assert np.array_equal(whole, check_accounts(setup, requests).parts_ns)


def test_a_request_alone_has_nobody_to_blame() -> None:
    found = check_accounts(scenario(), requests_of([0.0], [100], [11]))
    # Prefill: 10 ms + 100 tokens x 0.1 ms + 0.3 ms + 100 x 0.01 ms. Decodes: 10.4 ms and their KV.
    kv = sum(range(101, 111)) * 1e-4
    assert milliseconds(found, 0) == pytest.approx({"prefill_alone": 21.3, "decode_alone": 104.0 + kv}, abs=1e-5)


def test_a_decode_beside_another_one() -> None:
    found = check_accounts(scenario(), requests_of([0.0, 0.0], [100, 100], [11, 11]))
    kv = sum(range(101, 111)) * 1e-4
    parts = milliseconds(found, 0)
    assert parts["decode_alone"] == pytest.approx(104.0 + kv, abs=1e-5)
    assert parts["decode_batch"] == pytest.approx(10 * 0.4, abs=1e-5)  # Another token and sequence, ten times.
    assert parts["decode_contexts"] == pytest.approx(kv, abs=1e-5)  # The other's is as long as its own.
    assert parts["prefill_alone"] == pytest.approx(21.3, abs=1e-5)
    # 200 tokens and two sequences in one batch; chunks count as their root sum of squares.
    assert parts["prefill_others"] == pytest.approx(10 + 0.3 + 1e-2 * (np.sqrt(2e4) - 100), abs=1e-5)


def test_a_prefill_delays_a_decode_and_is_named() -> None:
    found = check_accounts(scenario(), requests_of([0.0, 0.03], [10, 2000], [20, 1]))
    parts = milliseconds(found, 0)
    assert parts["decode_prefills"] == pytest.approx(2000 * 0.1 + 0.3 + 2000 * 0.01, abs=1e-4)
    assert found.inflicted_ns.tolist() == [0, round(parts["decode_prefills"] * 1e6)]
    assert milliseconds(found, 1)["wait_iteration"] > 0


def test_a_budget_that_a_policy_does_not_read_is_no_reason_to_wait() -> None:
    """Orca runs whole prompts, however many tokens they are; the second one waits for memory."""
    setup = scenario(
        batching={"policy": "orca", "max_batch_tokens": 100}, replica={"num_kv_blocks": 20, "max_request_tokens": 208}
    )
    parts = milliseconds(check_accounts(setup, requests_of([0.0, 0.0], [200, 200], [5, 5])), 1)
    assert parts["wait_kv"] > 0
    assert "wait_token_budget" not in parts


@pytest.mark.parametrize(
    ("batching", "replica", "cause"),
    [
        ({"max_sequences": 1}, {}, "wait_batch_cap"),
        ({"max_batch_tokens": 100}, {}, "wait_token_budget"),
        ({}, {"num_kv_blocks": 8}, "wait_kv"),
        ({"policy": "faster_transformer", "max_sequences": 8}, {"max_request_tokens": 200}, "wait_policy"),
    ],
)
def test_why_a_request_waits(batching: dict[str, Any], replica: dict[str, Any], cause: str) -> None:
    late = 0.001 if batching.get("policy") else 0.0
    found = check_accounts(scenario(batching=batching, replica=replica), requests_of([0.0, late], [100, 100], [5, 5]))
    waits = {name: value for name, value in milliseconds(found, 1).items() if name.startswith("wait")}
    assert max(waits, key=lambda name: waits[name]) == cause


def test_pre_emption_is_waiting_and_computing_again() -> None:
    found = check_accounts(
        scenario(replica={"num_kv_blocks": 5}, batching={"prefix_cache": False}),
        requests_of([0.0, 0.0], [30, 30], [30, 30]),
    )
    assert found.requests.num_restarts.tolist() == [0, 1]
    parts = milliseconds(found, 1)
    assert parts["preempted"] == pytest.approx(found.requests.preempted_s[1] * 1e3, abs=1e-5)
    assert parts["recomputed"] > 10
    assert "preempted" not in milliseconds(found, 0)


def test_a_slow_replica_has_a_part_of_its_own() -> None:
    pools = [{"timing": {"scale": 1.0}}, {"timing": {"scale": 3.0}}]
    found = check_accounts(scenario(pools=pools), requests_of([0.0, 0.1], [100, 100], [11, 11]))
    fast, slow = milliseconds(found, 0), milliseconds(found, 1)
    assert "straggler" not in fast
    assert slow["straggler"] == pytest.approx(2 * sum(fast.values()), rel=1e-6)
    assert slow["decode_alone"] == pytest.approx(fast["decode_alone"], abs=1e-4)


def test_waiting_while_another_replica_is_free_is_the_routers_fault() -> None:
    setup = scenario(num_replicas=2, router="sticky_session", batching={"max_sequences": 1})
    requests = requests_of([0.0, 0.001], [100, 100], [5, 5])
    object.__setattr__(requests, "session", np.zeros(2, np.int32))
    found = check_accounts(setup, requests)
    parts = milliseconds(found, 1)
    assert parts["wait_routing"] > 40 and "wait_batch_cap" not in parts


def test_host_time_is_the_hosts() -> None:
    timing = {"source": "roofline", "host": {"per_iteration_s": 0.004}}
    found = check_accounts(build(Scenario, {"timing": timing}), requests_of([0.0], [100], [11]))
    assert milliseconds(found, 0)["host"] == pytest.approx(44.0, abs=1e-4)


def test_waiting_for_an_adapter_is_not_waiting_for_an_iteration() -> None:
    lora = {"max_loaded": 1, "latency_s": 0.5}
    workload = {"rate": 20.0, "num_requests": 60, "adapters": {"count": 6, "share": 1.0}}
    found = check_accounts(scenario(lora=lora, workload=workload))
    before = found.parts_ns[:, breakdown.BEFORE] / 1e9
    came = found.requests.arrival_s + found.requests.front_s
    waited = found.requests.scheduled_s - came
    assert before[:, breakdown.ADAPTER].sum() > 0.5 * waited.sum() > 1.0
    assert before[:, breakdown.ITERATION].max() < 1.0


def test_nothing_is_kept_unless_asked_for() -> None:
    done = run(scenario())
    assert not any(
        getattr(done.cluster, name).size for name in ("breakdown", "parts_ns", "clocks", "floor_ns", "context_ns")
    )


def test_every_part_has_a_name() -> None:
    assert len(set(NAMES)) == len(PARTS) == breakdown.NUM_PARTS
    assert NAMES[breakdown.KV_FULL] == "wait_kv" and NAMES[breakdown.STRAGGLER] == "straggler"


@pytest.mark.parametrize(
    ("up", "events", "routing_s"),
    [
        (1, [], 0.0),  # The other place is empty all the time.
        (1, [{"at_s": 2.0, "what": "start", "replica": 1}], 5.0 * 3.0 / 5.5),  # It is up from 3 s on.
        (2, [], 5.0),
        (2, [{"at_s": 2.0, "what": "drain", "replica": 1}], 5.0 * 1.5 / 5.5),  # It takes nothing from 2 s on.
    ],
)
def test_waiting_is_the_routers_only_while_another_replica_is_up(up: int, events: Any, routing_s: float) -> None:
    """The second request comes at 0.5 s and waits for the first until 6 s; half a second of that for its iteration."""
    fleet = {"max_replicas": 2, "events": events, "cold_start": {"weights_s": 1.0, "compile_s": 0.0, "warmup_s": 0.0}}
    asked = scenario(
        timing={"source": "table", "table": {"per_iteration": 1.0}}, num_replicas=up, fleet=fleet,
        batching={"max_sequences": 1}, replica={"num_kv_blocks": 1000},
    )  # fmt: skip
    requests = requests_of([0.0, 0.5], [4, 4], [6, 6])
    told = accounts(run(asked, requests=requests, explained=True, forced_replicas=np.array([0, 0])))
    assert told.requests.scheduled_s.tolist() == [0.0, 6.0]
    assert told.parts_s("ttft")[1, breakdown.ROUTING] == pytest.approx(routing_s, abs=1e-6)
