"""What all pages share: the plotting library inside them, and the page of a time line."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gnomon import __version__
from gnomon.core.files import written_whole
from gnomon.report.blocks import Table, cell


def plotly_js() -> bytes:
    """The library as installed, found without importing plotly: a page needs only its JavaScript."""
    spec = find_spec("plotly")
    assert spec is not None and spec.origin is not None
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_bytes()


MARKS = (
    "@TITLE@", "@LEDE@", "@LINKS@", "@CARDS@", "@MESSAGES@", "@PLOTS@", "@REPLICAS@", "@FIGURES@", "@SCENARIO@",
    "@VERSION@", "@DATA@",
)  # fmt: skip

FRAMES = {
    "@FIGURES@": ("<section><h2>Summary</h2>", "</section>"),
    "@SCENARIO@": ("<details><summary>Scenario</summary><pre tabindex=0>", "</pre></details>"),
}


def page(parts: Mapping[str, str], template: str = "serving.html") -> str:
    """A page in the look that all share, whole but for the plotting library (see `write_page`); marks of `MARKS`
    that are not given stay empty."""
    text = _file(template)
    given = {mark: parts.get(mark, "") for mark in MARKS} | dict(parts)
    given["@DATA@"] = given["@DATA@"] or "{}"
    for mark, (before, after) in FRAMES.items():
        given[mark] = before + given[mark] + after if given[mark] else ""
    for mark, content in given.items():
        text = text.replace(mark, content)
    return text.replace("@LOOK@", _file("look.css")).replace("@SCRIPT@", _file("page.js"))


def write_page(path: str | Path, text: str) -> Path:
    """Write a `page`, with the plotting library in it."""
    with written_whole(path) as temporary:
        pieces = (piece.encode(errors="backslashreplace") for piece in text.split("@PLOTLY@"))
        temporary.write_bytes(plotly_js().join(pieces))
    return Path(path)


def write_whole_page(path: str | Path, parts: Mapping[str, str], drawn: Mapping[str, Any] | None = None) -> Path:
    """Write a page with the plots that are `drawn`, by the ids of their boxes. A number that is none is an error."""
    data = {} if drawn is None else {"@DATA@": as_script(drawn, allow_nan=False)}
    return write_page(path, page({**parts, **data, "@VERSION@": __version__}))


def table(rows: Sequence[Mapping[str, Any]], left: Sequence[str] | None = None, title: str = "") -> str:
    """Rows as a table of a page, as `Table` aligns them; a column of reasons is wide."""
    shown = Table(rows, left=left)
    style = {name: " class=l" if shown.is_left(name) else "" for name in shown.columns}
    wide = {"why": " style='white-space:normal;min-width:24em'"}
    head = "".join(f"<th{style[name]}>{html.escape(name)}</th>" for name in shown.columns)
    body = "".join(
        "<tr>"
        + "".join(f"<td{style[n]}{wide.get(n, '')}>{html.escape(cell(row.get(n)))}</td>" for n in shown.columns)
        + "</tr>"
        for row in rows
    )
    above = f"<h3>{html.escape(title)}</h3>" if title else ""
    return (
        f"{above}<div class=scroll tabindex=0><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def look_css() -> str:
    """The style sheet of all pages: colours for light and dark, boxes, tables, plots."""
    return _file("look.css")


def _file(name: str) -> str:
    return resources.files("gnomon.report").joinpath(name).read_text(encoding="utf-8")


def as_script(figure: Any, *, allow_nan: bool = True) -> str:
    """A figure as JavaScript that can stand inside a page."""
    return json.dumps(figure, separators=(",", ":"), allow_nan=allow_nan).replace("</", "<\\/")


def write_time_line(
    path: str | Path, *, title: str, cards: dict[str, str], figure: Any, heading: str, causes: str
) -> Path:
    """A page with figures on cards, one large plot, and what there is to say about it (`causes`, as HTML)."""
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
    }
    return write_page(path, page(parts, "timeline.html"))
