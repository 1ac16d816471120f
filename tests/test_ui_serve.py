"""The Serve page in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ui_kit import Tab

pytest_plugins = ["ui_kit"]


def test_a_slider_changes_the_plot(tab: Tab) -> None:
    tab.open("/serve?requests=1000&rate=20")
    before = tab.traces("serve-plot-ttft")
    tab.page.focus("#serve-rate-slider")
    for _ in range(5):
        tab.page.keyboard.press("ArrowRight")
    tab.idle()
    assert float(tab.page.input_value("#serve-rate")) > 20
    assert tab.traces("serve-plot-ttft") != before
    assert "rate=2" in tab.page.url
