"""Classes of users: policies that tell them apart, worked out by hand; accounts, fairness and figures by class.

Every iteration takes one second. Requests are (arrival, prompt tokens, output tokens, class).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gnomon.core.errors import ConfigError
from gnomon.serving.engine.state import FINISHED, OUTPUT_TOKENS, PROMPT_TOKENS, QUEUED
from gnomon.serving.results.class_metrics import jain_index
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.simulate import Run
from gnomon.workload import WorkloadConfig, generate
from gnomon.workload.slo import SloConfig, UserClass
from serving_kit import check_invariants, outcome, requests_of, run, scenario

Offered = dict[str, tuple[float, int, int, int]]
TWO = (UserClass("low"), UserClass("high", priority=1))


def served(
    policy: str, offered: Offered, classes: tuple[UserClass, ...] = TWO, blocks: int = 1000, **settings: Any
) -> Run:
    """One replica whose iterations take a second each."""
    batching = {"policy": policy, "block_size": 4, "prefix_cache": False, "max_sequences": 10, **settings}
    setup = scenario(
        timing={"source": "table", "table": {"per_iteration": 1.0}},
        replica={"num_kv_blocks": blocks, "max_request_tokens": 4096},
        batching=batching,
    )
    *columns, of_class = zip(*offered.values(), strict=True)
    requests = replace(requests_of(*columns), user_class=np.array(of_class, np.int8), classes=classes)
    done = run(setup, requests=requests, keep_members=1000)
    assert (done.cluster.requests.status == FINISHED).all()
    return done


def batches(policy: str, offered: Offered, *given: Any, **settings: Any) -> list[str]:
    done = served(policy, offered, *given, **settings)
    rows, names = done.log.iterations[: done.log.used[0]], list(offered)
    members = [done.log.members[row.first_member : row.first_member + row["size"]] for row in rows]
    return [" ".join(f"{names[r]}{tokens}" for r, tokens in batch) for batch in members]


def test_priority_admits_the_urgent_first_and_each_class_in_order() -> None:
    offered = {"A": (0, 4, 1, 0), "B": (0, 4, 1, 0), "C": (0, 4, 1, 1), "D": (0, 4, 1, 1)}
    assert batches("priority", offered, max_sequences=1) == ["C4", "D4", "A4", "B4"]
    assert batches("vllm_v1", offered, max_sequences=1) == ["A4", "B4", "C4", "D4"]


def test_priority_pushes_a_less_urgent_request_out() -> None:
    """One place. C comes while A has two of its four tokens: A starts again, with six tokens to prefill."""
    offered = {"A": (0, 4, 4, 0), "C": (1.5, 4, 2, 1)}
    assert batches("priority", offered, max_sequences=1) == ["A4", "A1", "C4", "C1", "A6", "A1"]
    without = {"options": {"preempts": 0.0}, "max_sequences": 1}
    assert batches("priority", offered, **without) == ["A4", "A1", "A1", "A1", "C4", "C1"]


def test_priority_pushes_nobody_out_of_its_own_class() -> None:
    offered = {"A": (0, 4, 3, 1), "C": (0.5, 4, 1, 1)}
    assert batches("priority", offered, max_sequences=1) == ["A4", "A1", "A1", "C4"]


def test_priority_frees_memory_from_the_least_urgent_admitted_last() -> None:
    """Three blocks of four tokens: A and B hold one each and are about to need more; C needs two."""
    offered = {"A": (0, 4, 2, 0), "B": (0, 4, 2, 0), "C": (0.5, 8, 1, 1)}
    assert batches("priority", offered, blocks=3) == ["A4 B4", "C8", "A5", "B5"]


def test_vtc_serves_the_class_that_had_least() -> None:
    """One place. The first class sends three long prompts, the second short ones: after A (8 tokens and twice one
    output token: counter 10) the second class may send two (counters 4, 8) and a third, at 12, waits for B."""
    offered = {"A": (0, 8, 1, 0), "B": (0, 8, 1, 0), "C": (0, 2, 1, 1), "D": (0, 2, 1, 1), "E": (0, 2, 1, 1)}
    assert batches("vtc", offered, max_sequences=1) == ["A8", "C2", "D2", "E2", "B8"]


def test_vtc_counts_outputs_as_they_come() -> None:
    """Two places. A has produced two tokens when a place becomes free: its class stands at 4 + 2 x 3 = 10 and more, so
    that the second class, at 8 + 2 = 10 after B, ... goes first as it has had less."""
    offered = {"A": (0, 4, 8, 0), "B": (0, 8, 1, 1), "C": (0, 2, 1, 0), "D": (0, 2, 1, 1)}
    order = batches("vtc", offered, max_sequences=2)
    first = {name: next(i for i, batch in enumerate(order) if name in batch) for name in "CD"}
    # After the first iteration: class 0 has 4 + 2 x 1 = 6, class 1 has 8 + 2 x 1 = 10: C goes first.
    assert order[0] == "A4 B8"
    assert first == {"C": 1, "D": 2}


def test_vtc_lets_no_class_save_service_up() -> None:
    """The second class comes late. Without the lift it would hold the replica until it had caught up with all four of
    the first class; with it they take turns from its arrival on, ties to the first."""
    offered = dict.fromkeys("ABCDEF", (0.0, 8, 1, 0)) | dict.fromkeys("UVW", (3.5, 8, 1, 1))
    assert batches("vtc", offered, max_sequences=1) == [
        f"{name}8" for name in ("A", "B", "C", "D", "E", "U", "F", "V", "W")
    ]


def test_vtc_gives_a_class_of_twice_the_weight_twice_the_service() -> None:
    offered = {f"a{i}": (0.0, 8, 1, 0) for i in range(30)} | {f"b{i}": (0.0, 8, 1, 1) for i in range(30)}
    classes = (UserClass("one", weight=1.0), UserClass("two", weight=2.0))
    order = batches("vtc", offered, classes, max_sequences=1)
    of_two = sum(batch.startswith("b") for batch in order[:30])
    assert of_two == 20


def test_drr_takes_turns_of_a_quantum() -> None:
    """Quantum 20 and prompts that cost 8 + 2 each: two of a class, then two of the other."""
    offered = {f"{name}{i}": (0.0, 8, 1, c) for c, name in enumerate("xy") for i in range(4)}
    order = batches("drr", offered, max_sequences=1, options={"quantum": 20.0})
    assert "".join(batch[0] for batch in order) == "xxyyxxyy"


def test_drr_makes_a_class_in_debt_wait() -> None:
    """X's long answer (4 + 2 x 9 = 22 tokens) is paid for with later quanta of 10: the others come first."""
    offered: Offered = {"X": (0, 4, 9, 0), "x": (0, 4, 1, 0)} | dict.fromkeys("pqr", (0.0, 8, 1, 1))
    order = [batch for batch in batches("drr", offered, max_sequences=1, options={"quantum": 10.0}) if batch[1] != "1"]
    assert "".join(batch[0] for batch in order) == "Xpqxr"


def test_dlpm_prefers_what_is_cached_while_credit_lasts() -> None:
    """Conversations of the first class share a prefix with what was served; with a large quantum they all go first,
    with a small one the second class gets its turn in between."""
    offered = {"A": (0, [1, 2]), "B": (1, [7, 8]), "C": (0, [1, 2]), "D": (0, [1, 2])}
    orders = {quantum: order_of(served_with_prefixes("dlpm", offered, quantum=quantum)) for quantum in (1000.0, 8.0)}
    assert orders == {1000.0: "ACDB", 8.0: "ABCD"}


def served_with_prefixes(policy: str, offered: dict[str, tuple[int, list[int]]], **options: float) -> Run:
    """One place, one answer token each; of each request its class and the blocks of four tokens of its prompt."""
    setup = scenario(
        timing={"source": "table", "table": {"per_iteration": 1.0}},
        replica={"num_kv_blocks": 100, "max_request_tokens": 64},
        batching={"policy": policy, "block_size": 4, "max_sequences": 1, "prefix_cache": True, "options": options},
    )
    classes, blocks = zip(*offered.values(), strict=True)
    requests = replace(
        requests_of([0.0] * len(blocks), [4 * len(one) for one in blocks], [1] * len(blocks)),
        user_class=np.array(classes, np.int8),
        classes=TWO,
        prefix_offsets=np.cumsum([0, *map(len, blocks)]),
        prefix_hashes=np.concatenate(blocks).astype(np.int64),
        prefix_block_tokens=4,
    )
    return run(setup, requests=requests)


def order_of(done: Run, names: str = "ABCDEFGH") -> str:
    return "".join(names[r] for r in np.argsort(done.cluster.requests.scheduled_s, kind="stable"))


def test_dlpm_charges_only_what_is_computed() -> None:
    """Quantum 20, prompts of 8 tokens and one answer token at twice the price. A costs 8 + 2, and C, half of which is
    cached, 4 + 2: of 20, four are left, and D goes too. Where cached tokens cost as much, C uses the rest up."""
    offered = {"A": (0, [1, 2]), "B": (1, [7, 8]), "C": (0, [1, 3]), "D": (0, [1, 4])}
    done = served_with_prefixes("dlpm", offered, quantum=20.0)
    assert order_of(done) == "ACDB"
    assert done.cluster.service[0, :, PROMPT_TOKENS].tolist() == [8 + 4 + 4, 8]
    done = served_with_prefixes("drr", offered, quantum=20.0)
    assert order_of(done) == "ACBD"
    assert done.cluster.service[0, :, PROMPT_TOKENS].tolist() == [24, 8]


@pytest.mark.parametrize(("depth", "expected"), [(128.0, "ADBC"), (3.0, "ADBC"), (2.0, "ABDC"), (1.0, "ABCD")])
def test_dlpm_looks_no_deeper_than_it_may(depth: float, expected: str) -> None:
    """D, the third behind A, shares its prefix: seen where three of those that wait are looked at, or once
    only two are left."""
    offered = {"A": (0, [1, 2]), "B": (0, [7, 8]), "C": (0, [5, 6]), "D": (0, [1, 2])}
    assert order_of(served_with_prefixes("dlpm", offered, quantum=1000.0, depth=depth)) == expected


def test_dlpm_looks_on_until_somebody_has_credit() -> None:
    """A quantum of 10 pays for A (8 + 2), which leaves its class nothing. Whoever has credit then is the third in the
    queue: looked at however short the depth."""
    offered = {"A": (0, [1, 2]), "B": (0, [7, 8]), "C": (0, [5, 6]), "D": (1, [3, 4])}
    assert order_of(served_with_prefixes("dlpm", offered, quantum=10.0, depth=1.0)) == "ADBC"


def by_priority(*shares: float) -> list[dict[str, Any]]:
    return [{"name": f"priority {i}", "share": share, "priority": i} for i, share in enumerate(shares)]


@pytest.mark.parametrize("policy", ["priority", "vtc", "drr", "dlpm"])
def test_accounts_hold_every_token(policy: str) -> None:
    """After a run with pre-emptions each class's account is what its requests produced, and nothing waits."""
    setup = scenario(
        batching={"policy": policy, "max_sequences": 8},
        replica={"num_kv_blocks": 60},
        workload={
            "classes": [
                {"name": f"priority {i}", "share": share, "priority": i} for i, share in enumerate((0.5, 0.3, 0.2))
            ],
            "rate": 60.0,
            "num_requests": 200,
        },
    )
    done = run(setup)
    check_invariants(done)
    q, service = done.cluster.requests, done.cluster.service
    assert not service[:, :, QUEUED].any()
    produced = np.bincount(q.user_class, weights=q.output_tokens, minlength=3)
    assert np.array_equal(service[:, :, OUTPUT_TOKENS].sum(axis=0), produced)
    assert q.num_restarts.any()


@pytest.mark.parametrize("policy", ["priority", "vtc", "drr", "dlpm"])
def test_decodes_handled_one_by_one_give_the_same(policy: str) -> None:
    setup = scenario(
        batching={"policy": policy, "max_sequences": 8},
        replica={"num_kv_blocks": 80},
        workload={
            "classes": by_priority(0.5, 0.5),
            "rate": 60.0,
            "num_requests": 120,
        },
    )
    together, apart = outcome(run(setup)), outcome(run(setup, keep_members=100_000))
    for name in ("finished_s", "first_token_s", "num_restarts"):
        assert np.array_equal(together[name], apart[name]), name


def test_one_class_is_served_as_vllm_v1_serves_it() -> None:
    settings = {"replica": {"num_kv_blocks": 80}, "workload": {"rate": 60.0, "num_requests": 150}}
    plain = outcome(run(scenario(batching={"policy": "vllm_v1"}, **settings)))
    for policy in ("priority", "vtc", "drr"):
        same = outcome(run(scenario(batching={"policy": policy}, **settings)))
        assert np.array_equal(plain["finished_s"], same["finished_s"]), policy


def test_summary_by_class() -> None:
    classes = [
        {"name": "chat", "share": 3, "slo": {"ttft_s": 1000.0}},
        {"name": "batch", "share": 1, "weight": 2.0, "lengths": {"distribution": "fixed", "prompt": 100, "output": 10}},
    ]
    done = run(scenario(workload={"classes": classes, "num_requests": 400}))
    summary = summarize(done)
    chat, batch = summary.classes
    assert chat.arrived + batch.arrived == 400
    assert 250 < chat.arrived < 350
    assert chat.slo is not None and chat.slo.attainment == 1.0
    assert batch.slo is None
    mine = done.cluster.requests[done.cluster.requests.user_class == 1]
    assert (mine.prompt_tokens == 100).all() and (mine.output_tokens == 10).all()
    assert np.isclose(chat.service_share + batch.service_share, 1.0)
    assert batch.service_share == pytest.approx(
        120 * batch.arrived
        / (120 * batch.arrived + float((done.cluster.requests.prompt_tokens + 2 * done.cluster.requests.output_tokens)[
            done.cluster.requests.user_class == 0].sum()))
    )  # fmt: skip


def test_jain_index_of_known_values() -> None:
    assert jain_index(np.array([1.0, 1.0, 1.0])) == 1.0
    assert jain_index(np.array([1.0, 0.0, 0.0])) == pytest.approx(1 / 3)
    assert jain_index(np.array([1.0, 3.0])) == pytest.approx(16 / 20)
    assert jain_index(np.array([0.0])) is None


def test_fewer_requests_of_classes_are_the_first_of_more() -> None:
    given = {"classes": ({"name": "a", "lengths": {"distribution": "uniform", "prompt": [1, 9], "output": [1, 9]}},
                         {"name": "b"})}  # fmt: skip
    many = generate(WorkloadConfig(num_requests=100, **given), 0)
    few = generate(WorkloadConfig(num_requests=50, **given), 0)
    assert np.array_equal(many.user_class[:50], few.user_class)
    assert np.array_equal(many.prompt_tokens[:50], few.prompt_tokens)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"classes": [{"name": "a"}, {"name": "a"}]}, "same name"),
        ({"classes": [{"name": "a", "share": 0}]}, "share above 0"),
        ({"classes": [{"name": "a", "lengths": {"distribution": "trace"}}]}, "must be drawn"),
    ],
)
def test_wrong_classes_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        scenario(workload=given)


def test_a_class_without_targets_of_its_own_has_those_of_the_scenario() -> None:
    done = run(scenario(slo={"e2e_s": 1e6}, workload={"classes": [{"name": "a"}, {"name": "b"}]}))
    assert all(one.slo is not None and one.slo.e2e_s == 1e6 for one in summarize(done).classes)
    assert not SloConfig().is_given


@pytest.mark.parametrize("policy", ["vtc", "drr", "dlpm"])
def test_a_class_pays_for_prompts_that_a_replica_which_came_back_computes_again(policy: str) -> None:
    """All six requests of 50 prompt tokens run when it fails: it comes back with empty accounts, and computes them."""
    events = [{"at_s": 0.1, "what": "fail", "replica": 0}, {"at_s": 0.5, "what": "repair", "replica": 0}]
    cold_start = {"weights_s": 0.25, "compile_s": 0.0, "warmup_s": 0.0}
    fleet = {"controller": {"interval_s": 1000.0}, "events": events, "cold_start": cold_start}
    lengths = {"distribution": "fixed", "prompt": 50, "output": 40}
    classes = [{"name": "a"}, {"name": "b"}]
    workload = {"num_requests": 6, "rate": 1000.0, "lengths": lengths, "classes": classes}
    failures = {"detect_s": 0.1, "keeps_tokens": False}
    done = run(scenario(batching={"policy": policy}, workload=workload, fleet={**fleet, "failures": failures}))
    assert done.cluster.requests.num_restarts.tolist() == [1] * 6
    assert done.cluster.service[0, :, PROMPT_TOKENS].sum() == 300.0
