"""What a search computes, without simulating: bounds from a formula, brackets around a known capacity, scores."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from gnomon.core.config import build
from gnomon.core.errors import ConfigError, DataError, UnknownNameError
from gnomon.core.parallel import Outcome
from gnomon.report.search.text import best_by_device, best_words
from gnomon.report.serving.capacity import rows
from gnomon.search import capacity as capacities
from gnomon.search import load_curve, users
from gnomon.search import load_curve as headroom
from gnomon.search import study as answers
from gnomon.search.capacity import coarse_bracket, find_capacity, rate_bound, refine
from gnomon.search.config import BenchConfig, EffortConfig, GoodputConfig, SearchConfig, SloTargets
from gnomon.search.evaluate import Record, Task, _first_met, bound_of, sequence, smallest_fleet
from gnomon.search.matrix import _part, _path, _share, _task, _worth_elsewhere, questions
from gnomon.search.results import ResultsFile
from gnomon.search.slo import Gaps, Price, Verdict, _statistic, least_excess, may_exceed, price, rate_for, score, shown
from gnomon.search.space import Candidate, candidates, pools_of, scenario_of
from gnomon.search.study import Found, _half_widths, _repeats, finished_search, front, latency_axes
from gnomon.search.users import both_loops
from gnomon.serving.scenario import Scenario
from gnomon.timing.iteration import blank, geometric_axis
from gnomon.workload import generate
from gnomon.workload.requests import ArrivalShape
from search_kit import TABLE, question
from serving_kit import requests_of, scenario

OFFERED = requests_of([0.0, 1.0], [100, 300], [11, 31])  # 200 prompt tokens and 21 output tokens in the mean.


def bounded(table: dict[str, float], **changes: Any) -> float:
    changes = {"batching": {"prefix_cache": False}, **changes}
    return rate_bound(scenario(timing={"source": "table", "table": table}, **changes), OFFERED)


def test_the_bound_of_tokens() -> None:
    """200 prompt tokens and 20 more of decodes at 1 ms."""
    assert bounded({"per_token": 0.001}) == pytest.approx(1 / 0.220)
    assert bounded({"per_token": 0.001}, num_replicas=3) == pytest.approx(3 / 0.220)
    staged = {"replica": {"pipeline_parallel": 2}}
    assert bounded({"per_token": 0.001}, **staged) == pytest.approx(1 / 0.220), "the times are those of a stage"


def test_iterations_that_take_no_time_bound_nothing() -> None:
    assert bounded({}) > 1e6


def test_the_bound_of_pools_adds_up_each_with_its_own_times() -> None:
    slow = {"source": "table", "table": {"per_token": 0.002}}
    fast = {"source": "table", "table": {"per_token": 0.001}}
    plain = {"prefix_cache": False}
    pools = [{"timing": slow, "replica": {"pipeline_parallel": 2}}, {"timing": fast, "num_replicas": 2}]
    found = rate_bound(scenario(pools=pools, timing=slow, batching=plain), OFFERED)
    assert found == pytest.approx(1 / 0.440 + 2 / 0.220)


def test_more_may_come_than_are_served_where_goodput_lets_some_be_turned_away() -> None:
    """Half of the requests must be good: with admission control twice as many may be offered."""
    slo = {"goodput": {"ttft_s": 1.0, "share": 0.5}}
    gate = {**TABLE, "admission.name": "queue_limit"}
    asked = (question(), question(slo=slo), question(settings=gate), question(slo=slo, settings=gate))
    plain, *others = (bound_of(Task(one, next(iter(candidates(one))))) for one in asked)
    assert others == [plain, plain, pytest.approx(2 * plain)]


def test_the_bound_of_sequences_and_of_the_batch_cap() -> None:
    """Sampling 20 decodes at 1 ms each; with an iteration of 10 ms and two at a time, 20 / 2 iterations."""
    assert bounded({"per_sequence": 0.001}) == pytest.approx(1 / 0.020)
    capped = {"batching": {"prefix_cache": False, "max_sequences": 2}}
    assert bounded({"per_iteration": 0.01}, **capped) == pytest.approx(1 / 0.1)


def test_the_bound_of_attention() -> None:
    """Pairs of a prompt: half its square, (100^2 + 300^2) / 4 in the mean. A decode reads prompt + half its output."""
    pairs = (100**2 + 300**2) / 4
    found = 1 / bounded({"per_prefill_token": 1e-6})
    assert found <= 1e-6 * 300, "at least no more than its tokens"
    read = ((10 * 100 + 10 * 10 / 2) + (30 * 300 + 30 * 30 / 2)) / 2
    assert 1 / bounded({"per_decode_kv_token": 1e-6}) == pytest.approx(1e-6 * read)
    assert pairs > read


@pytest.mark.parametrize("per_decode", [1, 2])
def test_the_least_time_of_attention(per_decode: int) -> None:
    """1 us a pair of a prompt, 2 us a KV token that a decode reads, for every token or every second one."""
    axis = geometric_axis(512.0)
    tables = blank(1)._replace(
        token_s=np.zeros((1, 101)), sequence_s=np.zeros((1, 9)), mixed_s=np.zeros((1, 0, 1, 1, 1)),
        prefill_s=1e-6 * (axis[:, None] * (axis[None, :] + axis[:, None] / 2))[None], skew=np.zeros((1, 0, 1)),
        decode_s=2e-6 * (np.arange(9.0)[:, None] * axis)[None], chunk_axis=axis, kv_axis=axis,
    )  # fmt: skip
    pool: Any = SimpleNamespace(
        role="both", batching=SimpleNamespace(prefix_cache=False), max_iteration_tokens=lambda _: 100, max_in_batch=8,
        policy=SimpleNamespace(mixes=True), tokens_per_decode=per_decode,
    )  # fmt: skip
    pairs = (100**2 + 300**2) / 4
    read = ((10 * 100 + 10 * 10 / 2) + (30 * 300 + 30 * 30 / 2)) / 2
    found = capacities._seconds_per_request(pool, tables, 0, OFFERED)
    assert found == pytest.approx(1e-6 * pairs + 2e-6 * read / per_decode)


def test_prefixes_may_spare_all_but_the_last_token() -> None:
    shared = replace(OFFERED, prefix_hashes=np.arange(2), prefix_offsets=np.array([0, 1, 2]), prefix_block_tokens=16)
    setup = scenario(timing={"source": "table", "table": {"per_token": 0.001}}, batching={"prefix_cache": True})
    assert rate_bound(setup, shared) == pytest.approx(1 / 0.021)


@pytest.mark.parametrize(("decider", "expected"), [("always", 1 / 0.200), ("long_prompts", 2 / 0.201 + 1 / 0.021)])
def test_the_bound_of_prefill_and_decode_apart(decider: str, expected: float) -> None:
    """Two replicas prefill (200 tokens, and the first token of the answer is theirs), one decodes (a token of the
    prompt and 20 more)."""
    pools = [{"role": "prefill", "num_replicas": 2}, {"role": "decode"}]
    setup = scenario(
        timing={"source": "table", "table": {"per_token": 0.001}},
        pools=pools,
        batching={"prefix_cache": False},
        disaggregation={"decider": {"name": decider}},
    )
    parts = {"prefill": 2 / 0.200, "decode": 1 / 0.021}
    together = min(parts.values()) if decider == "always" else sum(parts.values())
    assert rate_bound(setup, OFFERED) == pytest.approx(together)


class Known:
    """A prober of a configuration that takes up to `most` requests a second, of 1 s each."""

    def __init__(self, most: float, e2e_s: float = 1.0, requests: int = 10**6) -> None:
        self.most, self.e2e_s, self.requests, self.asked = most, e2e_s, range(requests), []  # type: ignore[var-annotated]

    def __call__(self, rate: float, count: int) -> Verdict:
        if (rate, count) not in self.asked:
            self.asked.append((rate, count))
        return Verdict(rate / self.most if self.most else np.inf, "ttft_s p90", {"e2e_s p50": self.e2e_s}, 1.0, 0.0)

    whole = __call__


def test_short_runs_bracket_within_a_tenth() -> None:
    """Half the bound, 50, is too much, 25 is not; 35.4, 29.7, 32.4 and 30.9 narrow it to a factor of 1.1."""
    prober = Known(30.0)
    low, high = coarse_bracket(prober, 100.0, 500)
    assert [round(rate, 1) for rate, _ in prober.asked] == [50.0, 25.0, 35.4, 29.7, 32.4]
    assert (round(low, 1), round(high, 1)) == (29.7, 32.4)
    assert {count for _, count in prober.asked} == {500}


def test_no_load_at_all_is_found_out() -> None:
    prober = Known(0.0)
    assert coarse_bracket(prober, 1.0, 500) == (0.0, 2.0**-7), "0.0078 requests in the system: below 0.01"


def test_refining_goes_up_and_down_from_a_guess() -> None:
    """Steps of 1 + 2 x 0.05, then its square."""
    prober = Known(30.0)
    low, high = refine(prober, 25.0, 500, 0.05)
    assert [round(rate, 2) for rate, _ in prober.asked] == [25.0, 27.5, 33.28, 30.25, 28.84]
    assert (round(low, 2), round(high, 2)) == (28.84, 30.25)
    prober = Known(30.0)
    low, high = refine(prober, 36.0, 500, 0.05)
    assert [round(rate, 2) for rate, _ in prober.asked] == [36.0, 32.73, 27.05, 29.75, 31.2]
    assert (round(low, 2), round(high, 2)) == (29.75, 31.2)
    assert refine(Known(0.0), 1.0, 500, 0.05)[0] == 0.0
    with pytest.raises(ConfigError, match="no load is too high"):
        refine(Known(np.inf), 1.0, 500, 0.5)


def test_loads_are_looked_for_up_to_a_million_times_lower() -> None:
    """Where each request stays for a year: halves from 1 on, and from a guess of 1 on steps of 2, 4, 16, ..."""
    assert coarse_bracket(Known(0.0, e2e_s=3e7), 1.0, 500) == (0.0, 2.0**-20)
    assert refine(Known(0.0, e2e_s=3e7), 1.0, 500, 0.5) == (0.0, 2.0**-31)
    assert refine(Known(0.0), 1.0, 500, 0.5) == (0.0, 2.0**-7), "0.0078 requests in the system: below 0.01"


def test_capacity_doubles_its_runs_until_nothing_changes() -> None:
    """A run of n requests at 30/s of 1 s each lasts n / 30 turnovers: 25 from 750 on, 50 from 1,500 on. Runs of 400 and
    800 give a coarse answer and a fine one, 1,600 the same again."""
    effort = EffortConfig(min_requests=200, max_requests=10**6, precision=0.02, convergence=0.05)
    prober = Known(30.0)
    found = find_capacity(prober, 100.0, effort, 1)
    assert found.per_s == pytest.approx(30.0, rel=0.02)
    assert found.per_s <= 30.0
    assert (found.num_requests, found.converged, found.binding) == (1600, True, "ttft_s p90")
    assert sorted({count for _, count in prober.asked}) == [200, 400, 800, 1600]
    assert sorted({count for _, count in _asked(effort, 2)}) == [400, 800, 1600]
    slower = Known(20.0)  # 400 requests are 20 turnovers: not yet worth a fine answer.
    find_capacity(slower, 100.0, effort, 1)
    asked = {count: sorted(rate for rate, n in slower.asked if n == count) for count in (400, 800)}
    steps = {n: min(r for r in rates if r > 20.0) / max(r for r in rates if r <= 20.0) for n, rates in asked.items()}
    assert steps[400] > 1.02 >= steps[800]
    short = find_capacity(Known(30.0, requests=700), 100.0, effort, 1)
    assert (short.num_requests, short.converged) == (700, False)
    nothing = find_capacity(Known(0.0), 1.0, effort, 1)
    assert (nothing.per_s, nothing.converged, nothing.num_requests) == (0.0, True, 200)


def _asked(effort: EffortConfig, num_ranks: int) -> list[tuple[float, int]]:
    prober = Known(30.0)
    find_capacity(prober, 100.0, effort, num_ranks)
    return prober.asked


@pytest.mark.parametrize(
    ("least", "counts", "expected", "asked"),
    [
        (1, [1, 2, 3], 1, [1]),
        (3, [1, 2, 3, 4, 5], 3, [1, 2, 4, 3]),
        (5, [1, 2, 3, 4, 5], 5, [1, 2, 4, 5]),
        (9, [1, 2, 3], None, [1, 2, 3]),
        (6, [2, 4, 6, 8, 10, 12, 14, 16], 6, [2, 4, 8, 6]),
    ],
)
def test_copies_are_counted_by_galloping(least: int, counts: list[int], expected: int | None, asked: list[int]) -> None:
    seen = []

    def met(count: int) -> bool:
        seen.append(count)
        return count >= least

    assert _first_met(counts, met) == expected
    assert seen == asked


def test_the_fewest_copies_that_carry_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 requests/s where one copy takes at most 12 by its bound and 9 in fact: four by the bound, five in fact."""
    asked = question(objective="cost", load=40.0, slo={"ttft_s": {"p90": 1.0}}, effort={"min_requests": 10})
    (one, *_) = candidates(asked)
    lengths = []

    def judged(self: Any, rate: float, count: int) -> Verdict:
        self.runs, self.simulated = self.runs + 1, self.simulated + count
        lengths.append((self.scenario.num_replicas, count))
        return Verdict(rate / (9.0 * self.scenario.num_replicas), "ttft_s p90", {}, 1.0, 0.0)

    monkeypatch.setattr(capacities.Prober, "_simulate", judged)
    offered = requests_of(np.arange(10_000), [10] * 10_000, [2] * 10_000)
    found = smallest_fleet(asked, one, 12.0, None, lambda _: offered)
    assert not isinstance(found.outcome, str)
    chosen, verdict, length = found.outcome
    assert dict(chosen.overrides)["num_replicas"] == 5
    assert verdict.excess == pytest.approx(40 / 45)
    assert length == 8 * 10 * 5
    assert lengths == [(4, 320), (5, 400)]
    assert (found.runs, found.simulated) == (2, 720)
    each = price(scenario_of(asked, one)).per_hour
    beaten = smallest_fleet(asked, one, 12.0, -each * 4, lambda _: offered)
    assert beaten.beaten and beaten.outcome == f"bound: at least 4 replicas, ${4 * each:.2f}/h"
    tight = smallest_fleet(asked, one, 12.0, -each * 5, lambda _: offered)
    assert tight.beaten and tight.miss == pytest.approx(40 / 36)
    limited = asked.model_copy(update={"space": asked.space.model_copy(update={"num_replicas": (2, 3)})})
    assert smallest_fleet(limited, one, 12.0, None, lambda _: offered).outcome == (
        "3 replicas are too few: at least 4 are needed"
    )


def test_scores() -> None:
    two = Price(4, 10.0)
    assert score("goodput_per_gpu", 12.0, 0.5, two) == 1.5
    assert score("qps_per_dollar", 12.0, 0.5, two) == 1.2
    assert score("cost", 12.0, 0.5, two) == -10.0
    assert rate_for("goodput_per_gpu", 1.5, two) == 6.0
    assert rate_for("qps_per_dollar", 1.2, two) == 12.0
    assert (shown("cost", -10.0), shown("goodput_per_gpu", 1.5)) == (10.0, 1.5)
    pools = [{"device": "h100", "replica": {"tensor_parallel": 2}}, {"device": "a100", "num_replicas": 3}]
    given = build(Scenario, {"model": "llama-3-8b", "pools": pools, "price_per_gpu_hour": 2.0})
    assert price(given) == Price(5, 10.0)


def test_a_configuration_that_was_not_simulated_has_no_runs() -> None:
    one = Record("", {}, "bound")
    assert (one.runs, one.simulated) == (0, 0)


def test_the_front_by_score_and_latencies() -> None:
    asked = question()
    rows = [(3.0, 1.0, 1.0), (2.0, 0.5, 1.0), (2.0, 1.0, 1.0), (3.0, 1.0, None)]
    axes = latency_axes(asked)
    records = [Record("", {}, "ok", score=worth, figures=dict(zip(axes, times, strict=True))) for worth, *times in rows]
    assert axes == ("ttft_s p90", "tbt_s p99")
    assert front(asked, records) == [True, True, False, False]
    unscored = [replace(records[0], score=worth) for worth in (None, 0.5)]
    assert front(asked, unscored) == [False, True], "no score is none at all"


def test_the_second_axis_is_what_the_slo_limits() -> None:
    def axes(**slo: Any) -> tuple[str, str]:
        return latency_axes(build(SearchConfig, {"model": "llama-2-7b", "slo": slo}))

    assert axes(tpot_s={"p95": 0.05}) == ("ttft_s p90", "tpot_s p95")
    assert axes(tpot_s={"p95": 0.05}, tbt_s={"p90": 0.1}) == ("ttft_s p90", "tbt_s p90")
    assert axes(ttft_s={"p50": 1}) == ("ttft_s p50", "tbt_s p99")


def test_the_best_of_each_gpu_is_named() -> None:
    def record(device: str, label: str, score: float) -> Record:
        return Record(label, {"device": device}, "measured", score=score, cost_per_hour=2.5)

    ranked = [record("h100", "h100 TP2", 3.0), record("h100", "h100 TP1", 2.0), record("a100", "a100 TP4", 1.25)]
    found: Any = SimpleNamespace(ranked=ranked, search=SimpleNamespace(objective="qps_per_dollar"))
    (said,) = best_by_device(found)
    assert said == (
        "Best on each GPU: h100 TP2 ($2.50/h, 3 requests/s per $/h); a100 TP4 ($2.50/h, 1.25 requests/s per $/h)."
    )
    found.ranked = ranked[:2]
    assert best_by_device(found) == []


def test_statistics_with_requests_that_were_never_served() -> None:
    values = np.array([1.0, 2.0, 3.0, np.inf])
    assert _statistic(values, "p50") == 3.0
    assert _statistic(values, "p60") == 3.0
    assert _statistic(values, "max") == np.inf
    assert _statistic(values[:3], "p50") == 2.0
    assert _statistic(values[:3], "mean") == 2.0
    gaps = Gaps(np.array([0.3, 0.1, 0.2]), np.array([1, 6, 3]))
    assert [gaps.statistic(name) for name in ("p50", "p60", "p61", "p90", "p91", "max")] == [
        0.1,
        0.1,
        0.2,
        0.2,
        0.3,
        0.3,
    ]
    assert gaps.statistic("mean") == pytest.approx(0.15)


def test_a_cut_line_of_results_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    asked, path = question(), tmp_path / "results.jsonl"
    first = ResultsFile(path, asked)
    first.put("a", {"status": "ok", "x": 1})
    first.put("b", {"status": "failed"})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "c", "rec')
    again = ResultsFile(path, asked)
    assert path.read_bytes() == whole
    assert again.get("a") == {"status": "ok", "x": 1}
    assert again.get("b") is None, "failures are tried again"
    assert set(again.known) == {"a", "b"}
    path.write_bytes(b"")
    assert ResultsFile(path, asked).known == {}
    assert json.loads(path.read_text())["search"]


def test_questions_of_a_matrix() -> None:
    chat, code = {"lengths": {"distribution": "fixed", "prompt": 9, "output": 2}}, {"preset": "chat-1m"}
    asked = question(models=["llama-2-7b", "phi-2"], workloads={"chat": chat, "code": code})
    found = questions(asked)
    assert list(found) == [(m, w) for m in ("llama-2-7b", "phi-2") for w in ("chat", "code")]
    assert (found["phi-2", "chat"].model, found["phi-2", "chat"].workload.lengths.prompt) == ("phi-2", 9)
    assert found["phi-2", "code"].models == () and found["phi-2", "code"].workloads == {}
    assert list(questions(question())) == [("llama-2-7b", "workload")]
    assert list(questions(question(workload={"preset": "chat-1m"}))) == [("llama-2-7b", "chat-1m")]


def test_cells_of_a_matrix_have_their_own_file_and_their_part_of_the_progress(tmp_path: Path) -> None:
    assert _path(None, "m", "chat") is None
    assert _path(tmp_path, "org/llama", "chat") == tmp_path / "llama--chat" / "results.jsonl"
    told: list[tuple[int, int]] = []
    _part(lambda done, total: told.append((done, total)), 2, 5)(3, 10)
    assert told == [(23, 50)], "two of five are through, and three tenths of the third"


def test_worth_elsewhere_is_a_share_of_the_best() -> None:
    class Best:
        def __init__(self, worth: float) -> None:
            self.best = Record("", {}, "ok", score=worth)

    line = {"label": "", "overrides": {}, "status": "ok"}
    assert _share({**line, "score": 3.0}, Best(4.0)) == 0.75  # type: ignore[arg-type]
    assert _share({**line, "score": -8.0}, Best(-4.0)) == 0.5, "twice as dear"  # type: ignore[arg-type]
    assert _share(line, Best(4.0)) == 0.0  # type: ignore[arg-type]


def test_choices_are_measured_elsewhere_once_and_a_failure_is_worth_nothing(tmp_path: Path) -> None:
    """Two workloads, each with a winner; how each does where it wins is measured, too, unless it is known."""

    def cell(name: str, score: float) -> Found:
        return Found(question(), [Record(name, {"device": name}, "ok", score=score)], [])

    cells = {
        ("m", "chat"): cell("a100", 4.0),
        ("m", "code"): cell("h100", 8.0),
        ("m", "none"): Found(question(), [], []),
    }
    files = {one: ResultsFile(tmp_path / one[1], question()) for one in cells}
    known = Candidate((("device", "a100"),))
    files["m", "chat"].put(f"{known.key} as chosen", Record("a100", {}, "ok", score=3.0).to_dict())
    asked: list[tuple[str, str]] = []

    def workers(function: Any, tasks: list[Task]) -> Any:
        for number, task in enumerate(tasks):
            ((_, device),) = task.candidate.overrides
            asked.append((device, "chat" if task.search is cells["m", "chat"].search else "code"))
            lost = asked[-1] == ("a100", "code")
            yield Outcome(number, error="lost") if lost else Outcome(number, Record(device, {}, "ok", score=2.0))

    worth = _worth_elsewhere(cells, files, workers)  # type: ignore[arg-type]
    assert worth == {
        ("m", "chat", "chat"): 3.0 / 4.0,
        ("m", "chat", "code"): 0.0,
        ("m", "code", "chat"): 2.0 / 4.0,
        ("m", "code", "code"): 2.0 / 8.0,
    }
    assert asked == [("a100", "code"), ("h100", "chat"), ("h100", "code")]
    assert {one["status"] for one in files["m", "code"].known.values()} == {"failed", "ok"}


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ({"objective": "cost"}, "cost needs load. Set load to the requests per second"),
        ({"load": 3.0}, "qps_per_dollar has no load. Leave load out"),
    ],
)
def test_a_load_goes_with_the_objective_cost(given: dict[str, Any], fix: str) -> None:
    assert question(objective="cost", load=3.0).load == 3.0
    with pytest.raises(ConfigError) as told:
        question(**given)
    assert fix in str(told.value)
    with pytest.raises(ConfigError, match=r"needs slo\.goodput"):
        question(objective="goodput_per_gpu")
    assert question(objective="goodput_per_gpu", slo={"goodput": {"ttft_s": 1.0}}).slo.goodput is not None


def test_headroom_is_what_is_left() -> None:
    curve = load_curve.LoadCurve((), {}, 0)
    assert headroom.Headroom(6.0, 8.0, True, curve).share == 0.25
    assert headroom.Headroom(6.0, 0.0, True, curve).share is None


def rated(count: int, rate: float = 1.0) -> Any:
    times = np.arange(count) / rate
    return replace(requests_of(times, [9] * count, [2] * count), shape=ArrivalShape(times, rate))


def foretold(monkeypatch: pytest.MonkeyPatch, most: float = 10.0, *, is_sure: bool = True) -> list[int]:
    """Capacities without simulations; the counts of requests that were asked about."""
    seen: list[int] = []
    monkeypatch.setattr(capacities, "saturation", lambda _, some: seen.append(len(some)) or (most, is_sure))
    monkeypatch.setattr(headroom, "highest_load", lambda prober: most if prober.targets == SloTargets() else 8.0)
    monkeypatch.setattr(headroom, "load_curve", lambda *_: load_curve.LoadCurve((), {}, 0))
    return seen


def test_the_load_of_a_trace_is_its_requests_over_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 requests from second 100 to second 200: 4 a second."""
    foretold(monkeypatch)
    times = np.linspace(100.0, 200.0, 400)
    offered = replace(requests_of(times, [9] * 400, [2] * 400), shape=ArrivalShape(times, 4.0))
    setup = scenario().model_copy(update={"workload": scenario().workload.model_copy(update={"rate": None})})
    found = headroom.headroom(setup, offered)
    assert (found.load_per_s, found.capacity_per_s, found.has_limits) == (4.0, 10.0, False)
    strict = setup.model_copy(update={"slo": setup.slo.model_copy(update={"e2e_s": 3.0})})
    found = headroom.headroom(strict, offered)
    assert (found.capacity_per_s, found.has_limits) == (8.0, True)


def test_where_no_capacity_is_named_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    foretold(monkeypatch)
    found = headroom.headroom(scenario(), replace(rated(400), shape=None))
    assert "no rate to raise" in found.why_unknown and found.share is None
    assert found.to_dict() == {"capacity_per_s": None, "why_unknown": found.why_unknown}


@pytest.mark.parametrize(
    ("count", "replicas", "used", "is_rough"),
    [(199, 1, 199, True), (999, 1, 999, True), (1000, 1, 1000, False), (1999, 2, 1999, True), (2000, 2, 2000, False),
     (5001, 1, 5000, False), (10_001, 2, 10_000, False), (20_001, 5, 20_000, False), (20_001, 50, 20_000, False)],
)  # fmt: skip
def test_how_many_requests_a_headroom_takes(
    monkeypatch: pytest.MonkeyPatch, count: int, replicas: int, used: int, is_rough: bool
) -> None:
    """Rough below 1,000 a replica, at most 5,000, and 20,000 for all."""
    seen = foretold(monkeypatch)
    found = headroom.headroom(scenario(num_replicas=replicas), rated(count))
    assert (seen, found.is_rough, found.load_per_s) == ([used], is_rough, 20.0)
    foretold(monkeypatch, is_sure=False)
    assert headroom.headroom(scenario(num_replicas=replicas), rated(count)).is_rough


def test_nobody_waits_for_a_headroom_longer_than_20_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    foretold(monkeypatch)
    clock = [5.0]
    monkeypatch.setattr(headroom, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    for seconds, is_found in ((20.0, True), (20.5, False)):

        def slow(*given: Any, seconds: float = seconds) -> Any:
            clock[0] += seconds
            with given[-1]():
                return load_curve.LoadCurve((), {}, 0)

        monkeypatch.setattr(headroom, "load_curve", slow)
        assert (headroom.headroom(scenario(), rated(400)).why_unknown == "") is is_found


@pytest.mark.parametrize("copies", [1, 3])
def test_a_backlog_is_worked_off_at_a_rate(copies: int) -> None:
    """A batch of up to 32 sequences takes 10 ms, and 1 ms for each: 32 tokens in 42 ms. Requests of 1 + 9 tokens are in
    9 iterations: 32 / (9 x 0.042 s) a second from each replica, whether 50 or 3,000 of them say so."""
    table = {"source": "table", "table": {"per_iteration": 0.01, "per_sequence": 0.001}}
    setup = scenario(timing=table, batching={"max_sequences": 32}, num_replicas=copies)
    for count in (50, 3000):
        offered = requests_of(np.arange(count) / 20, [1] * count, [9] * count)
        found, is_sure = capacities.saturation(setup, offered)
        assert found == pytest.approx(copies * 32 / (9 * 0.042), rel=0.01)
        assert is_sure


@pytest.mark.parametrize(
    ("most", "hashes", "asked", "is_sure"),
    [
        (1000, 0, [800, 1600, 3200, 6400], True),  # four times as many as there are at once
        (800, 0, [800, 1600, 3200], True),
        (200, 0, [800, 1600], True),  # never one alone
        (10**6, 0, [800 * 2**k for k in range(7)], False),  # twice 51,200 is more than 80,000
        (100, 9, [400, 800], True),  # prompts are found in the cache when they come again
        (1000, 9, [400, 800], False),
    ],
)
def test_a_backlog_is_doubled_until_it_is_full(
    monkeypatch: pytest.MonkeyPatch, most: int, hashes: int, asked: list[int], is_sure: bool
) -> None:
    """Three copies that take 7 s and then 0.1 s for each request."""
    seen: list[int] = []

    def work_off(count: int) -> tuple[float, int]:
        seen.append(count)
        return 7.0 + 0.1 * count, most

    monkeypatch.setattr(capacities, "_backlog", lambda *_: (3, work_off))
    offered = replace(requests_of(np.zeros(800), [9] * 800, [2] * 800), prefix_hashes=np.arange(hashes))
    assert capacities.saturation(scenario(), offered) == (pytest.approx(30.0), is_sure)
    assert seen == asked


def test_a_load_beyond_saturation_is_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two copies take 0.1 s for each of a thousand requests: 0.6 x 20/s can surely be sustained, and 18/s at most."""
    seen: list[Any] = []
    verdict, counts = [Verdict(1.0, "ttft_s p90", {}, 1.0, 0.0)], []
    monkeypatch.setattr(capacities, "run", lambda setup, requests, look: seen.append(look))
    monkeypatch.setattr(capacities, "judge", lambda done, targets: verdict[0])
    monkeypatch.setattr(capacities, "_backlog", lambda *_: (2, lambda count: (counts.append(count) or count / 10, 0)))
    monkeypatch.setattr(capacities, "saturation", lambda *_: (counts.append(0) or 18.0, True))
    times = np.arange(1500.0)
    offered = replace(requests_of(times, [9] * 1500, [2] * 1500), shape=ArrivalShape(times, 1.0))
    prober = capacities.Prober(scenario(), offered, question().slo)
    assert prober(12.0, 100).met and counts == [1000]
    assert prober(18.0, 100).met and counts == [1000, 0]
    above = prober(18.1, 100)
    assert (above.met, above.excess, above.worst) == (False, np.inf, capacities.GROWING)
    verdict[0] = replace(verdict[0], excess=1.1)
    assert prober(19.0, 100) is verdict[0], "its own reason is kept"
    assert seen == [None] * 4
    for setup, looks in ((scenario(), True), (scenario(num_replicas=2), False)):
        capacities.Prober(setup, offered, question().slo, gives_up=True)(1.0, 100)
        assert (seen[-1] is not None) == looks, "one replica's run alone tells of the moment it has come to"


def test_users_at_once_and_what_a_million_tokens_costs() -> None:
    """A batch of n sequences takes 10 + n ms: 40 of them get a token every 50 ms. Requests of 1 + 9 tokens are in 9
    iterations, and the next one comes when the batch after is formed already: users are in 9 of 10, so that 44 of them
    make 40, and 40 / (9 x 0.05 s) a second. 3.6 dollars an hour are a thousandth of a dollar a second."""
    table = {"source": "table", "table": {"per_iteration": 0.01, "per_sequence": 0.001}}
    lengths = {"distribution": "fixed", "prompt": 1, "output": 9}
    setup = scenario(
        timing=table, batching={"max_sequences": 512}, slo={"tpot_s": 0.0505}, price_per_gpu_hour=3.6,
        workload={"lengths": lengths, "rate": 20.0, "num_requests": 100},
    )  # fmt: skip
    found = both_loops(setup, lambda done, total: None)
    assert (found.users, found.limits) == (44, {"tpot_s": 0.0505})
    assert found.closed_per_s == pytest.approx(40 / 0.45, rel=0.03)
    assert found.closed_binding.startswith("TPOT P99 is 1.0")
    assert found.open_per_s < found.closed_per_s, "bunches"
    assert found.saturation_per_s == pytest.approx(512 / (9 * 0.522), rel=0.01)
    shown = rows(replace(found, open_per_s=10.0))
    assert shown[0]["$ per million output"] == f"{1000 / 90:.3g}"
    assert shown[0]["$ per million total"] == f"{1000 / 100:.3g}"


def test_capacity_leaves_the_warm_up_of_a_client_out() -> None:
    """It ended in a traceback: arrivals at random have no warm-up."""
    loop = {"arrivals": {"process": "closed_loop", "concurrency": 2}, "rate": None, "num_requests": 20}
    timing = {"source": "table", "table": {"per_iteration": 0.01}}
    found = [
        both_loops(scenario(timing=timing, slo={"tpot_s": 0.01}, workload=loop | warmup), lambda done, total: None)
        for warmup in ({}, {"warmup_requests": 4})
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("source", ["agents", "trace"])
def test_calls_that_wait_for_each_other_have_no_one_capacity(tmp_path: Path, source: str) -> None:
    """Agents were refused with a wrong reason, a trace of sessions ended in a traceback."""
    trace = tmp_path / "sessions.csv"
    rows = [f"{1 + i // 3},{i % 3},100,20,{i}000000000" for i in range(6)]
    trace.write_text("\n".join(["session_id,turn_idx,input_toks,output_toks,arrival_time_ns", *rows, ""]))
    agents = {"rate": 2.0, "num_requests": 30, "agents": {"calls": 3}}
    with pytest.raises(ConfigError, match="workload: calls that wait for each other have no one capacity"):
        both_loops(
            Scenario.model_validate({"workload": agents if source == "agents" else {"trace": str(trace)}}),
            lambda done, total: None,
        )


def test_where_the_rest_is_turned_away_nothing_piles_up() -> None:
    setup = scenario(admission={"name": "queue_limit", "options": {"max_waiting": 5}})
    assert capacities.saturation(setup, rated(400)) == (np.inf, True)


def test_loads_of_a_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    row = {(name, stat): 1.0 for name in load_curve.LATENCIES for stat in load_curve.STATISTICS}
    monkeypatch.setattr(load_curve, "_latencies", lambda _, requests, __: asked.append(requests.arrival_s[1]) or row)
    offered = replace(OFFERED, shape=ArrivalShape(OFFERED.arrival_s, 1.0))
    found = load_curve.load_curve(scenario(), offered, 200.0)
    assert found.loads == (10.0, 40.0, 70.0, 100.0, 130.0, 150.0, 166.0, 180.0, 190.0, 200.0, 210.0, 230.0)
    assert asked == pytest.approx([1 / load for load in found.loads])
    assert found.seconds["ttft"]["p99"] == [1.0] * 12
    assert load_curve.load_curve(scenario(), OFFERED, 0.0).loads == ()


def test_a_capacity_is_as_sure_as_times_and_sequences_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times known to 3 % (a standard deviation) and sequences that differ by 4 of 100 requests/s (1.96 of them)."""

    class Found:
        search, margins = question(), {"it": 4.0 / 1.645 * 1.960}

    class Done:
        spread = 0.03 / 1.645

    seen = []
    monkeypatch.setattr(answers, "run", lambda setup: seen.append(setup.workload.num_requests) or Done())
    monkeypatch.setattr(answers, "winning_scenario", lambda *_: scenario())
    record = Record("it", {}, "ok", capacity_per_s=100.0)
    interval = answers.capacity_interval(Found(), record)  # type: ignore[arg-type]
    assert interval is not None
    assert (interval.value, interval.low, interval.high) == (
        100.0, pytest.approx(100 * np.exp(-0.05)), pytest.approx(100 * np.exp(0.05))
    )  # fmt: skip
    assert seen == [20]
    assert answers.capacity_interval(Found(), Record("it", {}, "ok")) is None  # type: ignore[arg-type]


def test_layouts_and_labels() -> None:
    assert pools_of("2P-TP4 1D-TP8") == [
        {"role": "prefill", "num_replicas": 2, "replica": {"tensor_parallel": 4}},
        {"role": "decode", "num_replicas": 1, "replica": {"tensor_parallel": 8}},
    ]
    one = Candidate(
        (
            ("device", "h100"),
            ("replica.tensor_parallel", 4),
            ("replica.expert_parallel", True),
            ("x", None),
            ("y", False),
        )
    )
    assert one.label == "h100 TP4 expert_parallel"
    assert one.with_replicas(3).with_replicas(2).label == "h100 TP4 expert_parallel x2"
    apart = {"prefill_replicas": [1, 2], "prefill_tensor_parallel": [1], "decode_replicas": [1],
             "decode_tensor_parallel": [2], "num_gpus": [4]}  # fmt: skip
    space = {"device": ["h100"], "disaggregated": apart, "batching": ["vllm_v1"]}
    asked = build(SearchConfig, {"model": "llama-2-7b", "space": space})
    assert [dict(c.overrides).get("layout") for c in candidates(asked)] == [None, "2P-TP1 1D-TP2"]


@pytest.mark.parametrize("apart", [False, True])
def test_a_number_format_is_set_where_it_was_asked_for(apart: bool) -> None:
    """Nothing is set where only the scenario's own is meant."""
    pools = {"prefill_replicas": [1], "prefill_tensor_parallel": [1], "decode_replicas": [1],
             "decode_tensor_parallel": [1]}  # fmt: skip

    def formats(*given: str) -> list[str | None]:
        space = {"device": ["h100"], "disaggregated": pools, "batching": ["vllm_v1"], "dtype": given}
        found = (dict(c.overrides) for c in candidates(build(SearchConfig, {"model": "llama-2-7b", "space": space})))
        return [one.get("timing.dtype") for one in found if ("layout" in one) is apart]

    assert formats("auto") == [None]
    assert formats("fp8") == ["fp8"]
    assert formats("auto", "fp8") == ["auto", "fp8"]


def test_what_a_space_leaves_unsaid() -> None:
    """One copy and one rank need no router, unless copies are counted; a degree of 1 is said where others are."""

    def space(**given: Any) -> list[dict[str, Any]]:
        objective = given.pop("asked", {})
        base = {"device": ["h100"], "batching": ["vllm_v1"], "router": ["random"]}
        asked = build(SearchConfig, {"model": "llama-2-7b", "space": base | given} | objective)
        names = ("num_replicas", "router.name", "replica.data_parallel", "replica.expert_parallel")
        return [{k: v for k, v in c.overrides if k in names} for c in candidates(asked)]

    assert space() == [{}]
    assert space(num_replicas=[1, 2]) == [{}, {"num_replicas": 2, "router.name": "random"}]
    assert space(data_parallel=[2]) == [{"replica.data_parallel": 2, "router.name": "random"}]
    assert space(data_parallel=[1, 2]) == [
        {"replica.data_parallel": 1},
        {"replica.data_parallel": 2, "router.name": "random"},
    ]
    assert space(expert_parallel=[False, True]) == [{}, {"replica.expert_parallel": True}]
    counted = {"objective": "cost", "load": 9.0}
    assert space(num_replicas=[1, 2], asked=counted) == [{"router.name": "random"}]


@pytest.mark.parametrize("others", range(1, 14))
def test_margins_are_those_of_student(others: int) -> None:
    """A capacity of n + 1 and n sequences of 0: the deviations are n and n times -1, so that the standard deviation is
    the root of n (n + 1) / n, and over the root of the n + 1 values just Student's t is left."""
    asked = question(seed=7, effort={"num_sequences": others + 1})
    best = Record("it", {"device": "h100"}, "measured", capacity_per_s=others + 1.0, num_requests=800)
    repeats = _repeats(asked, [best])
    assert list(repeats.values()) == [(asked, best.candidate, 8 + k, others + 1.0, 800) for k in range(others)]
    margins = _half_widths(asked, [best], dict.fromkeys(repeats, 0.0))
    t = stats.t.ppf(0.975, min(others, 10))
    assert margins == {"it": pytest.approx(t, abs=0.0005)}


def test_sequences_that_failed_are_not_counted() -> None:
    asked = question(effort={"num_sequences": 4})
    best = Record("it", {}, "measured", capacity_per_s=10.0, num_requests=800)
    keys = list(_repeats(asked, [best]))
    assert _half_widths(asked, [best], {}) == {}
    found = _half_widths(asked, [best], {keys[0]: 12.0, keys[2]: 14.0})
    assert found == {"it": pytest.approx(4.303 * 2.0 / np.sqrt(3))}
    assert _repeats(question(objective="cost", load=9.0), [best]) == {}


def test_a_prober_counts_and_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    verdict = Verdict(2.0, "ttft_s p90", {}, 1.0, 0.0)
    monkeypatch.setattr(capacities, "run", lambda setup, requests, look: seen.append(len(requests)))
    monkeypatch.setattr(capacities, "judge", lambda done, targets: verdict)
    times = np.arange(8000.0)
    offered = replace(requests_of(times, [9] * 8000, [2] * 8000), shape=ArrivalShape(times, 1.0))
    prober = capacities.Prober(scenario(), offered, question().slo)
    assert prober(2.0, 100) is prober(2.0, 100)
    assert (prober.runs, prober.simulated, seen) == (1, 100, [100])
    prober.unless_hopeless(3.0, 8000)
    assert seen[1:] == [2000], "a quarter is 2 x over its limit"
    prober.unless_hopeless(3.0, 3999)
    assert seen[2:] == [3999], "a quarter of that says nothing"
    assert (prober.runs, prober.simulated) == (3, 100 + 2000 + 3999)


def test_the_least_that_those_who_still_wait_will_have_waited() -> None:
    """At 7 s one has ended after 1 + 4 s, one has its first token after 2 s, one waits since 3 s, one is still to come:
    TTFT is at least 1, 2, 4 and 0 s, E2E 5, 6, 4 and 0 s."""
    names = ("arrival_s", "first_token_s", "last_token_s", "finished_s")
    rows = [(0.0, 1.0, 5.0, 5.0), (1.0, 3.0, 7.0, -1.0), (3.0, -1.0, -1.0, -1.0), (9.0, -1.0, -1.0, -1.0)]
    requests = np.array(rows, [(name, np.float64) for name in names]).view(np.recarray)
    limits = build(SloTargets, {"ttft_s": {"p50": 1.0, "max": 5.0}, "e2e_s": {"mean": 5.0}, "tbt_s": {"p99": 1e-9}})
    found = least_excess(requests, limits)
    assert (found.worst, found.excess, found.figures) == ("ttft_s p50", 1.5, {"e2e_s p50": 4.5})
    assert least_excess(requests, SloTargets()).met
    assert least_excess(requests, limits, 1.4) == found
    assert least_excess(requests, limits, 4.0).worst == "ttft_s max", "4 of 5 s; of the median nothing is said"
    requests[0] = (0.0, 0.0, 7.0, 0.0)
    assert least_excess(requests, build(SloTargets, {"ttft_s": {"max": 1.0}})).excess == 4.0, "at once, at 0 s"


@pytest.mark.parametrize("size", [1, 2, 9, 10, 11, 1000])
@pytest.mark.parametrize("statistic", ["p50", "p90", "p99", "p99.9"])
def test_a_percentile_above_a_limit_is_never_overlooked(size: int, statistic: str) -> None:
    values = np.random.default_rng(size).permutation(np.arange(float(size)))
    limits = np.arange(-1.0, size, 0.25)
    percentile = _statistic(values, statistic)
    found = [may_exceed(values, statistic, limit) for limit in limits]
    assert all(one for one, limit in zip(found, limits, strict=True) if percentile > limit)
    assert not any(one for one, limit in zip(found, limits, strict=True) if limit > percentile + 1.0)


@pytest.mark.parametrize("policy", ["vllm_v1", "sarathi", "orca"])
def test_giving_up_what_is_hopeless_changes_no_capacity(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = []
    monkeypatch.setattr(capacities._GivenUp, "__init__", lambda self, verdict: given_up.append(verdict))
    asked = question(space={"batching": [policy]}, effort={"min_requests": 1000, "max_requests": 4000})
    setup = scenario_of(asked, candidates(asked)[0])
    offered = sequence(asked, setup)
    found = []
    for gives_up in (False, True):
        prober = capacities.Prober(setup, offered, asked.slo, gives_up=gives_up)
        found.append(find_capacity(prober, 10 * rate_bound(setup, offered), asked.effort, 1))
        found.append((prober.runs, prober.simulated))  # type: ignore[arg-type]
    assert found[:2] == found[2:]
    assert given_up and all(one.excess > capacities.HOPELESS for one in given_up)


def test_how_long_a_run_must_be_is_told_by_the_whole_of_one_that_was_given_up() -> None:
    """A run that was given up knows the least median only; and so it does of what a load is limited by."""
    asked = question(effort={"min_requests": 1000, "max_requests": 4000})
    setup = scenario_of(asked, candidates(asked)[0])
    offered = sequence(asked, setup)
    rate, (whole, quick) = (
        3 * rate_bound(setup, offered),
        (capacities.Prober(setup, offered, asked.slo, gives_up=gives_up) for gives_up in (False, True)),
    )
    assert quick(rate, 1000).given_up and quick(rate, 1000) != whole(rate, 1000)
    assert capacities._turnovers(quick, rate, 1000) == capacities._turnovers(whole, rate, 1000)
    assert quick(rate, 1000) == quick.whole(rate, 1000) == whole(rate, 1000)


@pytest.mark.parametrize("policy", ["vllm", "vllm_v1", "sglang", "sarathi", "orca"])
def test_what_few_requests_say_is_surely_below_the_saturation(policy: str) -> None:
    asked = question(space={"batching": [{"policy": policy, "max_sequences": [4, 256]}]}, effort={"max_requests": 8000})
    for one in candidates(asked)[:2]:
        setup = scenario_of(asked, one)
        prober = capacities.Prober(setup, sequence(asked, setup), asked.slo)
        assert 0.2 * prober.saturation[0] < prober._surely_sustained < 0.65 * prober.saturation[0]


def test_copies_are_bounded() -> None:
    asked = question(objective="cost", load=4097.0)
    (one, *_) = candidates(asked)
    found = smallest_fleet(asked, one, 1.0, None, lambda _: OFFERED)
    assert found.outcome == "4096 replicas are too few: at least 4097 are needed"


def test_the_suite_takes_the_fewest_gpus() -> None:
    config = BenchConfig()
    degrees = [
        dict(_task(config, model, "chat-1m", "vllm_v1").candidate.overrides)["replica.tensor_parallel"]
        for model in ("llama-3-8b", "llama-2-70b")
    ]
    assert degrees == [1, 2]
    assert (config.seed, config.effort.num_intervals) == (0, 0)


def test_a_folder_without_a_search_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no finished search"):
        finished_search(tmp_path)
    for name in ("search.yaml", "results.jsonl"):
        (tmp_path / name).write_text("model: llama-2-7b\n")
        with pytest.raises(DataError, match="no finished search"):
            finished_search(tmp_path)
        (tmp_path / name).unlink()


def test_a_policy_that_forms_no_batch_is_not_blamed_on_the_number_of_requests(tmp_path: Path) -> None:
    """Nothing is served at any load: no limit is missed, and no queue grows, for all are refused."""
    own = tmp_path / "idle.py"
    own.write_text(
        'from gnomon.serving.policies import batching_policy\n\n\n@batching_policy("forms_nothing")\n'
        "def forms_nothing(replica):\n    pass\n"
    )
    setup = scenario(batching={"policy": "forms_nothing", "file": str(own)}, workload={"num_requests": 150})
    assert load_curve.capacity(setup, generate(setup.workload, 0)) == 0.0


def test_a_fleet_written_out_has_a_device_for_each_pool_and_deciders_where_it_has_two_kinds() -> None:
    space = {"device": ["h100"], "layouts": ["4B-TP1 2B-TP2@l40s", "1P-TP2@h200 1D-TP1 1B-TP1"],
             "disaggregated": {"num_gpus": [99], "decider": ["always", "idle_prefill"]}}  # fmt: skip
    asked = build(SearchConfig, {"model": "llama-2-7b", "space": space})
    found = [dict(one.overrides) for one in candidates(asked) if "layout" in dict(one.overrides)]
    assert [(one["layout"], one.get("disaggregation.decider.name")) for one in found] == [
        (space["layouts"][0], None), (space["layouts"][1], None), (space["layouts"][1], "idle_prefill"),
    ]  # fmt: skip
    made = scenario_of(asked, candidates(asked)[-1])
    assert [(pool.role, pool.device) for pool in made.pools] == [("prefill", "h200"), ("decode", None), ("both", None)]
    assert made.disaggregation.decider.name == "idle_prefill"


@pytest.mark.parametrize(
    ("space", "where"),
    [
        ({"layouts": ["2X-TP1"]}, "space.layouts"),
        ({"layouts": ["0B-TP1"]}, "space.layouts"),
        ({"layouts": ["2B-TP1@h999"]}, "h999"),
        ({"disaggregated": {"decider": ["never"]}}, "space.disaggregated.decider"),
    ],
)
def test_a_fleet_that_cannot_be_read_is_refused(space: dict[str, Any], where: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=where):
        candidates(build(SearchConfig, {"model": "llama-2-7b", "space": space}))


def test_ties_are_those_that_the_intervals_cannot_tell_from_the_winner() -> None:
    """17.54 +- 0.81 and 17.53 +- 1.6 tie; 16 +- 0.1 is 8.8 % behind, which is more than 0.81 / 17.54 = 4.6 %; of 17 no
    interval is known: it is taken to be as uncertain as the winner (4.6 % both: 6.5 % together)."""
    ranked = [
        Record(name, {"device": name}, "ok", score=rate, capacity_per_s=rate)
        for name, rate in (("a", 17.54), ("b", 17.53), ("c", 17.0), ("d", 16.0))
    ]
    found = Found(question(), ranked, [], {"a": 0.81, "b": 1.6, "d": 0.1})
    assert [one.label for one in found.ties] == ["b", "c"]
    assert best_words(found)[0] == "First of 3 that tie: a"
    assert best_words(Found(question(), ranked, [], {})) == ["Best: a"], "without intervals nothing is known of ties"
    assert not Found(question(), [], []).ties


@pytest.mark.parametrize("name", ["ttft_s", "tpot_s", "e2e_s"])
def test_one_limit_is_enough_for_goodput(name: str) -> None:
    assert getattr(GoodputConfig(**{name: 1.0}), name) == 1.0  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="goodput needs a limit"):
        GoodputConfig()


def test_every_engine_leads_the_first_round() -> None:
    queue = [Candidate((("engine.name", name), ("x", x))) for name, x in (("v", 1), ("v", 2), ("s", 1), ("v", 3))]
    assert [one.label for one in answers._engines_first(queue)] == ["v 1", "s 1", "v 2", "v 3"]


@pytest.mark.parametrize(
    ("serves", "most", "tried", "answer"),
    [
        (11, 65_536, [1, 2, 4, 8, 16, 12, 10, 11], (11, 176 / 8, "12 are too many")),
        (99, 8, [1, 2, 4, 8], (8, 128 / 8, "more than 8 were not tried")),
        (0, 8, [1], (0, 0.0, "1 are too many")),
        (120, 65_536, [1, 2, 4, 8, 16, 32, 64, 128, 96, 112, 120, 124, 122], (120, 1920 / 8, "122 are too many")),
    ],
)
def test_users_are_doubled_and_then_bisected(
    serves: int, most: int, tried: list[int], answer: tuple[int, float, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a fiftieth. 16 requests of each user, 20 at least, end after 8 s and take 2 each: users begin within 2 s."""
    asked, progress, starts = [], [], []

    def ran(setup: Scenario, requests: Any) -> Any:
        asked.append(requests.concurrency)
        starts.append(requests.arrival_s)
        assert len(requests) == max(20, 16 * requests.concurrency)
        ends = np.full(len(requests), 8.0)
        q = SimpleNamespace(arrival_s=ends - 2.0, finished_s=ends)
        return SimpleNamespace(cluster=SimpleNamespace(requests=Sized(q, len(requests))))

    def judged(done: Any, targets: SloTargets) -> Any:
        return SimpleNamespace(met=asked[-1] <= serves, miss=f"{asked[-1]} are too many")

    for name, value in {"run": ran, "judge": judged, "REQUESTS": 20, "MOST_USERS": most}.items():
        monkeypatch.setattr(users, name, value)
    found = users.most_users(scenario(), SloTargets(), lambda *now: progress.append(now))
    assert (found, asked) == (answer, tried)
    assert progress == [(number, 30) for number in range(1, len(tried) + 1)]
    assert [starts[0][:2].tolist(), starts[-1][asked[-1] :].min()] == [[0.0, np.inf], np.inf]
    if len(tried) > 1:
        assert starts[1][:3].tolist() == [0.0, 1.0, np.inf], "two users, half of 2 s apart"


class Sized:
    """Fields of an array of records, and how many there are."""

    def __init__(self, fields: Any, count: int) -> None:
        self.__dict__.update(vars(fields))
        self.count = count

    def __len__(self) -> int:
        return self.count
