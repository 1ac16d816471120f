"""The pages Plan, Pipeline, Post-training and Routing in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

pytest.importorskip("dash", reason="Dash is not installed (extra ui)")

import gnomon
from gnomon.core.config import load
from gnomon.pipeline.costs import StepCosts
from gnomon.pipeline.execution import execute
from gnomon.pipeline.study import Study, simulate, step_costs
from gnomon.pipeline.zoo import Plan, make
from gnomon.posttrain.scenario.config import PolicyConfig, Posttrain
from gnomon.posttrain.simulator.simulate import run
from gnomon.search.study import finished_search
from gnomon.ui import jobs
from gnomon.ui.app import make_app
from gnomon.ui.pages import NAMES, all_pages, posttrain
from gnomon.ui.pages.posttrain import EXAMPLES, config_of

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
    tab.open("/pipeline?tab=schedules&stages=3&n=5")
    costs = step_costs(Study(stages=3, n=5))
    expected = execute(make("1f1b", Plan(3, 5)), costs).total_time
    assert make_span(tab) == pytest.approx(expected, rel=1e-5)
    names = [one.get("name") for one in tab.traces("pipeline-gantt")]
    assert names[:2] == ["forward", "backward"]


def test_the_training_page_answers_as_python_does(tab: Tab) -> None:
    tab.open("/pipeline?model=llama-3-8b&gpus=8&batch=16&tensor_parallel=2&pipeline_parallel=1&micro_batch=1")
    asked = {"model": "llama-3-8b", "gpus": 8, "batch": 16, "sequence": 8192, "tensor_parallel": 2}
    step = gnomon.train(asked).step
    assert tab.page.inner_text("#pipeline-cards .card b") == f"{step.step_s:.4g} s"
    bars = tab.page.locator("#pipeline-rest .split")
    assert bars.nth(1).locator("i").count() == len(step.memory.parts) + 2  # Allocator, free.
    assert "--tensor-parallel 2" in tab.page.inner_text("#pipeline-copies")
    tab.open("/pipeline?gpus=8&batch=16&tensor_parallel=1&pipeline_parallel=1")
    assert "GB more than the" in tab.page.inner_text("#pipeline-rest .warning")


def test_sliders_and_schedules_change_the_gantt(tab: Tab) -> None:
    tab.open("/pipeline?tab=schedules&sync=0&prop=0")
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
    tab.open("/pipeline?tab=schedules&schedule=study&grid=0.25")
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
    tab.open("/pipeline?tab=schedules&schedule=interleaved&n=6")
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
    tab.open("/pipeline")
    assert not tab.page.is_visible("#pipeline-fwd")
    assert tab.page.is_visible("#pipeline-sequence")
    assert "tokens/s/GPU" in tab.text("pipeline-cards")
    assert {one["name"] for one in tab.traces("pipeline-over_time")} >= {"weights", "optimizer", "activations"}
    tab.choose("pipeline-tab", "schedules, with given times")
    assert tab.page.is_visible("#pipeline-fwd")
    assert not tab.page.is_visible("#pipeline-sequence")


FILES = ("small", "flat", "elastic")
"""Of the examples, in their order."""
TINY = "devices=h100&tp=1&engines=&policies=vllm_v1&tokens=2048&effort=500"


def wait_for_job(tab: Tab, page: str, words: str = "Done.") -> None:
    """Until the job's line says so."""
    tab.page.wait_for_function(
        "([id, words]) => document.getElementById(id).innerText.includes(words)",
        arg=[f"{page}-progress", words],
        timeout=120_000,
    )
    tab.idle()


def test_a_search_runs_and_its_points_open_in_serve(tab: Tab, runs_folder: Path) -> None:
    tab.open(f"/plan?{TINY}")
    assert "Press Search" in tab.text("plan-empty")
    assert tab.text("plan-fits") == "Configurations: 1, of which 1 fit." and len(tab.traces("plan-space")) == 1
    tab.page.click("#plan-run")
    wait_for_job(tab, "plan")
    assert "Best deployment: h100 TP1 PP1 vllm_v1 tokens=2048" in tab.text("plan-answer")
    ranking = tab.text("plan-tables")
    place = tab.page.evaluate(
        """() => {
            const plot = document.querySelector('#plan-ttft_front .js-plotly-plot'), {xaxis, yaxis} = plot._fullLayout;
            const box = plot.querySelector('.nsewdrag').getBoundingClientRect(), points = plot.data[1];
            return [box.x + xaxis.d2p(points.x[0]), box.y + yaxis.d2p(points.y[0])];
        }"""
    )
    tab.page.mouse.move(*place)
    tab.page.mouse.click(*place)
    tab.page.wait_for_selector("#page-serve")
    tab.idle()
    assert "/serve?" in tab.page.url and "max_batch_tokens" in unquote(tab.page.url)
    (folder,) = (runs_folder / "search").iterdir()
    tab.open(f"/plan?dir=search/{folder.name}")  # Without running anything again.
    assert tab.text("plan-tables") == ranking
    assert finished_search(folder).best is not None


def test_a_search_can_be_cancelled(tab: Tab) -> None:
    tab.open("/plan?devices=h100,a100-80gb,h200&tp=1,2,4&effort=16000&seed=1&strategy=exhaustive")
    tab.page.click("#plan-run")
    tab.page.wait_for_function("() => !document.querySelector('#plan-cancel').disabled")
    job = tab.page.input_value("#plan-job")
    process = jobs._jobs[job].process
    assert process.is_alive()
    tab.page.click("#plan-cancel")
    wait_for_job(tab, "plan", "Cancelled.")
    assert not process.is_alive()
    assert "Press Search" in tab.text("plan-empty")


def test_a_question_that_cannot_be_asked(tab: Tab) -> None:
    tab.open("/plan?objective=cost")
    tab.page.click("#plan-run")
    tab.idle()
    assert "Set load" in tab.text("plan-load-error")
    tab.type("plan-tp", "two")
    tab.page.click("#plan-run")
    tab.idle()
    assert "whole numbers" in tab.text("plan-tp-error")
    tab.open("/plan?dir=../elsewhere")
    assert "no finished search" in tab.text("plan-dir-error")


@pytest.mark.parametrize(("example", "file"), list(zip(EXAMPLES.values(), FILES, strict=True)))
def test_the_examples_are_those_on_disk(example: dict[str, Any], file: str) -> None:
    mine = config_of(posttrain.PAGE.read({one.name: one.default for one in posttrain.CONTROLS} | example))
    path = Path(__file__).parents[2] / "examples" / "posttrain" / f"{file}.yaml"
    same = {"cluster.auto_scheduler": True, "policy.name": None}  # Which is what names elastic.
    assert load(Posttrain, None, {"policy": mine.policy.model_dump()} | flat(mine) | same) == load(Posttrain, path)


def flat(config: Posttrain) -> dict[str, Any]:
    """Its sections, except the policy's."""
    return {name: value for name, value in config.model_dump().items() if name != "policy"}


def test_allocation_follows_the_placement(tab: Tab) -> None:
    tab.open("/posttrain")
    config = config_of(posttrain.PAGE.read({one.name: one.default for one in posttrain.CONTROLS}))
    assert f"{run(config).step_s:.1f} s" in tab.text("posttrain-cards")
    assert "training" in [one.get("name") for one in tab.traces("posttrain-allocation")]
    tab.choose("posttrain-policy", "disaggregated")
    assert not tab.page.is_visible("#posttrain-pre")
    changed = config.model_copy(update={"policy": PolicyConfig(name="disaggregated")})
    assert f"{run(changed).step_s:.1f} s" in tab.text("posttrain-cards")
    tab.type("posttrain-actor", "0-9")
    assert "GPU 9 is not there" in tab.text("posttrain-actor-error")
    tab.type("posttrain-actor", "0-2")
    assert "GPU" in tab.text("posttrain-rollout-error")  # Two components on one.


def test_a_plan_of_post_training_has_its_modes_and_commands(tab: Tab) -> None:
    tab.open("/posttrain?question=plan&lag=0&prompts=16&mean=800")
    tab.page.click("#posttrain-run")
    wait_for_job(tab, "posttrain")
    rows = tab.text("posttrain-rows")
    assert "colocated" in rows and "disaggregated" in rows and "asynchronous" not in rows  # No lag is allowed.
    assert "data.train_batch_size=16" in rows or "trainer.nnodes" in rows
    assert {one["name"] for one in tab.traces("posttrain-compared")} == {"colocated", "disaggregated"}
    assert tab.text("posttrain-stale") == "" and tab.text("posttrain-how") == ""


def test_policies_side_by_side(tab: Tab) -> None:
    tab.open("/posttrain?policies=disaggregated,elastic&prompts=16&mean=800&policy=payback")
    tab.page.click("#posttrain-run")
    wait_for_job(tab, "posttrain")
    rows = tab.text("posttrain-rows")
    assert "disaggregated" in rows and "elastic" in rows and "click on a policy" in tab.text("posttrain-how")
    assert {one["customdata"][0] for one in tab.traces("posttrain-compared")} == {"disaggregated", "elastic"}
    assert tab.text("posttrain-stale") == ""
    tab.page.locator("#posttrain-compared").scroll_into_view_if_needed()
    place = tab.page.evaluate(
        """() => {
            const plot = document.querySelector('#posttrain-compared .js-plotly-plot');
            const {xaxis, yaxis2} = plot._fullLayout;
            const box = plot.getBoundingClientRect(), trace = plot.data.find(one => one.customdata[0] === 'elastic');
            const at = trace.y.findIndex(value => value > 0);
            const [x, y] = [xaxis.d2p(trace.x[at]) + 3, yaxis2.d2p(trace.y[at]) + 3];
            return [box.x + xaxis._offset + x, box.y + yaxis2._offset + y];
        }"""
    )
    tab.page.mouse.move(*place)
    tab.page.mouse.click(*place)
    tab.idle()
    assert "policy=" not in tab.page.url  # elastic, the default, is the second.
    assert tab.page.is_visible("#posttrain-pre")
    tab.type("posttrain-samples", "4")
    assert "other settings" in tab.text("posttrain-stale")


def test_routers_on_the_same_requests(tab: Tab) -> None:
    tab.open("/routing?requests=1000&routers=round_robin,least_outstanding,lmetric&metric=ttft_s&statistic=p99")
    tab.page.click("#routing-run")
    wait_for_job(tab, "routing")
    routers = ["round_robin", "least_outstanding", "lmetric"]
    load = {"preset": "chat-1m", "rate": 90, "num_requests": 1000, "arrivals": {"process": "gamma", "cv": 4}}
    expected = gnomon.compare(vary={"router.name": routers}, workload=load, num_replicas=4, device="h100")
    (shown,) = tab.traces("routing-differences")
    for name, change in zip(shown["y"], shown["x"], strict=True):
        one = next(d for d in expected.differences[f"name={name}"] if (d.metric, d.statistic) == ("ttft_s", "p99"))
        assert one.relative is not None
        assert change == pytest.approx(100 * one.relative)
    assert tab.page.locator("#routing-rows tbody tr").count() == 3
    tab.type("routing-requests", "a lot")
    tab.page.click("#routing-run")
    tab.page.wait_for_selector("#routing-requests-error:has-text('not a number')")
    assert "not a number" in tab.text("routing-requests-error")


def test_training_curves_of_any_table(tab: Tab, runs_folder: Path) -> None:
    for name, column in (("one", "update"), ("two", "step")):
        (runs_folder / "route" / name).mkdir(parents=True)
        rows = "".join(f"{step},{-step / 10},,words\n" for step in range(1, 30))
        text = f"{column},reward/mean,policy/kl,remark\n{rows}30,-3,0.5,words\n"
        (runs_folder / "route" / name / "metrics.csv").write_text(text)
    (runs_folder / "route" / "bad").mkdir()
    (runs_folder / "route" / "bad" / "metrics.csv").write_text("a,b\n1,2\n")
    tab.open("/routing?requests=100&routers=random&runs=route/one,route/two")
    assert [one["name"] for one in tab.traces("routing-curve-0")] == ["route/one", "route/two"]
    assert tab.traces("routing-curve-0")[0]["y"][:2] == [-0.1, -0.2]
    assert tab.page.query_selector("#routing-curve-2") is None  # Words are no curve.
    tab.type("routing-columns", "kl")
    assert tab.page.query_selector("#routing-curve-1") is None
    tab.open("/routing?requests=100&routers=random&runs=route/bad")
    assert "no column of numbers that counts" in tab.text("routing-runs-error")


SHIFTS = """() => new Promise(done => new PerformanceObserver(list =>
    done(list.getEntries().filter(one => !one.hadRecentInput).reduce((sum, one) => sum + one.value, 0))
).observe({type: 'layout-shift', buffered: true}) || setTimeout(() => done(0), 500))"""
"""How much has moved on its own since the page was opened (the browser's cumulative layout shift)."""


@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_overflows_and_nothing_jumps(tab: Tab, width: int) -> None:
    tab.page.set_viewport_size({"width": width, "height": 900})
    for page in ("plan", "pipeline", "posttrain", "routing?requests=100"):
        tab.open(f"/{page}")
        assert tab.page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, page
        assert tab.page.evaluate(SHIFTS) < 0.03, page


def test_the_keyboard_is_enough(tab: Tab) -> None:
    tab.open("/pipeline?tab=schedules&n=4")
    tab.page.focus("#pipeline-schedule-select")
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.id") == "pipeline-stages-slider"
    before = make_span(tab)
    tab.page.keyboard.press("ArrowRight")
    tab.idle()
    assert make_span(tab) > before


@pytest.mark.parametrize("name", NAMES)
def test_no_id_is_given_twice(name: str, tmp_path: Path) -> None:
    page = next(one for one in all_pages() if one.name == name)
    with make_app(tmp_path).server.test_request_context():
        drawn = page.layout({one.name: one.default for one in page.controls})
    ids = [one.id for one in drawn._traverse() if getattr(one, "id", None)]
    assert len(ids) == len(set(ids))


def plan_values(**changes: object) -> dict[str, object]:
    from gnomon.ui.pages.plan import PAGE

    controls = [one for one in PAGE.controls if one.name != "dir"]  # Which looks into the folder of a server.
    return PAGE.read({one.name: one.from_query(one.to_query(one.default)) for one in controls} | changes)


def test_a_copied_question_is_the_question() -> None:
    from gnomon.core.text import parse_yaml
    from gnomon.search.config import SearchConfig
    from gnomon.ui.pages.plan import question_of, short

    question = question_of(plan_values(devices=["h100"], tp="1, 2", ttft=500))
    text = short(question)
    assert load(SearchConfig, None, parse_yaml(text)) == question and "warmup" not in text


def test_a_plan_takes_engines_and_prefill_and_decode_apart() -> None:
    from gnomon.report.search.files import space_figure
    from gnomon.ui.pages.plan import question_of

    space = question_of(plan_values(engines=["sglang"], policies=["sarathi"], prefill="1, 2", decode="1")).space
    assert [(one.engine, one.policy) for one in space.batching] == [("sglang", "sglang"), (None, "sarathi")]
    assert space.disaggregated is not None and space.disaggregated.prefill_replicas == (1, 2)
    drawn, words = space_figure(question_of(plan_values(model="llama-3-70b", devices=["h100"], tp="1, 4")))
    assert [len(one["x"]) for one in drawn["data"]] == [2] and words[0] == "Configurations: 4, of which 2 fit."
    assert "TP1" in words[1], "what does not fit is named"


@pytest.mark.parametrize(("given", "where"), [({"engines": []}, "engines"), ({"prefill": "1"}, "decode")])
def test_a_plan_that_lacks_something_says_where(given: dict[str, object], where: str) -> None:
    from gnomon.ui.controls import ControlError
    from gnomon.ui.pages.plan import question_of

    with pytest.raises(ControlError) as caught:
        question_of(plan_values(**given))
    assert caught.value.control == where
