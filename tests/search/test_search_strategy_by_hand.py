"""How a search goes about it, with workers and simulations that answer from a table: rounds, pilots, verdicts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnomon.core.config import build
from gnomon.core.parallel import Outcome
from gnomon.search import capacity as capacities
from gnomon.search import study
from gnomon.search.config import SearchConfig, SloTargets
from gnomon.search.evaluate import (
    Estimate,
    Record,
    Task,
    _out_of_reach,
    bound_of,
    bounds_of,
    capacity_with_seed,
    evaluate,
    pilot,
    sequence,
)
from gnomon.search.results import ResultsFile
from gnomon.search.slo import TURNED_AWAY, Verdict, judge, price
from gnomon.search.space import candidates, scenario_of
from gnomon.search.study import search_with, winning_scenario
from gnomon.serving.engine.state import FINISHED, REJECTED, SHED
from search_kit import question

REQUEST = np.dtype(
    [(name, np.float64) for name in ("arrival_s", "scheduled_s", "first_token_s", "finished_s")]
    + [("output_tokens", np.int64), ("status", np.int64)]
)


def ended(rows: list[tuple[float, float, float, float, int, int]], gaps: dict[float, int] | None = None) -> Any:
    """A run whose requests have these stamps; `gaps` are seconds between tokens, and how many there are of each."""
    gaps = gaps or {}
    log = SimpleNamespace(
        gap_s=np.array([*gaps, 99.0]), gap_count=np.array([*gaps.values(), 99]), used=np.array([0, 0, len(gaps)])
    )
    requests = np.array(rows, REQUEST).view(np.recarray)
    return SimpleNamespace(cluster=SimpleNamespace(requests=requests), log=log)


def targets(**given: Any) -> SloTargets:
    return build(SloTargets, given)


# Arrives, is scheduled, has its first token, ends; tokens. TTFT 1, 2, 3, 1; E2E 5, 2, 11, 3; TPOT 1, none, 2, 0.5.
FOUR = [
    (0.0, 0.5, 1.0, 5.0, 5, FINISHED),
    (1.0, 1.5, 3.0, 3.0, 1, FINISHED),
    (2.0, 2.5, 5.0, 13.0, 5, FINISHED),
    (3.0, 3.5, 4.0, 6.0, 5, FINISHED),
]


def test_the_worst_figure_over_its_limit_is_what_counts() -> None:
    run = ended(FOUR, {0.5: 4, 1.0: 4, 2.0: 4})
    found = judge(run, targets(ttft_s={"max": 6.0}, e2e_s={"mean": 7.0}, tpot_s={"max": 2.5}, tbt_s={"p50": 4.0}))
    assert (found.worst, found.excess, found.met) == ("tpot_s max", pytest.approx(0.8), True)
    assert found.figures == {
        "ttft_s max": 3.0, "e2e_s mean": 5.25, "tpot_s max": 2.0, "tbt_s p50": 1.0, "ttft_s p50": 1.5,
        "ttft_s p90": pytest.approx(2.7), "ttft_s p99": pytest.approx(2.97), "tbt_s p99": 2.0, "e2e_s p50": 4.0,
    }  # fmt: skip
    assert (found.good_share, found.unserved, found.turned_away) == (1.0, 0.0, 0.0)
    tight = judge(run, targets(ttft_s={"max": 3.0}, scheduling_delay_s={"mean": 0.4}))
    assert (tight.worst, tight.excess, tight.met) == ("scheduling_delay_s mean", pytest.approx(1.25), False)
    assert tight.miss == "scheduling delay mean is 1.25 times its limit"
    assert judge(run, targets(ttft_s={"max": 3.0})).met, "a limit that is just reached is met"
    nothing = judge(run, targets())
    assert (nothing.excess, nothing.worst, nothing.met) == (0.0, "", True)


def test_a_request_that_was_refused_waited_for_ever() -> None:
    run = ended([*FOUR[:3], (3.0, -1.0, -1.0, -1.0, 5, REJECTED)])
    found = judge(run, targets(ttft_s={"max": 100.0}, tpot_s={"p50": 4.0}))
    assert (found.excess, found.worst, found.met) == (np.inf, "ttft_s max", False)
    assert (found.unserved, found.turned_away) == (0.25, 0.0)
    assert found.miss == "25.0% of the requests are refused"
    assert found.figures["ttft_s max"] is None, "JSON has no infinity"
    assert found.figures["tpot_s p50"] == 2.0, "1, 2 and for ever: one token has none"


def test_answers_of_one_token_have_no_time_between_tokens() -> None:
    found = judge(ended(FOUR[1:2]), targets(tpot_s={"max": 1.0}, tbt_s={"max": 1.0, "p50": 1.0}))
    assert (found.excess, found.figures["tpot_s max"], found.figures["tbt_s p50"]) == (0.0, 0.0, 0.0)
    thousand = judge(ended(FOUR, {0.1: 500, 0.2: 500}), targets(tbt_s={"p50": 1.0, "p50.2": 1.0}))
    assert (thousand.figures["tbt_s p50"], thousand.figures["tbt_s p50.2"]) == (0.1, 0.2)


def test_good_requests_meet_all_their_limits() -> None:
    """TTFT up to 2: three; TPOT up to 1: three (a single token has none); both: three; with E2E below 5, two."""

    def goodput(**limits: float) -> Verdict:
        return judge(ended(FOUR), targets(goodput=limits))

    both = goodput(ttft_s=2.0, tpot_s=1.0, share=0.6)
    assert (both.good_share, both.worst, both.excess) == (0.75, "goodput", pytest.approx(0.8))
    assert goodput(ttft_s=2.0, e2e_s=4.9).good_share == 0.5
    assert not goodput(ttft_s=2.0, e2e_s=4.9).met
    none = goodput(ttft_s=0.5, share=0.5)
    assert (none.good_share, none.excess) == (0.0, pytest.approx(0.5e9)), "finite: it can be written to a file"
    assert goodput(tpot_s=0.6).good_share == 0.5, "0.5, and a single token that has none"
    unfinished = ended([*FOUR[:3], (3.0, 3.5, 4.0, -1.0, 5, REJECTED)])
    assert judge(unfinished, targets(goodput={"ttft_s": 9.0})).good_share == 0.75


@pytest.mark.parametrize(("shed", "met"), [(2, True), (3, False)])
def test_more_than_two_in_a_hundred_turned_away_are_too_many(shed: int, met: bool) -> None:
    rows = [(float(k), k + 0.1, k + 0.2, k + 0.3, 2, FINISHED) for k in range(100 - shed)]
    rows += [(float(k), -1.0, -1.0, -1.0, 2, SHED) for k in range(100 - shed, 100)]
    found = judge(ended(rows), targets())
    assert (found.met, found.worst, found.turned_away) == (met, "" if met else TURNED_AWAY, shed / 100)
    assert judge(ended(rows), targets(goodput={"ttft_s": 1.0, "share": 0.9})).met, "goodput says how many may be lost"


class Table:
    """A prober that meets loads up to `most`, by the length of the run."""

    def __init__(self, most: dict[int, float], requests: int = 100_000) -> None:
        self.most, self.requests, self.asked = most, range(requests), []  # type: ignore[var-annotated]

    def unless_hopeless(self, rate: float, count: int) -> Verdict:
        self.asked.append((rate, count))
        return Verdict(rate / self.most[count], "ttft_s p90", {}, 1.0, 0.0)


def test_what_cannot_win_is_found_out_in_as_few_runs_as_possible() -> None:
    """20/s are needed: by the bound, by 2 x 200 requests at 95 % of that, by four times as many at the whole of it."""
    asked = question()

    def said(bound: float, short: float = 99.0, longer: float = 99.0, requests: int = 10_000) -> tuple[str | None, Any]:
        prober = Table({min(400, requests): short, min(1600, requests): longer}, requests)
        return _out_of_reach(prober, 20.0, bound, asked, 2), prober.asked  # type: ignore[arg-type]

    assert said(19.9) == ("bound: at most 19.9/s, 20/s would be needed", [])
    assert said(20.0) == (None, [(19.0, 400), (20.0, 1600)])
    assert said(30.0, short=18.9) == ("fails at 19/s: ttft_s p90", [(19.0, 400)])
    assert said(30.0, short=19.0, longer=19.9) == ("fails at 20/s: ttft_s p90", [(19.0, 400), (20.0, 1600)])
    assert said(30.0, requests=1000)[1] == [(19.0, 400), (20.0, 1000)]


@pytest.fixture
def nine_per_copy(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Every copy takes nine requests a second; requests take a second, and eight of ten are good."""
    seen: list[tuple[float, int]] = []

    def judged(self: Any, rate: float, count: int) -> Verdict:
        self.runs, self.simulated = self.runs + 1, self.simulated + count
        seen.append((rate, count))
        most = 9.0 * self.scenario.num_replicas
        return Verdict(rate / most, "ttft_s p90", {"e2e_s p50": 1.0, "ttft_s p90": 0.1}, 0.8, 0.0)

    monkeypatch.setattr(capacities.Prober, "_simulate", judged)
    return seen


def test_a_configuration_is_measured(nine_per_copy: list[tuple[float, int]]) -> None:
    asked = question(effort={"min_requests": 200, "max_requests": 800, "precision": 0.02})
    (one, *_) = candidates(asked)
    cost = price(scenario_of(asked, one))
    found = evaluate(Task(asked, one, bound=100.0))
    assert (found.status, found.reason, found.label, found.overrides) == (
        "measured",
        None,
        one.label,
        dict(one.overrides),
    )
    assert found.capacity_per_s is not None and 9.0 / 1.02 <= found.capacity_per_s <= 9.0
    assert found.score == pytest.approx(found.capacity_per_s / cost.per_hour)
    assert (found.num_gpus, found.cost_per_hour, found.num_requests) == (cost.num_gpus, cost.per_hour, 800)
    assert (found.binding, found.good_share, found.nearest_miss) == ("ttft_s p90", 0.8, None)
    assert (found.runs, found.simulated) == (len(nine_per_copy), sum(count for _, count in nine_per_copy))
    assert found.figures == {"e2e_s p50": 1.0, "ttft_s p90": 0.1}
    assert Record(**found.to_dict()) == found
    beaten = evaluate(Task(asked, one, beat=10.0 / cost.per_hour, bound=100.0))
    assert (beaten.status, beaten.reason, beaten.score) == ("passed over", "fails at 9.5/s: ttft_s p90", None)
    assert (beaten.runs, beaten.simulated) == (1, 200)
    better = evaluate(Task(asked, one, beat=8.0 / cost.per_hour, bound=100.0))
    assert (better.status, better.capacity_per_s) == ("measured", found.capacity_per_s)


def test_a_configuration_that_no_load_suits_says_by_how_much_it_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    (one, *_) = candidates(question())
    for excess, miss in ((1.5, 1.5), (np.inf, None)):
        verdict = Verdict(excess, "ttft_s p90", {"e2e_s p50": 1.0}, 1.0, 0.0)
        monkeypatch.setattr(capacities.Prober, "_simulate", lambda *_, verdict=verdict: verdict)
        found = evaluate(Task(question(), one, bound=1.0))
        assert (found.status, found.score, found.capacity_per_s, found.nearest_miss) == ("measured", None, 0.0, miss)
        assert found.reason == f"the SLO is met at no load: {verdict.miss}"


def test_where_most_are_never_served_a_lower_load_helps_only_if_they_were_turned_away() -> None:
    """Half the bound says it all where requests are too long; else halves, until less than a millionth is left."""
    unserved = Verdict(np.inf, "ttft_s p90", {"e2e_s p50": None}, 1.0, 0.9)
    assert capacities.coarse_bracket(lambda *_: unserved, 1.0, 500) == (0.0, 0.5)  # type: ignore[arg-type]
    shed = replace(unserved, turned_away=0.9)
    assert capacities.coarse_bracket(lambda *_: shed, 1.0, 500) == (0.0, 2.0**-20)  # type: ignore[arg-type]


def test_copies_are_counted_out_for_a_load(nine_per_copy: list[tuple[float, int]]) -> None:
    asked = question(objective="cost", load=40.0)
    (one, *_) = candidates(asked)
    each = price(scenario_of(asked, one)).per_hour
    found = evaluate(Task(asked, one, bound=12.0))
    assert (found.status, found.overrides["num_replicas"], found.capacity_per_s) == ("measured", 5, 40.0)
    assert (found.score, found.cost_per_hour) == (pytest.approx(-5 * each), pytest.approx(5 * each))
    assert (found.converged, found.binding, found.good_share) == (True, "ttft_s p90", 0.8)
    assert (found.runs, found.simulated) == (len(nine_per_copy), sum(count for _, count in nine_per_copy))
    beaten = evaluate(Task(asked, one, beat=-4 * each, bound=12.0))
    assert (beaten.status, beaten.score, beaten.runs) == ("passed over", None, 0)
    few = question(objective="cost", load=40.0, space={"device": ["a100"], "num_replicas": [3]})
    short = evaluate(Task(few, one, bound=12.0))
    assert (short.status, short.score) == ("measured", None)
    assert short.reason == "3 replicas are too few: at least 4 are needed"


def test_pilots_are_short_and_repeats_as_long_as_the_first(nine_per_copy: list[tuple[float, int]]) -> None:
    asked = question()
    one = candidates(asked)[0].with_replicas(2)
    found = pilot(Task(asked, one, bound=100.0))
    assert 18.0 / 1.1 <= found.per_s <= 18.0
    assert {count for _, count in nine_per_copy} == {2 * 200}
    assert (found.runs, found.simulated) == (len(nine_per_copy), 400 * len(nine_per_copy))
    assert len(sequence(asked, scenario_of(asked, one))) == 2 * 800
    nine_per_copy.clear()
    again = capacity_with_seed((asked, one, 3, 17.0, 600))
    assert 18.0 / (1 + asked.effort.precision) <= again.per_s <= 18.0
    assert nine_per_copy[0] == (17.0, 600)
    assert {count for _, count in nine_per_copy} == {600}


class Workers:
    """Answers from tables: bounds, what pilots find, and scores, by the batch's tokens."""

    def __init__(self, answers: dict[Any, Callable[[str, int], Any]]) -> None:
        self.answers = answers
        self.rounds: list[list[tuple[int, float | None]]] = []
        self.piloted: list[tuple[str, int]] = []
        self.loses = 0
        """The tokens of a configuration whose group's worker dies when it is asked for bounds."""

    def __call__(self, function: Any, tasks: Any) -> Any:
        if function is bounds_of:
            self.groups = [
                [dict(one.candidate.overrides)["batching.max_batch_tokens"] for one in some] for some in tasks
            ]
            for number, some in enumerate(tasks):
                lost = "batching.max_batch_tokens", self.loses
                is_lost = any(lost in one.candidate.overrides for one in some)
                yield Outcome(number, error="gone") if is_lost else Outcome(number, list(self(bound_of, some)))
            return
        places = [dict((t[1] if isinstance(t, tuple) else t.candidate).overrides) for t in tasks]
        places = [(one["device"], one["batching.max_batch_tokens"]) for one in places]
        if function is evaluate and places:
            self.rounds.append([(place[1], task.beat) for place, task in zip(places, tasks, strict=True)])
        if function is pilot:
            self.piloted += places
        for number, place in enumerate(places):
            value = self.answers[function](*place)
            yield Outcome(number, error="lost") if value is None else Outcome(number, value)


def tokens_question(count: int, **changes: Any) -> SearchConfig:
    batching = [{"policy": "vllm_v1", "max_batch_tokens": list(range(1, count + 1))}]
    return question(space={"device": ["a100"], "tensor_parallel": [1], "batching": batching}, **changes)


def measured(tokens: int, score: float | None) -> Record:
    overrides = {"device": "a100", "batching.max_batch_tokens": tokens}
    return Record(f"tokens={tokens}", overrides, "measured", capacity_per_s=10.0, score=score, num_requests=800, runs=2,
                  simulated=50)  # fmt: skip


def test_rounds_double_and_each_must_beat_the_best_of_those_before() -> None:
    """Bounds fall from 100 tokens to 1: rounds of 4, 8, 16, 32, 32 and the last 8; scores rise by 1 each time."""
    asked = tokens_question(100)
    workers = Workers(
        {
            bound_of: lambda _, tokens: float(tokens),
            pilot: lambda *_: Estimate(5.0, 3, 7),
            evaluate: lambda _, tokens: measured(tokens, float(101 - tokens)),
            capacity_with_seed: lambda *_: Estimate(12.0, 1, 9),
        },
    )
    told: list[tuple[int, int]] = []
    found = search_with(asked, ResultsFile(None, asked), workers, lambda *done: told.append(done))
    assert [(one[0], one[-1]) for one in workers.groups] == [(1, 32), (33, 64), (65, 96), (97, 100)]
    assert workers.piloted == [("a100", 100)], "one placement: its highest bound"
    assert [len(one) for one in workers.rounds] == [4, 8, 16, 32, 32, 8]
    assert [tokens for one in workers.rounds for tokens, _ in one] == list(range(100, 0, -1))
    assert [{beat for _, beat in one} for one in workers.rounds] == [{None}, {4.0}, {12.0}, {28.0}, {60.0}, {92.0}]
    assert [record.score for record in found.ranked] == [float(score) for score in range(100, 0, -1)]
    assert found.best is not None and found.best.label == "tokens=1"
    assert found.margins == {"tokens=1": pytest.approx(12.706 * np.sqrt(2.0) / np.sqrt(2.0))}, "10 and 12: one interval"
    assert (found.beside, found.runs, found.simulated) == ((4, 16), 4 + 200, 16 + 5000)
    assert told[-1] == (100, 100)


def test_what_a_load_is_worth() -> None:
    """12 requests/s on two GPUs; for the objective cost, per dollar, too."""
    goodput = question(objective="goodput_per_gpu", slo={"goodput": {"ttft_s": 1.0}})
    by_price, by_cost = question(), question(objective="cost", load=9.0)
    one = next(c for c in candidates(by_price) if dict(c.overrides)["replica.tensor_parallel"] == 2)
    dollars = price(scenario_of(by_price, one)).per_hour
    assert study._worth(goodput, one, 12.0) == pytest.approx(6.0)
    assert study._worth(by_price, one, 12.0) == pytest.approx(12.0 / dollars)
    assert study._worth(by_cost, one, 12.0) == pytest.approx(12.0 / dollars)


def test_placements_that_promise_more_come_first() -> None:
    """By its bound an A100 is better, by its pilot an H100, also for its price."""
    batching = [{"policy": "vllm_v1", "max_batch_tokens": [1, 2]}]
    asked = question(space={"device": ["a100", "h100"], "tensor_parallel": [1], "batching": batching})
    seen: list[tuple[str, int]] = []
    workers = Workers(
        {
            bound_of: lambda device, tokens: 10.0 * tokens + 1000.0 * (device == "a100"),
            pilot: lambda device, tokens: Estimate(1000.0, 1, 1) if device == "h100" else Estimate(1.0, 1, 1),
            evaluate: lambda *place: seen.append(place) or measured(place[1], None),
        },
    )
    found = search_with(asked, ResultsFile(None, asked), workers, lambda *_: None)
    assert workers.groups == [[1, 2], [1, 2]], "one of each placement"
    assert workers.piloted == [("a100", 2), ("h100", 2)]
    in_order = [("h100", 2), ("h100", 1), ("a100", 2), ("a100", 1)]
    assert seen == in_order
    workers.answers[pilot] = lambda device, _: Estimate(0.1, 1, 1) if device == "h100" else None
    search_with(asked, ResultsFile(None, asked), workers, lambda *_: None)
    assert seen[4:] == in_order, "a pilot that failed promises nothing"
    assert (found.best, found.ranked, len(found.others), found.margins) == (None, [], 4, {})


def test_what_cannot_run_or_failed_is_named_and_the_rest_goes_on() -> None:
    """1: impossible by its bound; 2: its bound failed; 3: its worker was lost; 4 and 5 tie and go by their names."""
    asked = tokens_question(5, effort={"num_intervals": 0})
    impossible = Record("tokens=1", {}, "impossible", "too small")
    workers = Workers(
        {
            bound_of: lambda _, tokens: {1: impossible, 2: None}.get(tokens, 10.0),
            pilot: lambda *_: None,
            evaluate: lambda _, tokens: None if tokens == 3 else measured(tokens, 1.0),
        },
    )
    file = ResultsFile(None, asked)
    told: list[tuple[int, int]] = []
    found = search_with(asked, file, workers, lambda *done: told.append(done))
    assert told == [(done, 5) for done in range(1, 6)]
    assert [one.label for one in found.ranked] == ["tokens=4", "tokens=5"]
    assert [(one.status, one.reason) for one in found.others] == [
        ("impossible", "too small"), ("failed", "lost"), ("failed", "lost"),
    ]  # fmt: skip
    assert [tokens for tokens, _ in workers.rounds[0]] == [3, 4, 5]
    workers.rounds.clear()
    search_with(asked, file, workers, lambda *_: None)
    assert workers.rounds == [[(3, None)]], "what is known is not asked again, what failed is"
    workers.loses = 4
    found = search_with(asked, ResultsFile(None, asked), workers, lambda *done: None)
    assert [one.reason for one in found.others] == ["gone"] * 5, "all of a group whose worker died"


def test_an_exhaustive_search_measures_all_with_nothing_to_beat() -> None:
    asked = tokens_question(6, strategy="exhaustive", effort={"num_intervals": 0})
    workers = Workers({evaluate: lambda _, tokens: measured(tokens, float(tokens))})
    told: list[tuple[int, int]] = []
    found = search_with(asked, ResultsFile(None, asked), workers, lambda *done: told.append(done))
    assert workers.rounds == [[(tokens, None) for tokens in range(1, 7)]]
    assert [one.score for one in found.ranked] == [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    assert told == [(done, 6) for done in range(1, 7)]


def test_a_search_keeps_its_records_in_the_file_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tokens_question(2, strategy="exhaustive", effort={"num_intervals": 0})
    workers = Workers({evaluate: lambda _, tokens: measured(tokens, float(tokens))})
    monkeypatch.setattr(study, "compile_for", lambda _: None)
    monkeypatch.setattr(study, "shared_workers", lambda **_: nullcontext(workers))
    told: list[tuple[int, int]] = []
    found = study.search(asked, results=tmp_path / "results.jsonl", on_progress=lambda *done: told.append(done))
    assert told == [(1, 2), (2, 2)]
    assert set(ResultsFile(tmp_path / "results.jsonl", asked).known) == {one.key for one in candidates(asked)}
    again = study.search(asked, results=tmp_path / "results.jsonl")
    assert len(workers.rounds) == 1, "everything is known"
    assert again.ranked == found.ranked == study.search(asked).ranked
    assert len(workers.rounds) == 2


def test_nothing_found() -> None:
    nothing = study.Found(question(), [], [])
    assert (nothing.best, nothing.runs, nothing.simulated) == (None, 0, 0)


def test_the_winner_is_run_at_its_capacity_and_counts_who_meets_its_limits() -> None:
    asked = question(slo={"ttft_s": {"p90": 0.5}, "e2e_s": {"p50": 9.0, "p99": 20.0}, "tbt_s": {"p99": 0.1}})
    (one, *_) = candidates(asked)
    record = Record(one.label, dict(one.overrides), "measured", capacity_per_s=12.5, num_requests=800)
    found = winning_scenario(asked, record)
    assert (found.workload.rate, found.workload.num_requests, found.device) == (12.5, 800, "a100")
    assert (found.slo.ttft_s, found.slo.tpot_s, found.slo.e2e_s) == (0.5, None, 9.0)
    good = question(slo={"ttft_s": {"p90": 0.5}, "goodput": {"tpot_s": 0.05}})
    limits = winning_scenario(good, record).slo
    assert (limits.ttft_s, limits.tpot_s, limits.e2e_s) == (None, 0.05, None), "goodput's own"
