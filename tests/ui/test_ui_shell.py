"""The frame around the pages, and the server."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("dash", reason="Dash is not installed (extra ui)")

from gnomon.core.errors import ConfigError
from gnomon.ui.app import MAX_REQUEST_BYTES, make_app, make_site
from gnomon.ui.pages import NAMES, all_pages

if TYPE_CHECKING:
    from conftest import CommandLine
    from ui_kit import Tab

pytest_plugins = ["ui_kit"]


@pytest.mark.parametrize("name", NAMES)
def test_every_page_loads_and_fits(tab: Tab, name: str) -> None:
    tab.open(f"/{name}")
    title = next(page.title for page in all_pages() if page.name == name)
    assert tab.page.title() == f"{title} · Gnomon"
    unnamed = "[...document.querySelectorAll('.control')].filter((one) => !one.querySelector('label, .label')).length"
    assert tab.page.evaluate(unnamed) == 0
    for width in (1440, 800, 390):
        tab.page.set_viewport_size({"width": width, "height": 900})
        tab.idle()
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width


def test_pages_are_changed_without_loading_anew(tab: Tab) -> None:
    tab.open("/serve?requests=500&rate=20")
    tab.page.evaluate("window.kept = true")
    tab.page.click("#nav-runs")
    tab.page.wait_for_selector("#page-runs")
    tab.idle()
    tab.page.go_back()
    tab.page.wait_for_selector("#page-serve")
    tab.idle()
    assert tab.page.evaluate("window.kept")
    assert tab.page.input_value("#serve-rate") == "20"


def test_the_link_of_the_page_itself_opens_it_afresh(tab: Tab) -> None:
    tab.open("/runs")
    tab.type("runs-find", "something")
    assert "find=something" in tab.page.url
    tab.page.click("#nav-runs")
    tab.page.wait_for_function("document.querySelector('#runs-find')?.value === ''")
    tab.idle()
    assert tab.page.url == f"{tab.address}/runs"


def test_back_goes_to_the_state_before(tab: Tab) -> None:
    tab.open("/pipeline?tab=schedules")
    tab.page.evaluate("window.kept = document.getElementById('pipeline-gantt')")
    tab.type("pipeline-fwd", "3")
    tab.page.wait_for_timeout(1100)
    tab.choose("pipeline-schedule", "gpipe")
    tab.page.wait_for_timeout(1100)
    tab.page.click("#pipeline-ideal input")
    tab.idle()
    assert "ideal=on" in tab.page.url and "schedule=gpipe" in tab.page.url
    tab.page.go_back()
    tab.idle()
    assert not tab.page.is_checked("#pipeline-ideal input")
    assert tab.page.input_value("#pipeline-schedule-select") == "gpipe"
    tab.page.go_back()
    tab.idle()
    assert tab.page.input_value("#pipeline-schedule-select") == "1f1b"
    assert tab.page.input_value("#pipeline-fwd") == "3"
    tab.page.go_forward()
    tab.idle()
    assert tab.page.input_value("#pipeline-schedule-select") == "gpipe"
    assert tab.page.evaluate("window.kept.isConnected"), "the page was laid out anew"


DRAG = """async () => {
    const slider = document.getElementById("pipeline-n-slider");
    const times = [];
    for (let i = 0; i < 4; i += 1) {
        slider.stepUp();
        slider.dispatchEvent(new Event("input", {bubbles: true}));
        times.push(performance.now());
        await new Promise((resolve) => setTimeout(resolve, 30));
    }
    return Math.max(...times.slice(1).map((one, i) => one - times[i]));
}"""
"""Four steps of a slider, in the page itself; returns the longest pause between two, in milliseconds."""


def test_a_drag_is_one_state(tab: Tab) -> None:
    for _ in range(5):
        tab.open("/runs")
        tab.open("/pipeline?tab=schedules")
        pause_ms = tab.page.evaluate(DRAG)
        tab.idle()
        if pause_ms < 900:  # A busy machine may take longer than a second, which ends a gesture.
            break
    else:
        pytest.skip("the machine is too busy for a gesture")
    assert "n=12" in tab.page.url
    tab.page.go_back()
    tab.idle()
    assert "n=" not in tab.page.url


def test_a_mistake_moves_nothing_above_it(tab: Tab) -> None:
    tab.open("/pipeline?tab=schedules")
    tops = """() => { const all = [...document.querySelectorAll('.control')],
                            here = all.findIndex((one) => one.contains(document.querySelector('#pipeline-fwd')));
                      return all.slice(0, here + 1).map((one) => one.getBoundingClientRect().top); }"""
    before = tab.page.evaluate(tops)
    assert len(before) > 5 and max(before) > 300
    tab.type("pipeline-fwd", "three")
    assert "not a number" in tab.text("pipeline-fwd-error")
    assert tab.page.evaluate(tops) == before


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_another_is_chosen(tab: Tab, scheme: str) -> None:
    tab.page.emulate_media(color_scheme=scheme)
    tab.open("/runs")
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = "rgb(244, 246, 248)", "rgb(18, 22, 28)"
    before, after = (light, dark) if scheme == "light" else (dark, light)
    assert tab.page.evaluate(colour) == before
    tab.page.click("#theme")
    assert tab.page.evaluate(colour) == after
    tab.open("/runs")
    assert tab.page.evaluate(colour) == after
    tab.page.evaluate("localStorage.clear()")


def test_the_panel_scrolls_with_the_page_and_is_a_sheet_on_a_phone(tab: Tab) -> None:
    tab.open("/plan")
    inner = "(() => { const one = document.querySelector('.panel'); return [one.scrollHeight, one.clientHeight]; })()"
    high, seen = tab.page.evaluate(inner)
    assert high == seen, "the panel scrolls on its own"
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.open("/pipeline?tab=schedules")
    assert not tab.page.is_visible("#pipeline-fwd")
    tab.page.click(".panel > summary")
    assert tab.page.is_visible("#pipeline-stages-slider")
    assert tab.page.evaluate("document.querySelector('.panel').getBoundingClientRect().top") > 844 * 0.4


@pytest.mark.slow
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_nothing_serious(tab: Tab, name: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="axe-core is not installed")
    tab.page.set_viewport_size({"width": width, "height": 900})
    tab.open(f"/{name}?requests=500" if name == "serve" else f"/{name}")
    tab.page.evaluate("() => { const one = document.querySelector('.panel'); if (one) one.open = true; }")
    tab.page.evaluate(Path(axe.__path__[0], "axe.min.js").read_text(encoding="utf-8"))
    found = tab.page.evaluate("axe.run().then((one) => one.violations)")
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []


def test_an_unknown_page_names_the_known_ones(tab: Tab) -> None:
    tab.page.goto(f"{tab.address}/nowhere")
    tab.page.wait_for_selector("h1:has-text('No such page')")
    assert "Serve" in tab.text("content")


def test_controls_are_reached_by_keyboard(tab: Tab) -> None:
    tab.open("/serve?requests=500&rate=20")
    reached = set()
    for _ in range(40):
        tab.page.keyboard.press("Tab")
        reached.add(tab.page.evaluate("document.activeElement.id"))
    assert {"nav-serve", "nav-runs", "serve-model-select", "serve-tp", "serve-rate-slider", "serve-rate"} <= reached


def test_a_port_that_is_taken_is_a_clear_mistake(tmp_path: Path, cli: CommandLine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="cannot listen"):
            make_site(make_app(tmp_path), "127.0.0.1", port)
        result = cli("ui", "--port", str(port), "--no-browser", code=2)
    assert f"127.0.0.1:{port}" in result.output and "--port" in result.output


def test_without_dash_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, cli: CommandLine) -> None:
    monkeypatch.setitem(sys.modules, "dash", None)
    assert "[ui]" in cli("ui", "--no-browser", code=2).output


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    app = make_app(tmp_path_factory.mktemp("none"))
    make_site(app, "127.0.0.1", 0).server_close()
    return app.server.test_client()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "10.0.0.1"])
def test_another_name_for_this_machine_is_refused(client: Any, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 403
    assert client.get("/", headers={"Host": "localhost:8300"}).status_code == 200
    assert client.get("/", headers={"Host": "[::1]:8300"}).status_code == 200


def test_large_requests_are_refused(client: Any) -> None:
    body = b"0" * (MAX_REQUEST_BYTES + 1)
    answer = client.post("/_dash-update-component", data=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"raw": []}', '{"raw": {"model": "llama-3-8b"}}'])
def test_a_question_that_is_none_is_refused(client: Any, body: str) -> None:
    answer = client.post("/serve/answers", data=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400


def test_a_question_of_a_foreign_page_is_refused(client: Any) -> None:
    body = json.dumps({"raw": {one.name: one.default for one in all_pages()[0].controls}})
    assert client.post("/serve/answers", data=body, headers={"Content-Type": "text/plain"}).status_code == 400


def test_what_breaks_is_said_on_the_page(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gnomon.ui.pages import serve_answers

    def broken(*_: Any) -> None:
        raise RuntimeError("a mistake of Gnomon's own")

    monkeypatch.setattr(serve_answers, "latency_plots", broken)
    raw = {one.name: one.default for one in all_pages()[0].controls} | {"requests": "100"}
    lines = client.post("/serve/answers", json={"raw": raw, "view": "one"}).get_data(as_text=True).splitlines()
    said = json.loads(lines[-1])["messages"]["page"]
    assert "could not be answered" in said and "Gnomon's own" not in said


def test_nothing_is_loaded_from_elsewhere(client: Any) -> None:
    page = client.get("/").get_data(as_text=True)
    assert 'src="http' not in page and 'href="http' not in page
