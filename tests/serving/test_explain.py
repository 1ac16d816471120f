"""Explanations: built scenarios with a known cause, advice that is a run, stories, the command."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gnomon
from conftest import CommandLine
from gnomon.api.explanation import Explanation
from gnomon.api.serving import Simulation
from gnomon.core.config import build
from gnomon.core.errors import ConfigError, GnomonError
from gnomon.report.serving.explanation import advice_rows, limit_rows
from gnomon.serving.results.counterfactual import Change, advice, changed, limits, ranked
from gnomon.serving.results.explain import delayed_by, waited_behind
from gnomon.serving.results.latency_breakdown import NAMES
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from serving_kit import requests_of, scenario


def explained(setup: Any, requests: Any = None, **options: Any) -> Explanation:
    """The explanation of a small run, without advice."""
    done = Simulation(run(setup, requests=requests, explained=True))
    return done.explain(**{"advice": False, **options})


def steady(count: int, gap_s: float = 0.05) -> np.ndarray[Any, Any]:
    """Arrivals at equal distances."""
    return gap_s * np.arange(count)


def test_one_giant_prompt() -> None:
    prompt = np.full(200, 20)
    prompt[60] = 40_000
    found = explained(
        scenario(model="llama-3.1-8b"), requests_of(steady(200, 0.1), prompt, np.full(200, 10)), percentile=90
    )
    first = found.slow.circumstances[0]
    assert first.why == "giant prompt" and first.facts["request"] == 60
    assert "request 60 has 40,000 tokens" in found.sentences[0]
    assert found.slow.causes[0].name == "prefills"


def test_too_little_kv() -> None:
    setup = scenario(replica={"num_kv_blocks": 20}, batching={"prefix_cache": False})
    found = explained(setup, requests_of(steady(60, 0.1), np.full(60, 60), np.full(60, 40)))
    assert found.slow.causes[0].name == "KV memory"
    assert "too little KV memory" in found.sentences[0]


def test_a_slow_replica() -> None:
    pools = [{"num_replicas": 3}, {"num_replicas": 1, "timing": {"scale": 4.0}}]
    found = explained(
        scenario(pools=pools), requests_of(steady(120, 0.03), np.full(120, 50), np.full(120, 20)), percentile=90
    )
    first = found.slow.circumstances[0]
    assert first.why == "slow replica" and first.facts["replicas"] == [3]
    assert first.facts["factor"] == pytest.approx(4.0, rel=0.05)
    assert "replica 3" in found.sentences[0]


def test_a_burst() -> None:
    usual = steady(100, 0.2)
    arrival = np.sort(np.concatenate([usual, 8.0 + 0.002 * np.arange(80)]))
    setup = scenario(batching={"max_sequences": 4})
    found = explained(setup, requests_of(arrival, np.full(180, 50), np.full(180, 5)), percentile=90)
    assert [one.why for one in found.slow.circumstances] == ["burst"]
    assert "a burst" in found.sentences[0] and found.slow.causes[0].name == "batch cap"


def test_a_bad_router() -> None:
    setup = scenario(num_replicas=3, router="sticky_session", batching={"max_sequences": 2})
    requests = requests_of(steady(90, 0.05), np.full(90, 50), np.full(90, 10))
    object.__setattr__(requests, "session", np.where(np.arange(90) % 10 < 9, 0, np.arange(90)).astype(np.int32))
    found = explained(setup, requests, percentile=90)
    assert found.slow.circumstances[0].why == "routing"
    assert found.slow.causes[0].name == "routing" and "routing" in found.sentences[0]


def test_nothing_to_explain() -> None:
    found = explained(scenario(), requests_of(steady(20, 1.0), np.full(20, 50), np.full(20, 5)))
    assert "no slow tail" in found.sentences[0]


def test_the_story_names_those_in_the_way() -> None:
    setup = scenario(batching={"max_sequences": 2})
    requests = requests_of([0.0, 0.0, 0.01, 0.02], [10, 10, 10, 10], [100, 50, 5, 5])
    found = explained(setup, requests, request=3)
    wait = waited_behind(found.accounts, 3)
    assert (wait.num_ahead, wait.num_running) == (1, 2)
    assert [one.request for one in wait.behind][:2] == [0, 1]
    assert "request 0 (10 + 100 tokens)" in " ".join(found.sentences)
    data = found.to_dict()
    assert sum(data["parts_ns"].values()) == data["e2e_ns"]
    assert set(data["parts_ns"]) == set(NAMES)


def test_with_prefill_apart_only_those_of_the_same_prefill_replica_stand_in_the_way() -> None:
    """Prompts 0 and 2 are computed one after the other on replica 0, 1 and 3 on replica 1. All decode on replica 2:
    nobody's prompt is computed there."""
    pools = [{"role": "prefill", "num_replicas": 2}, {"role": "decode"}]
    setup = scenario(pools=pools, router="round_robin", batching={"max_sequences": 1})
    requests = requests_of([0.0, 0.001, 0.002, 0.003], [400, 300, 400, 300], [30] * 4)
    found = explained(setup, requests, request=2)
    assert [one.request for one in waited_behind(found.accounts, 2).behind] == [0]
    assert [one.request for one in waited_behind(found.accounts, 3).behind] == [1]
    assert all(delayed_by(found.accounts, row) == [] for row in range(4))


@pytest.fixture(scope="module")
def with_advice() -> Explanation:
    """An explanation with everything simulated."""
    setup = scenario(batching={"max_sequences": 4}, replica={"num_kv_blocks": 200}, slo={"ttft_s": 0.2})
    return gnomon.simulate(setup).explain()


def test_advice_is_what_a_run_with_the_change_gives(with_advice: Explanation) -> None:
    assert {one.change.name for one in with_advice.advice} >= {"kv", "budget_512", "cap_double", "replica"}
    for one in with_advice.advice:
        again = gnomon.simulate(one.scenario)
        assert again.summary.latency == one.summary.latency
    best = with_advice.to_dict()["advice"][0]
    assert (best["change"], best["cost per hour"]) == ("twice the batch cap (8)", "nothing"), "free ones first"
    assert "Try twice the batch cap (8) first: the SLO is met by" in " ".join(with_advice.sentences)
    assert with_advice.sentences[0].startswith("92.5% of the requests miss TTFT ≤ 200 ms")


def outcome(name: str, e2e: float, dollars: float = 1.0, group: str = "", needs: str = "", met: float = 0.5) -> Any:
    summary = SimpleNamespace(cost=SimpleNamespace(per_hour=dollars), slo=SimpleNamespace(attainment=met))
    change = Change(name, name, group=group, needs=needs)
    return SimpleNamespace(change=change, summary=summary, figure=lambda *_: e2e)


@pytest.mark.parametrize("met", [0.5, 1.0])
def test_free_changes_come_first_then_what_a_dollar_buys(met: float) -> None:
    """By the SLO where it is missed: d meets more of it than c; else by the latency, which c lowers more."""
    latency = SimpleNamespace(e2e_s=SimpleNamespace(p99=10.0))
    before = SimpleNamespace(cost=SimpleNamespace(per_hour=1.0), slo=SimpleNamespace(attainment=met), latency=latency)
    tried = [
        outcome("replica", 2.0, dollars=3.0, met=0.99), outcome("big replica", 1.0, dollars=9.0, met=1.0),
        outcome("memory", 1.0, needs="memory", met=1.0), outcome("nothing", 10.0),
        outcome("a", 9.0, group="x", met=0.6),
        outcome("b", 8.0, group="x", met=0.7), outcome("c", 6.0, met=0.75), outcome("d", 7.0, met=0.9),
    ]  # fmt: skip
    order = [one.change.name for one in ranked(before, tried, "e2e", "p99")]  # type: ignore[arg-type]
    assert order == [*("dcb" if met < 1 else "cdb"), "replica", "big replica", "memory", "nothing"]


def test_the_same_gpus_in_another_layout() -> None:
    """Four replicas of one GPU: two of two, or one of four."""
    done = run(scenario(num_replicas=4), requests=requests_of([0.0], [100], [3]))
    found = {one.name: changed(done.scenario, done.pools, one) for one in advice(done) if one.group == "layout"}
    assert {name: (one.num_replicas, one.replica.tensor_parallel) for name, one in found.items() if one} == {
        "tp_2": (2, 2), "tp_4": (1, 4),
    }  # fmt: skip


def test_one_more_replica_is_one_of_a_pool_that_is_named() -> None:
    pools = [{"role": "prefill"}, {"role": "decode", "num_replicas": 2, "batching": {"max_sequences": 8}}]
    done = run(scenario(pools=pools), requests=requests_of([0.0], [100], [3]))
    more = {one.words: one for one in advice(done) if one.name.startswith("replica")}
    assert list(more) == [
        "one more prefill replica of pool 0 (a100-80gb)",
        "one more decode replica of pool 1 (a100-80gb)",
    ]
    counts = [
        [pool.num_replicas for pool in (changed(done.scenario, done.pools, one) or done.scenario).pools]
        for one in more.values()
    ]
    assert counts == [[2, 2], [1, 3]]
    assert "half the batch cap of every pool" in [one.words for one in advice(done)]


def test_the_limit_is_the_batch_cap(with_advice: Explanation) -> None:
    assert with_advice.to_dict()["limits"][0]["if free"] == "the batch cap"


def test_a_change_too_small_to_show_has_no_minus(with_advice: Explanation) -> None:
    same = with_advice.advice[0]
    before = same.summary
    worse = SimpleNamespace(change=same.change, summary=before, figure=lambda name, of: 1.0001 * same.figure(name, of))
    rows = [*advice_rows(before, [worse], "e2e", "p99"), *limit_rows(before, [worse])]  # type: ignore[list-item]
    shown = [rows[0]["gain in E2E"], rows[1]["mean E2E"], rows[1]["E2E P99"]]
    assert shown == ["+0.0%", "+0.0%", "+0.0%"]


def test_free_resources_make_times_shorter() -> None:
    at = {"model": "llama-3-8b", "device": "h100", "workload": {"rate": 2.0, "num_requests": 20}}
    plain, compute, memory = (
        gnomon.simulate({**at, "timing": {"source": "roofline", "free": free}}).summary.latency
        for free in ((), ("compute",), ("memory",))
    )
    assert memory.tpot_s.mean < 0.5 * plain.tpot_s.mean  # type: ignore[operator]
    assert compute.tpot_s.mean > 0.9 * plain.tpot_s.mean  # type: ignore[operator]
    assert compute.ttft_s.mean < 0.9 * plain.ttft_s.mean  # type: ignore[operator]
    with pytest.raises(ConfigError, match="free is not used"):
        scenario(timing={"free": ["compute"]})


def test_what_is_wrong_is_said() -> None:
    done = Simulation(run(scenario(), explained=True))
    with pytest.raises(ConfigError, match="no request 4000"):
        done.explain(request=4000)
    with pytest.raises(ConfigError, match="between 0 and 100"):
        done.explain(percentile=100.0)
    with pytest.raises(ConfigError, match="unknown metric"):
        done.explain(metric="tbt")  # type: ignore[arg-type]
    with pytest.raises(GnomonError, match="has no explanation"):
        gnomon.time().explain()


def test_drawings_and_frames() -> None:
    found = explained(scenario(num_replicas=2))
    assert {name: bool(found.drawings[name]["data"]) for name in ("causes", "slowest", "neighbours")} == {
        "causes": True, "slowest": True, "neighbours": True
    }  # fmt: skip
    for name in ("causes", "slowest"):  # The legend below has room, however many causes there are.
        data = found.drawings[name]["data"]
        assert found.drawings[name]["layout"]["height"] >= 22 * (len(data) + 2) + 160
    frame = found.frames["parts"]
    total = sum(frame[f"{name}_ns"] for name in NAMES)
    assert (total == frame["e2e_ns"]).all()


def test_the_command(cli: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    small = ("--workload.num-requests", "60", "--timing.source", "roofline")
    cli("simulate", *small, "--out", str(folder))
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<h2>Why</h2>" in page and "why_causes" in page
    first, story = page.split("<p class=why>")[1:3]
    assert first.startswith("The slowest 1 %") and story.startswith("Request ") and "end to end" in story
    said = cli("explain", str(folder), "--no-advice").output
    assert said.startswith("The slowest 1 %") and "Where the time goes" in said
    data = json.loads(cli("explain", str(folder), "--request", "3", "--json").output)
    assert sum(data["parts_ns"].values()) == data["e2e_ns"]
    cli("explain", str(folder), "--no-advice", "--metric", "ttft", "--out", str(tmp_path / "why"))
    assert json.loads((tmp_path / "why" / "explanation.json").read_text())["metric"] == "ttft"
    assert "no request 99" in cli("explain", str(folder), "--request", "99", code=2).output
    assert "not the folder of a run" in cli("explain", str(tmp_path), code=2).output


def test_pipelines_and_post_training_say_what_they_waited_for() -> None:
    step = gnomon.pipeline(schedule="1f1b", stages=4, n=8, prop_len=0.5).explain()
    assert sum(step.summary["critical_path"].values()) == pytest.approx(step.summary["total_time"])
    assert "critical path" in step.text()[0].text  # type: ignore[union-attr]


def test_the_folder_of_a_training_step_is_explained_and_has_no_requests(cli: CommandLine, tmp_path: Path) -> None:
    folder = str(tmp_path / "step")
    cli("pipeline", "run", "--schedule", "1f1b", "--stages", "4", "-n", "8", "--prop-len", "0.5", "--out", folder)
    summary = gnomon.pipeline(schedule="1f1b", stages=4, n=8, prop_len=0.5).explain().summary
    assert json.loads(cli("explain", folder, "--json").output)["critical_path"] == summary["critical_path"]
    for asked in (("--request", "3"), ("--percentile", "99"), ("--metric", "ttft")):
        assert "only a simulation of serving has requests" in cli("explain", folder, *asked, code=2).output
    with pytest.raises(ConfigError, match="percentile: only a simulation"):
        gnomon.explain(gnomon.pipeline(schedule="1f1b"), percentile=95.0)


@pytest.mark.slow
def test_a_post_training_step_is_divided_whole() -> None:
    found = gnomon.posttrain(Path(__file__).parents[2] / "examples/posttrain/small.yaml").explain()
    for row in found.summary["steps"]:
        waited = sum(value for name, value in row.items() if name not in ("step", "seconds"))
        assert waited == pytest.approx(row["seconds"])


def test_sampling_is_a_limit_where_tokens_are_drawn() -> None:
    """Made free, it leaves what choosing the likeliest takes; where nobody asks for more, it is no limit."""
    eight = requests_of([0.0] * 8, [50] * 8, [20] * 8)
    drawn, greedy = (
        run(build(Scenario, {"device": "h100", "timing": {"source": "roofline"}, "sampling": asked}), requests=eight)
        for asked in ({"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1}, {"temperature": 0})
    )
    found = {one.name: one for one in limits(drawn)}
    assert set(found) - {one.name for one in limits(greedy)} == {"sampling"}
    freed = changed(drawn.scenario, drawn.pools, found["sampling"])
    assert freed is not None
    ends = [one.cluster.requests.finished_s for one in (run(freed, requests=drawn.requests), greedy, drawn)]
    assert ends[0].tolist() == ends[1].tolist() and (ends[2] > 1.01 * ends[1]).all()
