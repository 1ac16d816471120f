"""The pages Plan, Pipeline, Post-training and Routing in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gnomon.pipeline.costs import StepCosts
from gnomon.pipeline.execution import execute
from gnomon.pipeline.study import Study, simulate, step_costs
from gnomon.pipeline.zoo import Plan, make

if TYPE_CHECKING:
    from ui_kit import Tab

pytest_plugins = ["ui_kit"]


def make_span(tab: Tab) -> float:
    """The first card of the Pipeline page."""
    return float(tab.page.inner_text("#pipeline-cards .card b").split()[0])


def click_cell(tab: Tab, fwd: str, grad: str) -> None:
    """Click the cell of the heat map at these priorities."""
    tab.page.locator("#pipeline-heat").scroll_into_view_if_needed()
    place: Any = tab.page.evaluate(
        """([fwd, grad]) => {
            const plot = document.querySelector('#pipeline-heat .js-plotly-plot'), layout = plot._fullLayout;
            const box = plot.querySelector('.nsewdrag').getBoundingClientRect();
            const at = (axis, name) => axis.c2p(axis._categories.indexOf(name));
            return [box.x + at(layout.xaxis, grad), box.y + at(layout.yaxis, fwd)];
        }""",
        [fwd, grad],
    )
    tab.page.mouse.move(*place)
    tab.page.mouse.click(*place)
    tab.idle()


def test_the_step_is_the_one_that_python_runs(tab: Tab) -> None:
    tab.open("/pipeline?stages=3&n=5")
    costs = step_costs(Study(stages=3, n=5))
    expected = execute(make("1f1b", Plan(3, 5)), costs).total_time
    assert make_span(tab) == pytest.approx(expected, rel=1e-5)
    names = [one.get("name") for one in tab.traces("pipeline-gantt")]
    assert names[:2] == ["forward", "backward"]


def test_sliders_and_schedules_change_the_gantt(tab: Tab) -> None:
    tab.open("/pipeline?sync=0&prop=0")
    before = make_span(tab)
    assert before == pytest.approx(execute(make("1f1b", Plan(4, 8)), StepCosts()).total_time)
    tab.page.focus("#pipeline-n-slider")
    tab.page.keyboard.press("ArrowRight")
    tab.idle()
    assert tab.page.input_value("#pipeline-n") == "9"
    assert make_span(tab) == pytest.approx(before + 3)
    tab.choose("pipeline-schedule", "zb-h1")
    assert "weight gradient" in [one.get("name") for one in tab.traces("pipeline-gantt")]
    assert "schedule=zb-h1" in tab.page.url and "n=9" in tab.page.url


def test_a_click_in_the_heat_map_shows_that_run(tab: Tab) -> None:
    tab.open("/pipeline?schedule=study&grid=0.25")
    assert make_span(tab) == pytest.approx(simulate(Study()).total_time, rel=1e-5)
    click_cell(tab, "a", "0.25")
    chosen = simulate(Study(fwd_prop="a", grad_prop=0.25, grad_sync=0.75)).total_time
    assert make_span(tab) == pytest.approx(chosen, rel=1e-5)
    assert [tab.page.input_value(f"#pipeline-{name}") for name in ("fwd_prop", "grad_prop", "grad_sync")] == [
        "a", "0.25", "0.75",
    ]  # fmt: skip
    assert tab.traces("pipeline-heat")[0]["z"][5][1] == pytest.approx(chosen, rel=1e-5)
    tab.open(tab.page.url.removeprefix(tab.address))  # The link gives the same view.
    assert make_span(tab) == pytest.approx(chosen, rel=1e-5)


def test_mistakes_are_said_beside_their_control(tab: Tab) -> None:
    tab.open("/pipeline?schedule=interleaved&n=6")
    assert "multiples of the 4 ranks" in tab.text("pipeline-n-error")
    tab.type("pipeline-n", "8")
    assert tab.text("pipeline-n-error") == ""
    tab.type("pipeline-fwd_prop", "best")
    assert "tier letter" in tab.text("pipeline-fwd_prop-error")
    tab.type("pipeline-fwd_prop", "b")
    tab.type("pipeline-bwd", "-1")
    assert "Must be from 0" in tab.text("pipeline-bwd-error")
    tab.type("pipeline-bwd", "2")
    tab.type("pipeline-limit", "1")
    assert "more than the limit" in tab.text("pipeline-limit-error")


def test_controls_without_effect_are_out_of_sight(tab: Tab) -> None:
    tab.open("/pipeline?costs=model&n=4")
    assert not tab.page.is_visible("#pipeline-fwd")
    assert tab.page.is_visible("#pipeline-sequence")
    assert "tokens/s" in tab.text("pipeline-cards")
    tab.choose("pipeline-schedule", "1f1b, greedy")
    assert tab.page.is_visible("#pipeline-fwd")
    assert not tab.page.is_visible("#pipeline-sequence")
