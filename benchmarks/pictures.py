"""The screenshots of the documentation: the report of the first command, and the pages.

python -m benchmarks.pictures            # all of docs/images
python -m benchmarks.pictures serve      # pages/serve at 1440 and, as ui-narrow, at 390 pixels
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PATIENCE_MS = 300_000
PAGES = {
    "serve": "#serve-plot-curve .trace",
    "plan": ".trace",
    "pipeline": ".trace",
    "posttrain": ".trace",
    "routing": "body",
}
"""What must be there before a page is drawn."""


def main(chosen: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    from gnomon.ui.app import make_app, make_site

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    server = make_site(make_app(), "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        if not chosen or "report" in chosen:
            report(browser)
        for name in chosen or PAGES:
            if name in PAGES:
                page = browser.new_page(viewport={"width": 1440, "height": 1000})
                drawn(page, f"http://127.0.0.1:{server.server_port}/{name}", PAGES[name], IMAGES / f"ui-{name}.png")
        if not chosen or "serve" in chosen:
            page = browser.new_page(viewport={"width": 390, "height": 1200})
            drawn(page, f"http://127.0.0.1:{server.server_port}/serve", "body", IMAGES / "ui-narrow.png", whole=False)
        browser.close()
    server.shutdown()


def report(browser: Any) -> None:
    """The first screen of the report of the first command."""
    import gnomon

    with tempfile.TemporaryDirectory() as folder:
        gnomon.simulate().save(folder)
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        drawn(page, f"file://{folder}/report.html", "body", IMAGES / "report.png", whole=False)


def drawn(page: Any, address: str, wanted: str, path: Path, *, whole: bool = True) -> None:
    """A picture of a page as soon as what is wanted is there and nothing is loaded any more."""
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address)
    page.wait_for_selector(wanted)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(3000)
    page.screenshot(path=path, full_page=whole)
    print(f"pictures: {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
