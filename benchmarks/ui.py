"""From a change of load to the first figures (a preview) and to all figures and plots, in a real browser on a real page
with 10,000 requests, warm; and how often a drag of the slider shows something new.

python -m benchmarks.ui
"""

from __future__ import annotations

import shutil
import statistics
import threading
from itertools import pairwise
from typing import Any

NUM_REQUESTS = 10_000
CHANGES = 20
TARGET_MS = 300
PREVIEW_MS = 150
DRAG_S = 4.0
PLOTS = ("ttft", "tpot", "e2e", "queue", "kv")

# Moves the slider by a few steps; resolves with the milliseconds until the first figures, and until the figures of all
# requests are there and every plot has been drawn anew.
MOVE = """([names, position]) => new Promise((resolve) => {
  const slider = document.getElementById("serve-rate-slider");
  const figures = document.getElementById("serve-figures");
  const left = new Set([figures]);
  const begun = performance.now();
  let preview = null;
  const over = (one) => {
    left.delete(one);
    if (!left.size) requestAnimationFrame(() => { watch.disconnect(); resolve([preview, performance.now() - begun]); });
  };
  const watch = new MutationObserver(() => {
    preview ??= performance.now() - begun;
    if (!figures.querySelector(".passing")) over(figures);
  });
  watch.observe(figures, {childList: true, subtree: true});
  for (const name of names) {
    const plot = document.querySelector(`#serve-plot-${name} .js-plotly-plot`);
    left.add(plot);
    const done = () => { plot.removeListener("plotly_afterplot", done); over(plot); };
    plot.on("plotly_afterplot", done);
  }
  const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
  set.call(slider, position);
  slider.dispatchEvent(new Event("input", {bubbles: true}));
})"""

# Drags the slider to and fro for some seconds; resolves with the moments at which the figures changed.
DRAG = """(seconds) => new Promise((resolve) => {
  const slider = document.getElementById("serve-rate-slider");
  const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
  const begun = performance.now(), seen = [];
  const watch = new MutationObserver(() => seen.push(performance.now() - begun));
  watch.observe(document.getElementById("serve-figures"), {childList: true});
  const timer = setInterval(() => {
    const at = performance.now() - begun;
    if (at > 1000 * seconds) { clearInterval(timer); watch.disconnect(); resolve(seen); return; }
    set.call(slider, Math.round(500 + 60 * Math.sin(at / 400)));
    slider.dispatchEvent(new Event("input", {bubbles: true}));
  }, 30);
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
        page.wait_for_selector("#serve-plot-kv .trace", timeout=300_000)  # It may have to be compiled first.
        page.wait_for_load_state("networkidle")
        taken = _changes(page)
        page.wait_for_timeout(1000)
        seen = [0.0, *page.evaluate(DRAG, DRAG_S), 1000 * DRAG_S]
        browser.close()
    server.shutdown()
    server.server_close()
    for name, column, target in (("first figures", 0, PREVIEW_MS), ("all figures and plots", 1, TARGET_MS)):
        values = [one[column] for one in taken]
        print(
            f"ui: a change of load on the Serve page with {NUM_REQUESTS:,} requests: {name} after "
            f"{statistics.median(values):.0f} ms (median of {len(values)}; longest {max(values):.0f} ms; "
            f"target: {target} ms)"
        )
    gaps = [after - before for before, after in pairwise(seen)]
    print(f"ui: a drag of {DRAG_S:g} s shows {len(seen) - 2} previews, the longest wait is {max(gaps):.0f} ms")


def _changes(page: Any) -> list[tuple[float, float]]:
    """Milliseconds to the first figures and to the whole answer of each of a few changes, after two that warm up; a
    pause after each, as a person makes one."""
    taken: list[tuple[float, float]] = []
    for number in range(CHANGES + 2):
        page.wait_for_timeout(700)
        taken.append(tuple(page.evaluate(MOVE, [PLOTS, 480 + 5 * number])))
    return taken[2:]


if __name__ == "__main__":
    main()
