"""Capacity, bounds, strategies, resuming: what a search finds and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.report.search.text import nothing_qualifies
from gnomon.search import study
from gnomon.search.capacity import Prober, find_capacity, rate_bound
from gnomon.search.evaluate import Record, Task, evaluate, sequence
from gnomon.search.slo import Gaps
from gnomon.search.space import candidates, scenario_of
from gnomon.search.study import Found, front, is_on_front, search, winning_scenario
from gnomon.serving.results.metrics import summarize
from gnomon.serving.results.percentiles import weighted_percentiles
from gnomon.serving.run.simulate import run
from search_kit import QUICK, TABLE, question


def test_the_capacity_of_a_single_server_is_that_of_an_m_d_1_queue() -> None:
    service_s, tokens = 0.2, 20  # One request at a time, one iteration of 10 ms per output token.
    asked = question(
        workload={"lengths": {"distribution": "fixed", "prompt": 8, "output": tokens}},
        slo={"scheduling_delay_s": {"mean": service_s / 2}},  # M/D/1: rho S / (2 (1 - rho)) = S / 2 at rho = 1/2.
        space={"batching": [{"policy": "vllm_v1", "max_sequences": 1}]},
        settings={"timing.source": "table", "timing.table": {"per_iteration": service_s / tokens}},
        effort={"min_requests": 4000, "max_requests": 64_000, "convergence": 0.01},
    )
    (one,) = candidates(asked)
    record = evaluate(Task(asked, one))
    assert record.capacity_per_s == pytest.approx(0.5 / service_s, rel=0.03)
    assert record.converged
    assert record.binding == "scheduling_delay_s mean"


def test_without_an_slo_the_capacity_is_where_the_queue_begins_to_grow() -> None:
    asked = question(
        workload={"lengths": {"distribution": "fixed", "prompt": 8, "output": 20}},
        slo={},
        space={"batching": [{"policy": "vllm_v1", "max_sequences": 1}]},
        settings={"timing.source": "table", "timing.table": {"per_iteration": 0.01}},
        effort={"min_requests": 2000, "max_requests": 16_000},
    )
    record = evaluate(Task(asked, candidates(asked)[0]))
    assert record.capacity_per_s == pytest.approx(5.0, rel=0.06)
    assert record.binding == "growing queue"


@pytest.mark.parametrize("policy", ["vllm_v1", "sglang", "vllm", "sarathi", "orca", "lightllm"])
def test_the_bound_is_above_the_capacity(policy: str) -> None:
    asked = question(slo={}, space={"batching": [policy]}, effort=QUICK | {"max_requests": 3200})
    scenario = scenario_of(asked, candidates(asked)[0])
    requests = sequence(asked, scenario)
    bound = rate_bound(scenario, requests)
    found = find_capacity(Prober(scenario, requests, asked.slo), bound, asked.effort, 1)
    assert 0.3 * bound < found.per_s <= 1.03 * bound


def test_the_load_just_above_fails_and_the_capacity_itself_does_not() -> None:
    asked = question()
    one = candidates(asked)[0]
    record = evaluate(Task(asked, one))
    scenario = scenario_of(asked, one)
    prober = Prober(scenario, sequence(asked, scenario), asked.slo)
    assert record.capacity_per_s is not None and record.num_requests is not None
    assert prober(record.capacity_per_s, record.num_requests).met
    assert not prober(record.capacity_per_s * 1.03, record.num_requests).met


def test_smart_finds_the_optimum_of_exhaustive_with_a_fraction_of_the_runs() -> None:
    exhaustive = search(question(strategy="exhaustive"), jobs=1)
    smart = search(question(strategy="smart"), jobs=1)
    assert exhaustive.best is not None and smart.best is not None
    assert smart.best.score is not None and exhaustive.best.score is not None
    assert smart.best.score >= 0.98 * exhaustive.best.score
    assert smart.runs < 0.7 * exhaustive.runs
    assert len(smart.ranked) + len(smart.others) == len(exhaustive.ranked) + len(exhaustive.others) == 12
    passed = [one for one in smart.others if one.status == "passed over"]
    assert passed
    by_label = {one.label: one for one in exhaustive.ranked}
    for one in passed:  # What was passed over is indeed no better.
        assert by_label[one.label].score <= 1.03 * smart.best.score  # type: ignore[operator]


def test_processes_give_the_same_file_to_the_last_byte(tmp_path: Path) -> None:
    for jobs in (1, 2):
        search(question(), results=tmp_path / f"{jobs}.jsonl", jobs=jobs)
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "2.jsonl").read_bytes()


@pytest.mark.parametrize(("strategy", "lines_kept"), [("smart", (1, 4, 9)), ("exhaustive", (4,))])
def test_interrupted_and_resumed_is_the_same(tmp_path: Path, strategy: str, lines_kept: tuple[int, ...]) -> None:
    asked, file = question(strategy=strategy), tmp_path / "results.jsonl"
    whole = search(asked, results=file, jobs=1)
    text = file.read_bytes()
    lines = text.splitlines(keepends=True)
    for kept in lines_kept:
        file.write_bytes(b"".join(lines[:kept]) + lines[kept][:25])  # A line was being written when it stopped.
        resumed = search(asked, results=file, jobs=1)
        assert file.read_bytes() == text
        assert resumed == whole


def test_a_finished_search_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, file = question(strategy="exhaustive"), tmp_path / "results.jsonl"
    first = search(asked, results=file, jobs=1)
    monkeypatch.setattr(study, "evaluate", _explode)
    monkeypatch.setattr(study, "capacity_with_seed", _explode)
    assert search(asked, results=file, jobs=1) == first


def _explode(task: Any) -> Record:
    raise AssertionError("nothing is left to do")


def _fail_on_sarathi(task: Task) -> Record:
    if "sarathi" in task.candidate.label:
        raise RuntimeError("a mistake of ours")
    return evaluate(task)


def test_single_failures_are_recorded_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, file = question(strategy="exhaustive"), tmp_path / "results.jsonl"
    with monkeypatch.context() as patched:
        patched.setattr(study, "evaluate", _fail_on_sarathi)
        found = search(asked, results=file, jobs=1)
    failed = [one for one in found.others if one.status == "failed"]
    assert len(failed) == 4 and len(found.ranked) == 8
    assert all(one.reason == "RuntimeError: a mistake of ours" for one in failed)
    again = search(asked, results=file, jobs=1)
    assert len(again.ranked) == 12


def test_the_results_of_another_search_are_refused(tmp_path: Path) -> None:
    search(question(), results=tmp_path / "results.jsonl", jobs=1)
    with pytest.raises(ConfigError, match="results of another search"):
        search(question(seed=1), results=tmp_path / "results.jsonl", jobs=1)


def test_what_does_not_fit_is_explained() -> None:
    space = {"device": "a100", "tensor_parallel": [1, 8]}
    asked = question(model="llama-2-70b", space=space, settings=TABLE)
    found = search(asked, jobs=1)
    (impossible,) = [one for one in found.others if one.status == "impossible"]
    assert "does not fit on a100-80gb" in (impossible.reason or "")
    assert "short per GPU" in (impossible.reason or "")
    assert found.best is not None and found.best.overrides["replica.tensor_parallel"] == 8


def test_a_node_of_another_gpu_is_explained() -> None:
    found = search(question(space={"device": ["a100", "h100"], "node": ["a100_dgx"]}), jobs=1)
    (impossible,) = [one for one in found.others if one.status == "impossible"]
    assert "a100_dgx is a node of a100" in (impossible.reason or "")
    assert found.best is not None and found.best.overrides["device"] == "a100"


def test_an_slo_that_nothing_meets_names_the_nearest() -> None:
    found = search(question(slo={"tbt_s": {"p50": 1e-3}}), jobs=1)
    assert found.best is None
    assert all(one.nearest_miss is not None and one.nearest_miss > 5 for one in found.others)


def test_requests_that_are_never_served_are_told(tmp_path: Path) -> None:
    # vLLM v0 refuses prompts beyond its batch.
    asked = question(
        workload={"lengths": {"distribution": "fixed", "prompt": 500, "output": 10}},
        space={"batching": [{"policy": "vllm", "max_batch_tokens": 256}]},
    )
    found = search(asked, results=tmp_path / "results.jsonl", jobs=1)
    assert found.best is None
    assert "100.0% of the requests are refused" in (found.others[0].reason or "")
    assert "No configuration meets the SLO" in nothing_qualifies(found)


def test_cost_counts_the_fewest_replicas() -> None:
    asked = question(objective="cost", load=120.0, space={"device": "a100", "router": "least_outstanding"})
    found = search(asked, jobs=1)
    assert found.best is not None
    copies = found.best.overrides["num_replicas"]
    assert copies > 1
    assert found.best.cost_per_hour == pytest.approx(copies * 1.74)
    fewer = scenario_of(asked, found.best.candidate.with_replicas(copies - 1))
    requests = sequence(asked, fewer)
    assert not Prober(fewer, requests, asked.slo)(120.0, min(8 * 200 * (copies - 1), len(requests))).met


def test_cost_takes_only_numbers_of_replicas_that_are_allowed() -> None:
    space = {"device": ["a100", "h100"], "num_replicas": [1, 16]}
    found = search(question(objective="cost", load=120.0, space=space), jobs=1)
    assert found.best is not None and found.best.overrides["num_replicas"] == 16
    assert found.best.overrides["device"] == "a100"  # The same explicit times, for less.
    too_few = search(question(objective="cost", load=1e5, space={"num_replicas": [1, 2]}), jobs=1)
    assert too_few.best is None
    assert "replicas" in (too_few.others[0].reason or "")


def test_goodput_per_gpu() -> None:
    slo = {"goodput": {"ttft_s": 0.5, "tpot_s": 0.05, "share": 0.8}}
    found = search(question(objective="goodput_per_gpu", slo=slo), jobs=1)
    best = found.best
    assert best is not None and best.good_share is not None and best.capacity_per_s is not None
    assert best.good_share >= 0.8
    assert best.score == pytest.approx(best.capacity_per_s * best.good_share / (best.num_gpus or 0))


def test_the_winner_as_a_scenario_does_what_was_measured() -> None:
    found = search(question(), jobs=1)
    assert found.best is not None
    summary = summarize(run(winning_scenario(found.search, found.best)))
    assert summary.latency.ttft_s.p90 == found.best.figures["ttft_s p90"]
    assert summary.latency.tbt_s.p99 == found.best.figures["tbt_s p99"]
    assert summary.requests.finished == found.best.num_requests


def test_intervals_shrink_with_longer_runs() -> None:
    def margin(longest: int) -> float:
        effort = {"min_requests": longest, "max_requests": longest, "num_intervals": 1, "num_sequences": 6}
        space = {"batching": ["vllm_v1"]}
        return next(iter(search(question(space=space, effort=effort), jobs=1).margins.values()))

    assert margin(6400) < margin(200)


def test_a_statistic_of_gaps_is_that_of_the_summary() -> None:
    draw = np.random.default_rng(0)
    seconds, counts = draw.random(500), draw.integers(1, 9, 500)
    gaps, expected = Gaps(seconds, counts), weighted_percentiles(seconds, counts)
    for name in ("p50", "p90", "p99", "max"):
        assert gaps.statistic(name) == getattr(expected, name)
    assert gaps.statistic("mean") == pytest.approx(expected.mean)


def test_the_front() -> None:
    assert is_on_front([(1, 3), (2, 2), (3, 1), (3, 3), (2, 2)]) == [True, True, True, False, True]
    found = search(question(strategy="exhaustive"), jobs=1)
    marks = front(found.search, found.ranked)
    assert marks[0]  # Nothing is worth more than the best.
    assert _dominated_are_off(found, marks)


def _dominated_are_off(found: Found, marks: list[bool]) -> bool:
    def point(one: Record) -> tuple[float, ...]:
        return (-(one.score or 0.0), one.figures["ttft_s p90"] or 0.0, one.figures["tbt_s p99"] or 0.0)

    for one, is_on in zip(found.ranked, marks, strict=True):
        beaten = any(all(a < b for a, b in zip(point(o), point(one), strict=True)) for o in found.ranked)
        if beaten and is_on:
            return False
    return True


def test_the_space() -> None:
    routed = question(space={"num_replicas": [1, 2], "router": ["random", "round_robin"]})
    labels = [one.label for one in candidates(routed)]
    # With one replica the router has nothing to decide.
    assert labels == ["h100 TP1 PP1 vllm_v1", "h100 TP1 PP1 vllm_v1 x2 random", "h100 TP1 PP1 vllm_v1 x2 round_robin"]
    assert json.loads(candidates(routed)[1].key)["num_replicas"] == 2


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"space": {"tensor_parallel": []}}, ConfigError, "the space is empty: tensor_parallel"),
        ({"space": {"tensor_paralel": [1]}}, ConfigError, "Did you mean 'tensor_parallel'"),
        ({"space": {"device": ["h1000"]}}, UnknownNameError, "unknown device 'h1000'"),
        ({"space": {"batching": ["vllm_v2"]}}, UnknownNameError, "unknown batching policy 'vllm_v2'"),
        ({"space": {"router": ["robin"]}}, UnknownNameError, "unknown router 'robin'"),
        ({"slo": {"ttft": {"p90": 1}}}, ConfigError, "Did you mean 'ttft_s'"),
        ({"slo": {"ttft_s": {"90": 1}}}, ConfigError, "unknown statistic '90'"),
        ({"slo": {"goodput": {"share": 0.5}}}, ConfigError, "goodput needs a limit"),
        ({"objective": "cost"}, ConfigError, "load"),
        ({"objective": "goodput_per_gpu"}, ConfigError, "needs slo.goodput"),
        ({"settings": {"model": "x"}}, ConfigError, "has a key of its own"),
        ({"settings": {"timing.sorce": "table"}}, ConfigError, "timing.sorce"),
        ({"workload": {"arrivals": "batch"}}, ConfigError, "changes the arrival rate"),
    ],
)
def test_mistakes(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        search(question(**changes), jobs=1)
