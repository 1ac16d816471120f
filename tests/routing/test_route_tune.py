"""Weights of the rule `unselfish` for one's own fleet, and the requests that routers are trained and compared on."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gnomon.core.config import build, load
from gnomon.core.errors import ConfigError
from gnomon.routing import traffic as windows
from gnomon.routing.config import RouteConfig
from gnomon.routing.environment import spread
from gnomon.routing.tune import TuneConfig, tune
from gnomon.serving.scenario import Scenario
from gnomon.workload.config import WorkloadConfig

FLEET = """
pools: [{timing: {source: table, table: {per_token: 0.0002, per_iteration: 0.004}}},
        {timing: {source: table, table: {per_token: 0.0006, per_iteration: 0.012}}}]
model: llama-3-8b
device: h100
workload: {rate: 6, num_requests: 200, lengths: {distribution: uniform, prompt: [100, 900], output: [20, 80]}}
"""


@pytest.fixture
def fleet(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    return path


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    rows = [f"{i * 0.5},{100 + i},{10 + i % 7}" for i in range(100)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    return build(WorkloadConfig, {"trace": str(path)})


def test_training_and_comparison_see_different_parts_of_a_trace(trace):
    """Prompts are 100, 101, ... in order: those below 170 are the first 70 %."""
    trained = {int(p) for seed in range(40) for p in windows.training_requests(trace, 30, seed).prompt_tokens}
    compared = {int(p) for seed in range(40) for p in windows.held_out_requests(trace, seed).prompt_tokens}
    assert max(trained) < 170 <= min(compared)
    assert len(trained) == 70 and len(compared) == 30


def test_a_window_longer_than_its_part_begins_anew_in_step(trace):
    found = windows.training_requests(trace, 150, 3)
    assert len(found) == 150 and found.arrival_s[0] == 0.0
    assert np.allclose(np.diff(found.arrival_s), 0.5), "the gap between the last and the first is the mean one"
    assert np.array_equal(found.prompt_tokens[:70], found.prompt_tokens[70:140])


def test_windows_follow_from_the_seed(trace):
    one, same, other = (windows.held_out_requests(trace, seed).prompt_tokens for seed in (5, 5, 6))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


def test_drawn_workloads_are_drawn_by_the_seed():
    workload = WorkloadConfig(rate=3.0, num_requests=50)
    assert len(windows.training_requests(workload, 20, 1)) == 20
    assert len(windows.held_out_requests(workload, 1)) == 50


@pytest.mark.parametrize(
    ("scenarios", "domain_share", "kinds", "expected"),
    [((), 0.0, 1, [16]), (("a",), 0.0, 1, [16]), (("a", "b"), 0.0, 2, [8, 8]), (("a",), 0.5, 2, [8, 8]),
     (("a",), 0.25, 2, [12, 4]), (("a", "b", "c", "d", "e"), 0.0, 5, [4, 4, 4, 4, 4])],
)  # fmt: skip
def test_environments_are_spread_over_the_kinds_of_traffic(scenarios, domain_share, kinds, expected):
    """In groups of four; every kind has at least one group."""
    config = RouteConfig(scenarios=scenarios, domain_share=domain_share)
    assert spread(config, 16, kinds, 4) == expected


def test_the_search_finds_better_weights_and_is_repeatable(fleet):
    config = TuneConfig(generations=3, population=5, num_seeds=2, num_requests=120)
    found = tune(config, [str(fleet)], jobs=1)
    assert found == tune(config, [str(fleet)], jobs=1)
    assert list(found.options) == ["first_token", "stall", "crowding", "stalls_to_come", "patience"]
    assert found.cost < 1.0 and found.cost == found.history[-1]
    assert list(found.history) == sorted(found.history, reverse=True)


def test_the_tuned_router_is_compared_and_written(cli, fleet, tmp_path):
    words = ["--generations", "2", "--population", "4", "--num-seeds", "2", "--num-requests", "100"]
    words += ["--held-out-seeds", "2", "--jobs", "1"]
    result = cli("route", "tune", str(fleet), *words, "--out", str(tmp_path / "out"))
    assert "Weights of unselfish: first_token" in result.output and "tuned *" in result.output
    written = load(Scenario, tmp_path / "out" / "tuned" / "fleet.yaml")
    assert written.router.name == "unselfish"
    answer = json.loads(cli("route", "tune", str(fleet), *words, "--json").stdout)
    assert answer["tuned"]["options"] == written.router.options
    cli("simulate", str(tmp_path / "out" / "tuned" / "fleet.yaml"), "--requests", "50")


def test_a_closed_loop_cannot_be_trained_on():
    from gnomon.routing.traffic import ScenarioTraffic

    closed = build(Scenario, {"workload": {"arrivals": {"process": "closed_loop", "concurrency": 4}}})
    with pytest.raises(ConfigError, match="open loop"):
        ScenarioTraffic(closed, 50)
