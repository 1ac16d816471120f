"""What figures show, and what they leave out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gnomon.pipeline.memory import Curve as Steps
from gnomon.pipeline.step import StepConfig, run_step
from gnomon.report import look
from gnomon.report.pipeline.figures import LINK_BINS, RANK_COLOURS, binned, step_figure
from gnomon.report.pipeline.heat_map import HeatGrid, heat_map_figure
from gnomon.report.pipeline.timeline import COLOURS, COMPLETION, Bar, Lane, Timeline, drawn_together
from gnomon.report.serving.figures import cdf, crossed_first, distribution
from gnomon.search.load_curve import LoadCurve
from gnomon.workload.slo import SloConfig


def test_a_straggler_does_not_squeeze_the_distribution() -> None:
    values = np.concatenate([np.linspace(0.1, 0.2, 9999), [3.0]])
    layout = cdf("Time", {"": distribution(values)})["layout"]
    assert layout["xaxis"]["range"][1] == pytest.approx(1.04 * 0.1995, rel=0.01)
    assert layout["xaxis"]["title"]["text"] == "s (max 3 s)"
    near = cdf("Time", {"": distribution(np.linspace(0.1, 0.2, 1000))}, target=0.25)["layout"]
    assert "range" not in near["xaxis"] and near["xaxis"]["title"]["text"] == "ms"


def test_the_target_stays_in_sight() -> None:
    values = np.concatenate([np.linspace(0.1, 0.2, 9999), [5.0]])
    assert cdf("Time", {"": distribution(values)}, target=0.4)["layout"]["xaxis"]["range"][1] == pytest.approx(0.416)


def test_below_a_decade_a_log_axis_has_labels() -> None:
    axis = look.log_axis(210.0, 340.0)
    inside = [value for value in axis["tickvals"] if axis["range"][0] <= np.log10(value) <= axis["range"][1]]
    assert len(inside) >= 3 and axis["ticktext"][0] == f"{axis['tickvals'][0]:g}"
    assert "tickvals" not in look.log_axis(1.0, 100.0)


def test_equal_priorities_have_no_best() -> None:
    flat = heat_map_figure(HeatGrid(["0", "1"], np.full((2, 2), 7.0)))["layout"]
    assert flat["title"]["text"] == "Priorities do not matter here"
    assert [one["type"] for one in flat["shapes"]] == ["line", "line"]
    one = heat_map_figure(HeatGrid(["0", "1"], np.array([[7.0, 6.0], [6.0, np.nan]])))["layout"]
    assert [shape["type"] for shape in one["shapes"]] == ["line", "line", "rect", "rect"]
    assert one["title"]["text"] == "Red: the least total time, the same in 2 cells"


def test_a_dashed_red_line_marks_where_a_step_ends() -> None:
    run = run_step(StepConfig(n=4, stages=2)).run
    (mark,) = (shape for shape in step_figure(run, show_completion_time=True)["layout"]["shapes"] if shape["x0"])
    assert mark["x0"] == mark["x1"] == run.total_time
    assert mark["line"]["dash"] == "dash" and mark["line"]["color"] == COMPLETION


def test_links_in_use_keep_their_mean_whenbinned() -> None:
    times = np.linspace(0.0, 10.0, 5000, endpoint=False)
    curve = Steps(times, np.arange(5000) % 2 * 1.0)
    found = binned(curve, 10.0)
    assert len(found.times) == LINK_BINS
    assert found.values.mean() == pytest.approx(0.5) and found.values.max() < 0.6
    short = Steps(times[:10], curve.values[:10])
    assert binned(short, 10.0) is short


def test_bars_narrower_than_a_pixel_are_drawn_together() -> None:
    """Ten passes of 0.1 in a lane that shows five bars: one bar per bin and kind, as high as its share of the bin."""

    def bar(number: int, kind: str, lane: int) -> Bar:
        start = 0.1 * number
        return Bar(number, kind, lane, start, start + 0.1, 0.0, 1.0, str(number), "", False, False)

    dense = [bar(number, "forward" if number % 2 else "backward", 0) for number in range(10)]
    wide = replace(bar(0, "forward", 0), start=1.0, end=2.0)
    lanes = Timeline([Lane(0, "compute"), Lane(1, "compute")], [*dense, wide, bar(3, "forward", 1)])
    drawn = drawn_together(lanes, 2.0, bins=5)  # Bins of 0.4: two forwards and two backwards in each of the first two.
    first = [one for one in drawn.bars if one.lane == 0]
    assert wide in first and [one for one in drawn.bars if one.lane == 1] == [lanes.bars[-1]]
    merged = [one for one in first if one.start == 0.0]
    assert [(one.kind, one.end, one.low, one.high) for one in merged] == [
        ("forward", 0.4, 0.0, pytest.approx(0.5)),
        ("backward", 0.4, pytest.approx(0.5), pytest.approx(1.0)),
    ]
    assert "2 x forward" in merged[0].hover and merged[0].text == ""
    assert drawn_together(lanes, 2.0, bins=11).bars == lanes.bars


def test_memory_has_colours_of_its_own() -> None:
    assert not {one.lower() for one in RANK_COLOURS} & {one.lower() for one in COLOURS.values()}


@pytest.mark.parametrize(
    ("slo", "bound_by"),
    [
        ({}, "a growing queue"),
        ({"ttft_s": 1.0}, "TTFT"),
        ({"ttft_s": 1.0, "tpot_s": 0.05}, "TPOT"),
        ({"e2e_s": 9.0}, "E2E"),
    ],
)
def test_the_limit_that_is_passed_at_the_lowest_load_binds(slo: dict[str, float], bound_by: str) -> None:
    seconds = {"ttft": [0.1, 0.5, 2.0], "tpot": [0.02, 0.06, 0.07], "e2e": [5.0, 8.0, None]}
    curve = LoadCurve((1.0, 2.0, 3.0), {name: {"p99": values} for name, values in seconds.items()}, 100)
    assert crossed_first(curve, SloConfig(**slo)) == bound_by
