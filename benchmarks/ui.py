"""From a change of load to the plots drawn, in a real browser on a real page with 10,000 requests, warm.

python -m benchmarks.ui
"""

from __future__ import annotations

import shutil
import statistics
import threading
from typing import Any

NUM_REQUESTS = 10_000
CHANGES = 20
TARGET_MS = 300
PLOTS = ("ttft", "tpot", "e2e", "queue", "kv")

# Moves the slider by a few steps; resolves with the milliseconds until every plot has been drawn anew.
MOVE = """([names, position]) => new Promise((resolve) => {
  const slider = document.getElementById("serve-rate-slider");
  const plots = names.map((name) => document.querySelector(`#serve-plot-${name} .js-plotly-plot`));
  const left = new Set(plots);
  const begun = performance.now();
  for (const plot of plots) {
    const done = () => {
      plot.removeListener("plotly_afterplot", done);
      left.delete(plot);
      if (!left.size) requestAnimationFrame(() => resolve(performance.now() - begun));
    };
    plot.on("plotly_afterplot", done);
  }
  const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
  set.call(slider, position);
  slider.dispatchEvent(new Event("input", {bubbles: true}));
})"""


def main() -> None:
    try:
        import dash  # noqa: F401
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        print(f"ui: skipped: {error}")
        return
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("ui: skipped: there is no Chromium on this machine")
        return
    from gnomon.ui.app import make_app, make_site

    server = make_site(make_app(), "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.goto(f"http://127.0.0.1:{server.server_port}/serve?requests={NUM_REQUESTS}&rate=30")
        page.wait_for_selector("#serve-plot-kv .trace")
        page.wait_for_load_state("networkidle")
        taken = _changes(page)
        browser.close()
    server.shutdown()
    server.server_close()
    middle, worst = statistics.median(taken), max(taken)
    print(
        f"ui: a change of load redraws the Serve page with {NUM_REQUESTS:,} requests in {middle:.0f} ms "
        f"(median of {len(taken)}; longest {worst:.0f} ms; target: {TARGET_MS} ms)"
    )


def _changes(page: Any) -> list[float]:
    """Milliseconds of each of a few changes, after two that warm up; a pause after each, as a person makes one."""
    taken = []
    for number in range(CHANGES + 2):
        page.wait_for_timeout(700)
        taken.append(float(page.evaluate(MOVE, [PLOTS, 480 + 5 * number])))
    return taken[2:]


if __name__ == "__main__":
    main()
