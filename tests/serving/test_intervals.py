"""Prediction intervals: what moves them, what they leave alone, and where they are shown."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gnomon
from gnomon.serving.results.intervals import _around, intervals, perturbed
from gnomon.timing.source_registry import SOURCES

SMALL = {"workload.num_requests": 80, "workload.rate": 4.0}
TABLE = {"timing.source": "table", "timing.table": {"per_iteration": 0.01}, **SMALL}


def simulated(**given: Any) -> gnomon.Simulation:
    return gnomon.simulate(**{**SMALL, **given})


def test_every_interval_holds_its_figure() -> None:
    found = simulated(**{"slo.ttft_s": 0.1}).intervals
    assert {"latency.ttft_s.p99", "latency.tpot_s.mean", "throughput.requests_per_s", "slo.attainment"} <= set(found)
    for one in found.values():
        assert one.low <= one.value <= one.high


def test_times_that_are_given_leave_the_requests_alone() -> None:
    """The source table is exact: with the same requests nothing moves."""
    result = gnomon.simulate(**TABLE)
    assert result.run.spread == 0.0
    same = intervals(result.run, result.summary, redraw=False)
    for one in same.values():
        assert (one.low, one.high) == pytest.approx((one.value, one.value))
    drawn = intervals(result.run, result.summary, redraw=True)["latency.e2e_s.mean"]
    assert drawn.low < drawn.value < drawn.high


def test_a_wider_error_of_the_source_widens_in_proportion() -> None:
    result = simulated()
    assert result.run.spread == pytest.approx(
        math.hypot(SOURCES["profile"].server_error, result.run.times.baked[0].uncertainty)
    )
    runs = list(perturbed(result.run, redraw=False))
    assert len(runs) == 8
    half = intervals(result.run, result.summary, redraw=False)["latency.tpot_s.mean"]
    assert math.log(half.high / half.value) == pytest.approx(1.89 * result.run.spread, rel=0.3)
    assert SOURCES["silicon"].server_error > 2 * result.run.spread


def test_first_tokens_are_less_sure_than_iterations_unless_calibrated() -> None:
    result = simulated()
    wide, narrow = result.intervals["latency.ttft_s.mean"], result.intervals["latency.tpot_s.mean"]
    assert math.log(wide.high / wide.value) > 1.89 * result.run.first_token_spread
    assert math.log(narrow.high / narrow.value) < math.log(wide.high / wide.value)


def test_the_same_seed_gives_the_same_intervals_and_large_runs_are_not_repeated() -> None:
    assert simulated().intervals == simulated().intervals
    assert gnomon.simulate(intervals=False, **SMALL).intervals == {}
    result = gnomon.simulate(**{**TABLE, "workload.num_requests": 20_001, "workload.rate": 1.0,
                                "workload.preset": None, "workload.lengths": {
                                    "distribution": "fixed", "prompt": 8, "output": 2}})  # fmt: skip
    assert result.intervals == {}


def test_they_are_in_the_terminal_the_report_and_the_json(tmp_path: Path, cli: Any) -> None:
    words = ["--workload.num-requests", "60", "--rate", "4"]
    said = cli("simulate", *words, "--out", str(tmp_path / "run")).output
    assert "90 % intervals" in said and "TTFT" in said
    page = (tmp_path / "run" / "report.html").read_text()
    assert "90 % intervals" in page
    data = json.loads((tmp_path / "run" / "summary.json").read_text())["intervals"]["latency.ttft_s.p99"]
    assert data["low"] < data["value"] < data["high"]
    assert "90 %" not in cli("simulate", *words, "--no-intervals").output
    both = cli("compare", *words, "--vary", "batching.policy=vllm_v1,sarathi").output
    assert "90 % intervals" in both


def test_a_searchs_winner_has_an_interval_of_its_capacity() -> None:
    found = gnomon.search({
        "slo": {"ttft_s": {"p90": 0.2}}, "space": {"device": "h200"},
        "effort": {"min_requests": 200, "max_requests": 400, "num_intervals": 1, "num_sequences": 2},
    }, jobs=1)  # fmt: skip
    one = found.capacity_interval
    assert one is not None and one.low < found.best.capacity_per_s < one.high
    assert "with 90 % probability" in "".join(getattr(block, "text", "") for block in found.text())


def test_wide_intervals_say_where_the_width_comes_from() -> None:
    from gnomon.report.serving.intervals import width_words
    from gnomon.serving.results.intervals import Interval

    wide = {"latency.tpot_s.mean": Interval(0.010, 0.008, 0.0125)}
    assert "timing source may be off" in width_words(wide, 0.13) and "±21%" in width_words(wide, 0.13)
    assert "other requests" in width_words(wide, 0.05) and "±8%" in width_words(wide, 0.05)
    assert width_words({"latency.tpot_s.mean": Interval(0.010, 0.0095, 0.0105)}, 0.03) == ""
    assert width_words({}, 0.1) == ""


def test_wide_intervals_are_never_written_as_powers_of_ten() -> None:
    from gnomon.report.serving.intervals import words
    from gnomon.serving.results.intervals import Interval

    assert words(Interval(0.652, 0.226, 1.88)) == "652 ms, 226–1,880"
    assert words(Interval(0.205, 0.190, 0.223)) == "205 ms, 190–223"


def test_figures_that_leap_near_capacity_have_the_range_of_their_runs() -> None:
    even = _around(1.0, np.array([0.5, 2.0]), 1.89, 0.0)
    assert even.low == pytest.approx(0.5**1.89) and even.high == pytest.approx(2.0**1.89)
    leaping = _around(1.0, np.array([0.9, 0.95, 1.1, 400.0]), 1.89, 0.0)
    assert (leaping.low, leaping.high) == (0.9, 400.0)
    beside = _around(1.0, np.array([1.2, 400.0]), 2.0, math.log(1.5))
    assert beside.low == pytest.approx(1 / 1.5**2) and beside.high == pytest.approx(400 * 1.5**2)


def test_servers_of_a_kind_that_was_measured_are_off_by_less() -> None:
    from gnomon import catalog
    from gnomon.timing import TimingConfig
    from gnomon.timing.source_registry import traits_of
    from gnomon.timing.sources.silicon import DRAWING, ELSEWHERE, MEASURED

    def errors(engine: str, device: str, **sampler: Any) -> tuple[float, float]:
        config = TimingConfig(source="silicon", engine=engine, sampler=sampler)
        model = catalog.model("llama-3.1-8b")
        context = SimpleNamespace(config=config, model=model, device=catalog.device(device))
        return traits_of("silicon").errors(context)

    known = MEASURED["vllm", "grouped"]
    assert errors("vllm", "h200") == known and errors("sglang", "h200") == ELSEWHERE
    assert errors("vllm", "h200", is_random=True) == (math.hypot(known[0], DRAWING[0]), known[1])
    assert errors("vllm", "b200", is_random=True) == (math.hypot(known[0], DRAWING[1]), known[1])
    assert all(one[0] < ELSEWHERE[0] for one in MEASURED.values())
