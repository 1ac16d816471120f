"""The Serve page in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gnomon import simulate
from gnomon.core.config import load
from gnomon.serving.scenario import Scenario

pytest.importorskip("dash", reason="Dash is not installed (extra ui)")

from gnomon.ui.uploads import MAX_BYTES

if TYPE_CHECKING:
    from ui_kit import Tab

pytest_plugins = ["ui_kit"]

SMALL = "/serve?requests=1000&rate=20"


def test_the_plots_are_those_of_the_report(tab: Tab) -> None:
    tab.open(SMALL)
    result = simulate(**{"workload.num_requests": 1000, "workload.rate": 20, "slo.ttft_s": 0.5, "slo.tpot_s": 0.05})
    expected = result.drawings
    for name in ("ttft", "tpot", "e2e", "queue", "kv"):
        shown = tab.traces(f"serve-plot-{name}")
        assert [(one["x"], one["y"]) for one in shown] == [(one["x"], one["y"]) for one in expected[name]["data"]]
    queue = "document.querySelector('#serve-plot-queue .js-plotly-plot')"
    tab.page.evaluate(f"() => Plotly.relayout({queue}, {{'xaxis.range[0]': 5, 'xaxis.range[1]': 20}})")
    tab.idle()
    assert tab.layout("serve-plot-kv")["xaxis"]["range"] == [5, 20]  # Plots over time share their zoom.
    assert "llama-3-8b on h200" in tab.text("serve-headline")
    assert f"{result.summary.throughput.requests_per_s:.3g}/s" in tab.text("serve-figures")


def test_a_slider_changes_the_plot_and_the_address(tab: Tab) -> None:
    tab.open(SMALL)
    before = tab.traces("serve-plot-ttft")
    tab.page.focus("#serve-rate-slider")
    for _ in range(5):
        tab.page.keyboard.press("ArrowRight")
    tab.idle()
    rate = float(tab.page.input_value("#serve-rate"))
    assert rate > 20
    after = tab.traces("serve-plot-ttft")
    assert after != before
    assert f"rate={rate:g}" in tab.page.url
    again = tab.page.url.removeprefix(tab.address)
    tab.open(again)
    assert tab.traces("serve-plot-ttft") == after


def test_a_click_on_a_curve_tells_a_requests_story(tab: Tab) -> None:
    tab.open(SMALL)
    assert "Click a point" in tab.text("serve-story")
    box = tab.page.locator("#serve-plot-e2e .nsewdrag").bounding_box()
    tab.page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    tab.page.wait_for_timeout(300)
    tab.page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    tab.page.wait_for_timeout(300)
    tab.idle()
    said = tab.text("serve-story")
    assert "end to end" in said and "alone on its replica" in said and "nanoseconds" in said


def test_the_curve_rises_to_a_capacity(tab: Tab) -> None:
    tab.open("/serve?requests=3000&rate=20&curve=ttft")
    median, tail = tab.traces("serve-plot-curve")
    assert median["x"] == tail["x"] and tail["y"] == sorted(tail["y"])
    drawn = tab.layout("serve-plot-curve")
    target, capacity, now = drawn["shapes"]
    assert target["label"]["text"] == "SLO"
    words = [one["text"] for one in drawn["annotations"]]
    assert words == [f"capacity {capacity['x0']:.3g}/s, by TPOT", "now"]
    assert target["y0"] == 500 and now["x0"] == 20
    above = [load for load, value in zip(tail["x"], tail["y"], strict=True) if value > 500]
    assert capacity["x0"] <= above[0]


def test_an_slo_that_no_load_meets_is_told(tab: Tab) -> None:
    tab.open("/serve?requests=1000&rate=20&ttft=0.01")
    assert "no load meets the SLO" in tab.layout("serve-plot-curve")["title"]["text"]
    drawn = tab.layout("serve-plot-curve")
    assert len(drawn["shapes"]) == 2 and [one["text"] for one in drawn["annotations"]] == ["now"]


def test_arrivals_without_a_rate_have_no_curve(tab: Tab) -> None:
    tab.open("/serve?requests=500&rate=&scenario=workload.arrivals%3A+%7Bprocess%3A+batch%7D")
    assert "all at once" in tab.text("serve-headline")
    assert tab.traces("serve-plot-curve") == []


def test_a_bad_value_shows_its_message_beside_it(tab: Tab) -> None:
    tab.open(SMALL)
    before = tab.traces("serve-plot-ttft")
    tab.type("serve-tp", "three")
    assert "three is not a number" in tab.text("serve-tp-error")
    assert tab.text("serve-pp-error") == tab.text("serve-page-error") == ""
    assert tab.traces("serve-plot-ttft") == before
    faded = "getComputedStyle(document.querySelector('.plot')).opacity"
    assert float(tab.page.evaluate(faded)) < 0.5, "what is shown answers an earlier question"
    tab.type("serve-tp", "3")
    assert "does not divide" in tab.text("serve-tp-error")
    tab.type("serve-tp", "2")
    assert tab.text("serve-tp-error") == ""
    tab.page.wait_for_function(f"{faded} === '1'", timeout=2000)
    assert tab.traces("serve-plot-ttft") != before


def test_an_address_with_a_mistake_shows_it_and_no_plots(tab: Tab) -> None:
    tab.open("/serve?model=llama-3-70b&device=a100-80gb")
    assert "does not fit" in tab.text("serve-tp-error")
    assert tab.traces("serve-plot-ttft") == tab.traces("serve-plot-kv") == []
    assert "Simulating" not in tab.text("content")


def test_a_choice_changes_the_answer(tab: Tab) -> None:
    tab.open(SMALL)
    tab.choose("serve-policy", "sarathi")
    assert "batching sarathi" in tab.text("serve-headline")
    assert "policy=sarathi" in tab.page.url


def test_an_engine_is_chosen(tab: Tab) -> None:
    tab.open(SMALL)
    tab.choose("serve-engine", "SGLang")
    assert "batching sglang" in tab.text("serve-headline")
    assert "engine=sglang" in tab.page.url
    assert "sglang.launch_server" in tab.text("serve-copies")


def test_results_are_pinned_and_compared(tab: Tab) -> None:
    tab.open(SMALL)
    tab.page.click("#serve-pin")
    tab.idle()
    tab.type("serve-rate", "30")
    tab.page.click("#serve-pin")
    tab.idle()
    tab.type("serve-rate", "35")
    assert [one["name"] for one in tab.traces("serve-plot-ttft")] == ["now: rate 35", "rate 20", "rate 30"]
    rows = tab.page.locator("#serve-comparison tbody tr")
    assert rows.count() == 3
    link = tab.page.url.removeprefix(tab.address)
    before = {one["name"]: one["line"]["color"] for one in tab.traces("serve-plot-ttft")}
    tab.page.get_by_label("Unpin rate 20").click()
    tab.idle()
    assert all(before[one["name"]] == one["line"]["color"] for one in tab.traces("serve-plot-ttft"))
    assert [one["name"] for one in tab.traces("serve-plot-ttft")] == ["now: rate 35", "rate 30"]
    tab.open(link)
    assert tab.page.locator("#serve-comparison tbody tr").count() == 3


def test_copies_are_the_scenario(tab: Tab, tmp_path: Path) -> None:
    tab.open(f"{SMALL}&tp=2&policy=sglang")
    texts = {}
    for name, id in {"yaml": "copy-scenario-file", "command": "copy-command-line", "server": "copy-server"}.items():
        tab.page.click(f"#{id}-copy")
        tab.page.wait_for_selector(f"#{id}-copy:has-text('Copied')")
        texts[name] = tab.page.evaluate("navigator.clipboard.readText()")
    (tmp_path / "copied.yaml").write_text(texts["yaml"])
    scenario = load(Scenario, tmp_path / "copied.yaml")
    assert (scenario.replica.tensor_parallel, scenario.batching.policy, scenario.workload.rate) == (2, "sglang", 20)
    assert texts["command"].startswith("gnomon simulate")
    assert "sglang.launch_server" in texts["server"] and "--tp-size 2" in texts["server"]


def test_a_trace_is_loaded(tab: Tab, tmp_path: Path) -> None:
    trace = tmp_path / "mine.csv"
    rows = "".join(f"{i * 0.05},{200 + i % 7},{20 + i % 5}\n" for i in range(300))
    trace.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")
    tab.open(SMALL)
    tab.page.set_input_files("#serve-upload input[type=file]", trace)
    tab.page.wait_for_selector("#serve-headline:has-text('mine.csv')")
    tab.idle()
    assert "as recorded" in tab.text("serve-headline")
    assert "300 of 300 finished" in tab.text("serve-figures")
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    tab.page.set_input_files("#serve-upload input[type=file]", other)
    tab.page.wait_for_selector("#serve-upload-error:has-text('no known trace format')")


def test_a_file_that_is_too_large_is_refused_in_the_browser(tab: Tab, tmp_path: Path) -> None:
    large = tmp_path / "large.csv"
    large.write_bytes(b"0" * (MAX_BYTES + 1))
    tab.open(SMALL)
    tab.page.set_input_files("#serve-upload input[type=file]", large)
    tab.page.wait_for_selector("#serve-upload-error:has-text('larger than 16 MiB')")
    assert "larger than 16 MiB" in tab.text("serve-upload-error")


def test_a_scenario_is_loaded(tab: Tab) -> None:
    examples = Path(__file__).parents[2] / "examples" / "serving"
    tab.open(SMALL)
    tab.page.set_input_files("#serve-upload input[type=file]", examples / "llama3_8b_a100_sarathi.yaml")
    tab.page.wait_for_selector("#serve-headline:has-text('a100')")
    tab.idle()
    expected = load(Scenario, examples / "llama3_8b_a100_sarathi.yaml")
    assert tab.page.input_value("#serve-rate") == f"{expected.workload.rate:g}"
    assert "batching sarathi" in tab.text("serve-headline")


@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_overflows_or_jumps(tab: Tab, width: int) -> None:
    tab.page.set_viewport_size({"width": width, "height": 900})
    tab.open(SMALL)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    tops = "[...document.querySelectorAll('.plot')].map((one) => one.getBoundingClientRect().top)"
    before = tab.page.evaluate(tops)
    tab.type("serve-rate", "25")
    assert tab.page.evaluate(tops) == before


def test_a_drag_shows_previews_and_then_the_whole_answer(tab: Tab) -> None:
    tab.open("/serve?requests=3000&rate=20")
    tab.page.evaluate(
        """() => {
            window.seen = [];
            const places = new MutationObserver(() => seen.push(document.getElementById("serve-figures").innerText));
            places.observe(document.getElementById("serve-figures"), {childList: true});
            const slider = document.getElementById("serve-rate-slider");
            const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
            let position = 540;
            window.drag = setInterval(() => {
                set.call(slider, position += 1);
                slider.dispatchEvent(new Event("input", {bubbles: true}));
            }, 30);
        }"""
    )
    tab.page.wait_for_function("seen.filter((one) => one.includes('Preview: the first 1,000')).length >= 2")
    tab.page.evaluate("clearInterval(drag)")
    tab.page.wait_for_function("seen.at(-1).includes('3,000 of 3,000 finished')")
    tab.idle()
    rate = float(tab.page.input_value("#serve-rate"))
    result = simulate(**{"workload.num_requests": 3000, "workload.rate": rate, "slo.ttft_s": 0.5, "slo.tpot_s": 0.05})
    expected = result.drawings["ttft"]["data"]
    assert tab.traces("serve-plot-ttft")[0]["x"] == expected[0]["x"]


def test_a_suggestion_is_a_press_away(tab: Tab) -> None:
    tab.open("/serve?model=llama-3-70b&device=a100-80gb&requests=200&rate=1")
    message = tab.page.locator("#serve-tp-error")
    panel = tab.page.locator("#serve-tp-box").bounding_box()
    assert "Tensor parallelism 2 would fit." in message.inner_text() and panel is not None and panel["width"] > 200
    tab.page.get_by_role("button", name="Use 2").click()
    tab.page.wait_for_selector("#serve-headline h1:has-text('TP 2')")
    assert tab.text("serve-tp-error") == "" and tab.page.locator(".apply").count() == 0


def test_a_plot_is_saved_as_a_table(tab: Tab) -> None:
    tab.open(SMALL)
    tab.page.hover("#serve-plot-queue")
    with tab.page.expect_download() as saved:
        tab.page.locator("#serve-plot-queue").locator("xpath=ancestor::div[@role]").get_by_text("CSV").click()
    lines = saved.value.path().read_text().splitlines()
    assert saved.value.suggested_filename == "requests-in-the-system.csv"
    assert lines[0] == "trace,x,y,value" and lines[1].startswith("waiting,") and len(lines) > 1000
