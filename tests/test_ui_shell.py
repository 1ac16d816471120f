"""The frame around the pages, and the server."""

from __future__ import annotations

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
    unnamed = "[...document.querySelectorAll('.control')].filter((one) => !one.querySelector('label')).length"
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
    assert {"nav-serve", "nav-runs", "serve-model", "serve-tp", "serve-rate-slider", "serve-rate"} <= reached


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
    assert "gnomon-sim[ui]" in cli("ui", "--no-browser", code=2).output


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


def test_nothing_is_loaded_from_elsewhere(client: Any) -> None:
    page = client.get("/").get_data(as_text=True)
    assert 'src="http' not in page and 'href="http' not in page
