"""A site in this process and a real browser on it, for the tests of `gnomon ui`.

Use with `pytest_plugins = ["ui_kit"]` in a test module. Everything is skipped, with the reason, where Chromium or
Playwright is missing.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

QUIET_MS = 120
"""Dash is idle when nothing has been asked for this long."""
TYPING_MS = 450
"""What is typed counts after a pause (`controls.TYPING_PAUSE_S`)."""

REST_MS = 30
_REST = "ms => new Promise(done => requestIdleCallback(() => setTimeout(done, ms), {timeout: 2000}))"


class Tab:
    """A browser page, with what went wrong in it."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self.waiting = 0
        self.heard: dict[str, Callable[[Any], None]] = {
            "console": lambda one: self.errors.append(one.text) if one.type in ("error", "warning") else None,
            "pageerror": lambda error: self.errors.append(str(error)),
            "request": self._asked,
            "requestfinished": lambda _: self._answered(),
            "requestfailed": lambda _: self._answered(),
        }
        for event, hear in self.heard.items():
            page.on(event, hear)

    def leave(self) -> None:
        """Hear no more of the page."""
        for event, hear in self.heard.items():
            self.page.remove_listener(event, hear)

    def _asked(self, request: Any) -> None:
        self.waiting += 1
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.netloc != urlsplit(self.address).netloc:
            self.strangers.append(request.url)

    def _answered(self) -> None:
        self.waiting -= 1

    def open(self, path: str) -> None:
        """Go to a path such as `/serve?rate=20`, and wait until everything is there."""
        self.page.goto(self.address + path)
        self.page.wait_for_selector(".page")
        self.idle()

    def idle(self, timeout_s: float = 60.0) -> None:
        """Wait until no question is under way, every plot is drawn, and the browser has nothing left to do."""
        began, quiet_ms = time.monotonic(), 0
        while quiet_ms < QUIET_MS:
            self.page.evaluate(_REST, REST_MS)
            pending = self.waiting or self.page.query_selector(".dash-graph--pending")
            quiet_ms = 0 if pending else quiet_ms + REST_MS
            assert time.monotonic() - began < timeout_s, "the page is still waiting for an answer"

    def type(self, id: str, text: str) -> None:
        """Put `text` into the input with this id."""
        self.page.evaluate("() => { document.querySelector('.panel').open = true; }")  # A closed sheet on a phone.
        self.page.fill(f"#{id}", text)
        self.page.press(f"#{id}", "Enter")
        self.page.wait_for_timeout(TYPING_MS)
        self.idle()

    def choose(self, id: str, label: str) -> None:
        """Choose from a list, by the words shown."""
        labels = self.page.locator(f"#{id}-select option").all_inner_texts()
        self.page.select_option(f"#{id}-select", label=next(one for one in labels if label in one))
        self.idle()

    def text(self, id: str) -> str:
        """The text of the element with this id."""
        return str(self.page.inner_text(f"#{id}"))

    def traces(self, id: str) -> list[dict[str, Any]]:
        """What the plot with this id shows: its traces as plotly holds them."""
        script = "id => document.querySelector(`#${id} .js-plotly-plot`).data"
        return list(self.page.evaluate(script, id))

    def layout(self, id: str) -> dict[str, Any]:
        """The layout of the plot with this id."""
        script = "id => document.querySelector(`#${id} .js-plotly-plot`).layout"
        return dict(self.page.evaluate(script, id))


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder whose run directories the site lists."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def site(runs_folder: Path) -> Iterator[str]:
    """The address of a running site."""
    pytest.importorskip("dash", reason="Dash is not installed (extra ui)")
    from gnomon.ui import jobs
    from gnomon.ui.app import make_app, make_site

    server = make_site(make_app(runs_folder), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    jobs.cancel_all()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium, the one the system has."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium on this machine")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def page(site: str, browser: Any) -> Iterator[Any]:
    """A browser page for all tests: the libraries are loaded and compiled once."""
    context = browser.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site)
    yield context.new_page()
    context.close()


@pytest.fixture
def tab(site: str, page: Any) -> Iterator[Tab]:
    """The browser page, as if fresh; fails afterwards where the console had errors or another host was asked."""
    page.set_viewport_size({"width": 1440, "height": 1000})
    opened = Tab(page, site)
    yield opened
    opened.leave()
    page.emulate_media(color_scheme="null")
    page.goto("about:blank")
    assert opened.errors == []
    assert opened.strangers == []
