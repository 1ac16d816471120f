"""What all pages share: the plotting library inside them, and the page of a time line."""

from __future__ import annotations

import html
import json
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gnomon.core.files import write_text


def plotly_js() -> str:
    """The library as installed, found without importing plotly: a page needs only its JavaScript."""
    spec = find_spec("plotly")
    assert spec is not None and spec.origin is not None
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def as_script(figure: Any) -> str:
    """A figure as JavaScript that can stand inside a page."""
    return json.dumps(figure, separators=(",", ":")).replace("</", "<\\/")


def write_time_line(
    path: str | Path, *, title: str, cards: dict[str, str], figure: Any, heading: str, causes: str
) -> Path:
    """A page with figures on cards, one large plot, and a table of where the time goes (`causes`, as HTML)."""
    page = resources.files("gnomon.report").joinpath("timeline.html").read_text(encoding="utf-8")
    shown = "".join(
        f"<div class=card><span>{html.escape(name)}</span><b>{html.escape(value)}</b></div>"
        for name, value in cards.items()
    )
    parts = {
        "@TITLE@": html.escape(title),
        "@CARDS@": shown,
        "@HEADING@": html.escape(heading),
        "@CAUSES@": causes,
        "@FIGURE@": as_script(figure),
        "@PLOTLY@": plotly_js(),
    }
    for mark, text in parts.items():
        page = page.replace(mark, text)
    return write_text(path, page)
