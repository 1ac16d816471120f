"""Comparing routers: pairs by seed, intervals, goals, reports; all without PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gnomon
from gnomon.api.routing import Routers
from gnomon.cli.routing import command
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.report.routing import files as route_files
from gnomon.report.routing import files as route_text
from gnomon.routing import compare as comparing
from gnomon.routing import suite, suite_goals
from gnomon.routing.compare import (
    BEST,
    GOALS,
    Contender,
    RouteComparison,
    Row,
    built_in_scenarios,
    find_scenario,
    judge,
    paired,
)
from gnomon.routing.config import CompareConfig, RouteConfig, load_config
from gnomon.routing.domain import DomainConfig
from gnomon.routing.stages import SCALARS
from gnomon.serving.routers import ROUTERS
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import RouterConfig
from serving_kit import requests_of, scenario

DEMANDED = {
    "random", "round_robin", "least_outstanding", "power_of_two", "least_kv", "least_prefill_tokens", "lmetric",
    "predicted_latency", "lookahead", "sticky_session", "prefix_aware",
}  # fmt: skip


def made_up(latencies: dict[str, list[float]], roles: dict[str, str], scenario: str = "chat") -> RouteComparison:
    """A comparison with given mean latencies per seed."""
    rows = [
        Row(scenario, seed, name, value, value, 2 * value, 0.1, 0.1, 0.2, 10.0, 0.0, 100)
        for name, values in latencies.items()
        for seed, value in enumerate(values)
    ]
    contenders = tuple(Contender(name, RouterConfig(name="random"), roles.get(name, "heuristic")) for name in latencies)
    return RouteComparison(tuple(rows), contenders, {scenario: Scenario()})


def test_intervals_are_students_over_paired_differences():
    """By hand: differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t(2) = 4.303."""
    found = paired(np.array([1.0, 2.0, 3.0]))
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert not found.is_clear


def test_pairing_removes_what_all_routers_share():
    """Seeds differ tenfold, but one router is always 10 % faster: the interval knows."""
    found = made_up({"a": [1.0, 10.0, 5.0], "b": [0.9, 9.0, 4.5]}, {}).against("chat", "b", "a")
    assert (found.low, found.mean, found.high) == pytest.approx((-0.1, -0.1, -0.1))


def test_the_best_heuristic_is_neither_a_policy_nor_a_bound():
    found = made_up(
        {"ours": [1.0, 1.0], "bound": [0.5, 0.5], "a": [2.0, 2.0], "b": [1.5, 1.6]},
        {"ours": "policy", "bound": "bound"},
    )
    assert found.best_heuristic("chat") == "b"
    assert found.policies == ["ours"]


def test_a_goal_is_missed_by_what_misses_it():
    """Chat: at most 2 % above the best heuristic, and P99 TTFT (the same for all here) at most 5 % above."""
    latencies = {"good": [1.01, 1.01], "bad": [1.03, 1.03], "least_outstanding": [1.0, 1.0]}
    found = made_up(latencies, {"good": "policy", "bad": "policy"})
    assert [verdict.is_met for verdict in judge(found, "good")] == [True, True]
    assert [verdict.word for verdict in judge(found, "bad")] == ["NO", "yes"]


@pytest.mark.parametrize(
    ("latencies", "word"),
    [([1.00, 1.01, 1.02], "open"), ([1.0, 1.0, 1.01], "yes"), ([1.03, 1.04, 1.04], "NO"), ([1.02, 1.03, 1.04], "open")],
)
def test_a_goal_is_judged_with_its_interval(latencies, word):
    """At most 2 % above. 1 ± 2.5 % and 3 ± 2.5 % decide nothing; 0.3 ± 1.4 % and 3.7 ± 1.4 % do."""
    found = made_up({"ours": latencies, "least_outstanding": [1.0] * 3}, {"ours": "policy"})
    verdict = judge(found, "ours")[0]
    assert (verdict.word, verdict.is_met) == (word, word == "yes")
    assert route_text.goal_rows([verdict])[0]["met"] == word


def test_every_built_in_scenario_has_a_goal_for_its_tail():
    assert {goal.scenario for goal in GOALS if goal.figure == "ttft_p99_s"} == set(built_in_scenarios())


def test_a_clone_is_held_against_its_teacher():
    latencies = {"clone": [1.03, 1.03], "gateway": [1.0, 1.0], "least_outstanding": [1.2, 1.2]}
    found = made_up(latencies, {"clone": "policy", "gateway": "teacher"})
    verdict = judge(found, "clone")[0]
    assert (verdict.baseline, verdict.is_met) == ("gateway", False)
    assert found.best_heuristic("chat") == "least_outstanding"


def test_goals_name_built_in_scenarios():
    assert {goal.scenario for goal in GOALS} <= set(comparing.built_in_scenarios())
    assert {goal.baseline for goal in GOALS} <= {BEST, "least_outstanding"}


def test_all_baselines_are_routers_and_all_demanded_ones_are_there():
    assert set(comparing.BASELINES) >= DEMANDED
    assert set(ROUTERS) >= DEMANDED


def test_heuristics_know_as_much_about_lengths_as_the_policy():
    found = comparing.contenders(CompareConfig(), {"learned": None}, "noisy")
    assert all(one.router.lengths == "noisy" for one in found if one.role != "bound")
    assert [one.name for one in found if one.role == "teacher"] == ["unselfish", "gateway"]
    assert [one.router.lengths for one in found if one.role == "bound"] == ["oracle"]


def test_at_least_six_scenarios_come_along_and_can_be_built():
    assert len(comparing.built_in_scenarios()) >= 6
    for name in comparing.built_in_scenarios():
        assert comparing.find_scenario(name).workload.num_requests


def test_the_documentation_explains_every_scalar_scenario_and_stage():
    page = (Path(__file__).parents[2] / "docs" / "routing.md").read_text(encoding="utf-8")
    for name, words in SCALARS.items():
        assert f"| `{name}` | {words} |" in page
    for name in (*comparing.built_in_scenarios(), *command.commands):
        assert name in page


def test_unknown_names_are_explained():
    with pytest.raises(UnknownNameError, match="mixed_bursty"):
        comparing.find_scenario("mixed_burst")
    with pytest.raises(UnknownNameError, match="documents-75"):
        comparing.find_scenario("document-75")
    with pytest.raises(UnknownNameError, match="lookahead"):
        comparing.contenders(CompareConfig(routers=("lookahed",)), {}, "none")
    with pytest.raises(UnknownNameError, match="quick"):
        load_config("quik", {})
    with pytest.raises(ConfigError, match="no heuristic"):
        made_up({"a": [1.0, 1.0]}, {"a": "policy"}).best_heuristic("chat")


def test_presets_can_be_read_and_overridden():
    for name in ("quick", "full"):
        assert isinstance(load_config(name, {}), RouteConfig)
    assert load_config("quick", {"train.discount": "0.5"}).train.discount == 0.5


@pytest.fixture(scope="module")
def small() -> RouteComparison:
    config = CompareConfig(
        scenarios=("chat", "unequal"), routers=("round_robin", "least_outstanding"), num_seeds=2, num_requests=150
    )
    return comparing.compare(config, comparing.contenders(config, {}, "none"), jobs=1)


def test_every_router_meets_the_same_requests_and_seeds_differ(small):
    assert {row.finished for row in small.rows} == {150}
    assert len(small.rows) == 2 * 2 * 2
    assert len(set(small.values("chat", "round_robin", "e2e_mean_s"))) == 2
    assert small.mean("unequal", "round_robin", "e2e_mean_s") > small.mean("unequal", "least_outstanding", "e2e_mean_s")


def test_a_comparison_does_not_depend_on_where_it_runs(small):
    config = CompareConfig(
        scenarios=("chat",), routers=("round_robin", "least_outstanding"), num_seeds=2, num_requests=150
    )
    again = comparing.compare(config, comparing.contenders(config, {}, "none"), jobs=1)
    assert again.rows == tuple(row for row in small.rows if row.scenario == "chat")


def test_the_report_holds_everything(small, tmp_path):
    page = (Routers(small).save(tmp_path) / "report.html").read_text(encoding="utf-8")
    assert "least_outstanding" in page and "unequal" in page and "@" + "TITLE@" not in page
    assert len(json.loads((tmp_path / "comparison.json").read_text())["rows"]) == len(small.rows)
    assert (tmp_path / "comparison.csv").read_text().count("\n") == len(small.rows) + 1
    rows = route_text.scenario_rows(small, "chat")
    assert {"E2E mean", "E2E P50", "E2E P99", "TTFT mean", "TTFT P50", "TTFT P99", "requests/s", "imbalance"} <= set(
        rows[0]
    )


def test_no_router_is_without_its_name_in_a_picture(small):
    drawn = [route_text.overview(small), *(route_text.bars(small, "chat", figure) for figure in route_text.FIGURES)]
    for layout in (one["layout"] for one in drawn):
        assert layout["yaxis"]["dtick"] == 1 and layout["yaxis"]["automargin"]
        assert layout["height"] >= 120 + 18 * 2


def assert_runs(code):
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_help_and_comparisons_never_load_torch():
    code = """
import sys
sys.modules["torch"] = None  # importing it fails
from gnomon.cli.main import main
import gnomon.routing.compare, gnomon.routing.config, gnomon.report.routing.files, gnomon.routing.stages
for words in (["route", "--help"], ["route", "compare", "--help"], ["route", "all", "--help"]):
    try:
        main(words)
    except SystemExit as stop:
        assert stop.code in (None, 0), stop.code
"""
    assert_runs(code)


def test_without_torch_training_says_what_to_install():
    code = """
import sys
sys.modules["torch"] = None
from gnomon.core.errors import MissingExtraError
from gnomon.routing import stages
try:
    stages.use_torch()
except MissingExtraError as error:
    assert "[learn]" in str(error)
else:
    raise AssertionError
"""
    assert_runs(code)


def test_the_same_in_python(tmp_path: Path) -> None:
    given = {"scenarios": ["chat"], "routers": ["round_robin", "least_outstanding"], "num_seeds": 2, "num_requests": 60}
    found = gnomon.route(given, jobs=1)
    assert set(found.summary["chat"]) == {"learned", "round_robin", "least_outstanding"}
    frame = found.frames["runs"]
    assert len(frame) == 3 * 2
    mine = frame.filter(frame["router"] == "round_robin")["e2e_mean_s"].mean()
    assert found.summary["chat"]["round_robin"] == pytest.approx(mine)
    assert "learned *" in found._repr_html_()
    assert len(found.figures["chat e2e_mean_s"].data[0].x) == 3
    page = (found.save(tmp_path) / "report.html").read_text()
    assert "3 routers compared" in page and "Scenarios: 1. Held-out seeds: 2." in page


@pytest.mark.parametrize("name", built_in_scenarios())
def test_figures_do_not_depend_on_what_is_installed(name):
    """Beside the roofline, a source may or may not be there: built-in scenarios and the training domain name theirs."""
    assert {pool.timing.source for pool in find_scenario(name).all_pools()} == {"roofline"}
    assert DomainConfig().source == "roofline"


def test_another_source_is_that_of_every_pool():
    found = find_scenario("unequal", "silicon")
    assert [(pool.timing.source, pool.timing.scale) for pool in found.all_pools()] == [
        ("silicon", 1.0),
        ("silicon", 2.0),
    ]
    with pytest.raises(UnknownNameError, match="roofline"):
        find_scenario("unequal", "crystal_ball")


def test_the_suite_is_eleven_kinds_of_fleets_at_three_loads():
    kinds = {name.rpartition("-")[0] for name in suite.cells()}
    assert (len(kinds), len(suite.cells())) == (11, 33)
    assert {name.rpartition("-")[2] for name in suite.cells()} == {"50", "75", "90"}
    for one in suite.cells().values():
        assert one.slo.is_given
    rates = [suite.cells()[f"documents-{load}"].workload.rate for load in (50, 75, 90)]
    assert rates == sorted(rates)
    found = comparing.contenders(CompareConfig(suite=True), {"learned": None}, "none")
    assert {one.name for one in found} >= set(ROUTERS) - set(ROUTERS.own), "every router that comes with Gnomon"
    assert not [one for one in found if one.role == "bound"]


def test_goals_over_the_suite_count_cells_and_name_losses():
    """Of three cells the router is 1 % above the best heuristic in two and 4 % above in one: too few of them within
    2 %, though none beyond 5 %. Its goodput is a tenth below the best, its P99 TTFT equal to least-outstanding's."""

    def row(scenario: str, seed: int, router: str, e2e_s: float, good: float) -> Row:
        return Row(scenario, seed, router, e2e_s, e2e_s, e2e_s, 0.1, 0.1, 0.2, 10.0, 0.0, 100, good, 1.0)

    names = ("plain-50", "plain-75", "plain-90")
    rows = [row(name, seed, "least_outstanding", 1.2, 9.0) for name in names for seed in (0, 1)]
    rows += [row(name, seed, "lmetric", 1.0, 10.0) for name in names for seed in (0, 1)]
    ours = dict(zip(names, (1.01, 1.01, 1.04), strict=True))
    rows += [row(name, seed, "gateway", ours[name], 9.0) for name in names for seed in (0, 1)]
    roles = {"gateway": "teacher", "lmetric": "heuristic", "least_outstanding": "heuristic"}
    against = tuple(Contender(name, RouterConfig(name="random"), role) for name, role in roles.items())
    found = suite_goals.judge(RouteComparison(tuple(rows), against, {name: Scenario() for name in names}))
    e2e, goodput, tail = found
    assert [(one.scenario, one.baseline) for one in e2e.losses] == [("plain-90", "lmetric")]
    assert e2e.losses[0].worse.mean == pytest.approx(0.04)
    assert "in 2 of 3 cells" in e2e.sentence and e2e.sentence.endswith("NOT met.")
    assert goodput.losses[0].worse.mean == pytest.approx(0.1), "below is a loss"
    assert tail.is_met and tail.sentence.endswith("Met.")
    assert any("plain-90" in str(block) for block in route_files.suite_blocks(found))


def test_what_was_learned_is_held_against_its_teacher():
    """3 % above it in one cell of two; the teacher itself, and a rule beside it, are held against nobody's teacher."""
    against = tuple(
        Contender(name, RouterConfig(name="random"), role)
        for name, role in (
            ("learned", "policy"), ("unselfish", "teacher"), ("gateway", "teacher"), ("least_outstanding", "heuristic"),
        )
    )  # fmt: skip
    rows = tuple(
        Row(name, seed, one.name, e2e_s, e2e_s, e2e_s, 0.1, 0.1, 0.2, 10.0, 0.0, 100, 9.0, 1.0)
        for name in ("plain-50", "plain-75")
        for seed in (0, 1)
        for one in against
        for e2e_s in [1.03 if (name, one.name) == ("plain-75", "learned") else 1.0]
    )
    found = suite_goals.judge(RouteComparison(rows, against, {name: Scenario() for name in ("plain-50", "plain-75")}))
    (taught,) = (one for one in found if one.goal.baseline == "gateway")
    assert taught.router == "learned" and [one.scenario for one in taught.losses] == ["plain-75"]
    assert taught.sentence.startswith("learned: mean E2E at most 1% above gateway of each cell in 1 of 2 cells")
    assert len(found) == 10


def test_rates_are_over_the_time_in_which_requests_come():
    """Nine requests come within 8 s, and one of them takes 20 s: 9 / 8 requests per second. Where all come at once, or
    answers call the next, until the last has ended."""
    offered = requests_of([float(i) for i in range(9)], [1] * 9, [1] * 8 + [20])
    setup = scenario(timing={"source": "table", "table": {"per_iteration": 1.0}}, slo={"ttft_s": 100})
    found = comparing.one_row("x", setup, "random", offered)
    assert found.requests_per_s == found.goodput_per_s == pytest.approx(9 / 8)
    at_once = comparing.one_row("x", setup, "random", requests_of([0.0] * 2, [1] * 2, [20] * 2))
    assert at_once.requests_per_s == pytest.approx(2 / 20)
    in_turn = replace(requests_of([0.0, np.inf], [1] * 2, [20] * 2), concurrency=1)
    assert comparing.one_row("x", setup, "random", in_turn).requests_per_s == pytest.approx(2 / 40)
