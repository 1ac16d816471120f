"""LoRA adapters: slots, loads, the line for a slot, routing by adapter, the slow-down; worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gnomon import catalog
from gnomon.core.errors import GnomonError
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.features.breakdown import ADAPTER, BEFORE, NUM_PARTS, OUTAGE
from gnomon.serving.results.latency_breakdown import accounts
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.simulate import Run
from gnomon.serving.scenario.lora import LoraConfig, adapter_bytes
from gnomon.workload import WorkloadConfig, generate
from serving_kit import requests_of, run, scenario

SECOND = {"source": "table", "table": {"per_iteration": 1.0}}
SIZE = adapter_bytes(catalog.model("llama-2-7b"), 16)


def served(
    offered: list[tuple[float, int]],
    output: int = 3,
    slots: int = 2,
    load_s: float = 2.0,
    explained: bool = False,
    **changes: Any,
) -> Run:
    """Requests (arrival, adapter) of three tokens, one second each; an adapter takes two seconds to load."""
    arrival_s, adapter = zip(*offered, strict=True)
    lora = {"max_loaded": slots, "bandwidth_gb_s": SIZE / load_s / 1e9, **changes.pop("lora", {})}
    made = requests_of(list(arrival_s), [4] * len(offered), [output] * len(offered))
    setup = scenario(timing=SECOND, replica={"num_kv_blocks": 1000}, lora=lora, **changes)
    return run(setup, requests=replace(made, adapter=np.array(adapter, np.int32)), explained=explained)


def test_an_adapter_is_loaded_once_and_found_again() -> None:
    done = served([(0.0, 0), (0.5, 0), (0.0, -1), (10.0, 0)])
    q = done.cluster.requests
    # The one without an adapter starts at once; the others when it is loaded, at 2 s, one after the other: the first
    # forms a batch, which the second waits for.
    assert q.scheduled_s.tolist() == [2.0, 3.0, 0.0, 10.0]
    figures = summarize(done).adapters
    assert figures is not None
    assert (figures.requests, figures.loads, figures.waited) == (3, 1, 0.0) and figures.found == pytest.approx(2 / 3)


def test_loads_come_one_after_another() -> None:
    assert served([(0.0, 0), (0.0, 1)]).cluster.requests.scheduled_s.tolist() == [2.0, 4.0]


def test_where_all_slots_are_in_use_a_request_waits_for_one() -> None:
    """One slot: adapter 0 is in use until 5 s, then 1 is loaded until 7 s, in use until 10, then 0 again."""
    done = served([(0.0, 0), (0.0, 1), (6.0, 0)], slots=1)
    assert done.cluster.requests.scheduled_s.tolist() == [2.0, 7.0, 12.0]
    assert done.adapters is not None and done.adapters.counts.tolist() == [[0, 3, 2]]


def test_the_one_not_in_use_for_longest_makes_room() -> None:
    done = served([(0.0, 0), (10.0, 1), (20.0, 0), (30.0, 2), (40.0, 0), (50.0, 1)])
    # 2 takes the place of 1, which was used last at 10 s: 0 is found at 40 s, 1 is loaded again.
    assert (done.cluster.requests.scheduled_s - done.requests.arrival_s).tolist() == [2.0, 2.0, 0.0, 2.0, 0.0, 2.0]


def test_iterations_take_longer_with_adapters_in_use() -> None:
    curve = {"slowdown": [[1, 0.5], [2, 1.0]]}
    plain = served([(0.0, -1)], lora=curve)
    assert plain.cluster.requests.finished_s[0] == 3.0
    assert served([(0.0, 0)], lora=curve).cluster.requests.finished_s[0] == pytest.approx(2.0 + 3 * 1.5)
    both = served([(0.0, 0), (0.0, 1)], lora=curve, load_s=1e-9).cluster.requests
    # Iterations of two seconds; the second one joins at the first end.
    assert both.finished_s.tolist() == pytest.approx([6.0, 8.0], abs=1e-6)


def test_adapter_aware_goes_where_the_adapter_is() -> None:
    offered = [(0.0, 0), (0.1, 1), (10.0, 1), (10.1, 0), (20.0, 0)]
    aware = served(offered, slots=1, num_replicas=2, router="adapter_aware").cluster.requests
    assert aware.replica.tolist() == [0, 1, 1, 0, 0]
    blind = served(offered, slots=1, num_replicas=2, router="round_robin").cluster.requests
    assert blind.replica.tolist() == [0, 1, 0, 1, 0]
    # Too busy: 16 requests weigh as much as a load.
    crowd = [(0.0, 0)] * 18 + [(0.1, 0)]
    assert set(served(crowd, num_replicas=2, router="adapter_aware").cluster.requests.replica.tolist()) == {0, 1}


def test_adapters_survive_failures() -> None:
    """Replica 0 dies with an adapter that is being loaded and one in line: both requests go elsewhere."""
    fleet = {"events": [{"at_s": 1.0, "what": "fail", "replica": 0}], "failures": {"detect_s": 0.5}}
    done = served([(0.0, 0), (0.1, 0), (0.2, 1), (0.3, 1)], slots=1, num_replicas=2, fleet=fleet)
    q = done.cluster.requests
    assert (q.status == FINISHED).all() and (q.replica == 1).all()
    assert not done.cluster.replicas.num_coming.any()


def test_requests_lost_before_they_had_a_place_in_a_queue_have_whole_accounts() -> None:
    fleet = {"events": [{"at_s": 1.0, "what": "fail", "replica": 0}], "failures": {"detect_s": 0.5}}
    offered = [(0.0, 0), (0.1, 0), (0.2, 1), (0.3, 1)]
    for _ in range(3):
        np.full(len(offered) * 2 * NUM_PARTS, -(2**40))  # Memory that was used before holds anything.
        found = accounts(served(offered, slots=1, num_replicas=2, fleet=fleet, explained=True))
        assert found.parts_ns.min() >= 0
        assert found.parts_ns.sum(axis=(1, 2)).tolist() == found.e2e_ns.tolist()


def test_waiting_for_a_replica_is_an_outage_also_with_an_adapter() -> None:
    """The only replica is away until 5 s; then the adapter is loaded for 2 s."""
    events = [{"at_s": 0.5, "what": "fail", "replica": 0}, {"at_s": 5.0, "what": "repair", "replica": 0}]
    at_once = dict.fromkeys(("node_s", "image_s", "weights_s", "compile_s", "warmup_s"), 0.0)
    fleet = {"events": events, "failures": {"detect_s": 0.1}, "cold_start": at_once}
    done = served([(1.0, 0)], num_replicas=1, fleet=fleet, explained=True)
    assert done.cluster.requests.scheduled_s.tolist() == [7.0]
    before = accounts(done).parts_ns[0, BEFORE] / 1e9
    assert (before[OUTAGE], before[ADAPTER]) == (4.0, 2.0)


@pytest.mark.parametrize("router", ["adapter_aware", "least_outstanding"])
def test_nothing_is_lost_with_many_adapters(router: str) -> None:
    workload = {
        "num_requests": 200,
        "adapters": {"count": 20, "share": 0.8},
        "sessions": {"num_active": 30, "turns": 2},
    }
    done = run(scenario(num_replicas=3, router=router, lora={"max_loaded": 3}, workload=workload))
    q = done.cluster.requests
    assert (q.status == FINISHED).all()
    assert not done.cluster.adapter_slots.num_users.any() and not done.cluster.replicas.num_coming.any()
    assert summarize(done).adapters is not None


def test_adapters_are_drawn_by_popularity_and_keep_prefixes_apart() -> None:
    workload = {"num_requests": 4000, "adapters": {"count": 4, "zipf": 1.0, "share": 0.5}}
    made = generate(WorkloadConfig(**workload), 0)
    counts = np.bincount(made.adapter + 1) / 4000
    expected = 0.5 / np.array([1, 2, 3, 4]) / sum(1 / k for k in (1, 2, 3, 4))
    assert counts == pytest.approx([0.5, *expected], abs=0.03)
    talks = generate(
        WorkloadConfig(num_requests=300, adapters={"count": 2}, sessions={"turns": 3, "shared_prefix_tokens": 64}), 0
    )
    assert all(len(set(talks.adapter[talks.session == one])) == 1 for one in set(talks.session.tolist()))
    first = {int(talks.adapter[i]): int(talks.prefix(i)[0]) for i in range(300)}
    assert len(set(first.values())) == 2  # The shared prefix is another one with each adapter.


def test_sizes_and_memory() -> None:
    """Llama-3-8B, rank 16: 32 layers; q and o 4096 + 4096, k and v 4096 + 1024, three of 4096 + 14336; 42 M weights."""
    weights = 32 * 16 * (2 * 8192 + 2 * 5120 + 3 * 18432)
    assert adapter_bytes(catalog.model("llama-3-8b"), 16) == 2 * weights
    base = {"model": "llama-3-8b", "device": "h200", "timing": SECOND}
    plain = run(scenario(**base))
    with_room = run(scenario(**base, workload={"adapters": {"count": 2}}, lora={"max_loaded": 100, "ranks": [8, 16]}))
    block = plain.pools[0].plan.block_bytes  # type: ignore[union-attr]
    assert plain.pools[0].num_kv_blocks - with_room.pools[0].num_kv_blocks == -(-100 * 2 * weights // block)


def test_wrong_sections_are_refused() -> None:
    for slowdown, told in (("h200-rank-61", "h200-rank-64"), ([[2, 0.1], [1, 0.2]], "in order")):
        with pytest.raises(GnomonError, match=told):
            scenario(lora={"slowdown": slowdown})
    assert LoraConfig(slowdown="h200-rank-16", max_loaded=8).curve()[[0, 1, 8]].tolist() == [0.0, 0.316, 0.518]
    roles = [{"role": "prefill"}, {"role": "decode"}]
    with pytest.raises(GnomonError, match="apart"):
        run(scenario(pools=roles, workload={"adapters": {}}))
