"""One page for every result: blocks as HTML in one look, the plotting library inside."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from gnomon import __version__
from gnomon.core.files import written_whole
from gnomon.report.blocks import Block, Card, Command, Facts, Html, Line, Plot, Section, Table, cell, plots_in, without


def write_page(
    path: str | Path, title: str, blocks: Sequence[Block], *, lede: str = "", scenario: str = "",
    links: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """Write a page that needs no network and no other file. `links` are addresses and their words, `scenario` is folded
    away at its end. A number that is none in a figure is an error."""
    figures = {one.name: one.draw() for one in plots_in(blocks)}
    named = "".join(f"<a href='{escape(file)}'>{escape(words)}</a>" for file, words in (links or {}).items())
    folded = f"<details><summary>Scenario</summary><pre tabindex=0>{escape(scenario)}</pre></details>"
    parts = {
        "@TITLE@": escape(title), "@LEDE@": escape(lede),
        "@LINKS@": f"<nav aria-label=Files>{named}</nav>" if named else "",
        "@BODY@": html_of(boxed(blocks)) + (folded if scenario else ""), "@VERSION@": __version__,
        "@LOOK@": shared("look.css"), "@SCRIPT@": shared("tools.js") + shared("page.js"),
        "@DATA@": json.dumps(figures, separators=(",", ":"), allow_nan=False).replace("</", "<\\/"),
    }  # fmt: skip
    text = shared("page.html")
    for mark, content in parts.items():
        text = text.replace(mark, content)
    # Only its JavaScript is needed: plotly itself is not imported.
    spec = find_spec("plotly")
    assert spec is not None and spec.origin is not None
    library = (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_bytes()
    with written_whole(path) as temporary:
        temporary.write_bytes(library.join(piece.encode(errors="backslashreplace") for piece in text.split("@PLOTLY@")))
    return Path(path)


def boxed(blocks: Iterable[Block]) -> Iterator[Block]:
    """What stands beside cards, sections and lines gets a box of its own."""
    for is_bare, found in groupby(blocks, lambda one: not isinstance(one, Card | Section | Line)):
        group = list(found)
        yield from [Section("", group)] if is_bare else group


def html_of(blocks: Iterable[Block], *, is_together: bool = False) -> str:
    """Blocks as HTML; cards and plots that follow each other stand side by side."""
    found = ""
    for kind, group in groupby(blocks, type):
        made = "".join(map(_html, group))
        if kind is Card:
            made = f"<div class=cards>{made}</div>"
        elif kind is Plot:
            made = f"<div class='plots{' together' * is_together}'>{made}</div>"
        found += made
    return found


def notebook_html(blocks: Iterable[Block]) -> str:
    """Blocks without what only a page can show, for a notebook, which has no style sheet."""
    plain = html_of(without(blocks, Card, Plot, Html)).replace(" class=l>", " style='text-align:left'>")
    return plain.replace("<p class=warning>", "<p><b>Warning:</b> ").replace("<p class=note>", "<p>Note: ")


def _html(block: Block) -> str:
    match block:
        case Line(text, "plain"):
            return f"<p class=why>{escape(text)}</p>"
        case Line(text, kind):
            return f"<p class={kind}>{escape(text)}</p>"
        case Table():
            return _table(block) if block.rows else ""
        case Facts(pairs):
            return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(value)}</dd>' for name, value in pairs)}</dl>"
        case Command(name, text):
            return _command(name, text)
        case Card():
            return card(block)
        case Plot(name, _, size):
            return f"<div id={name} class='plot {size}'></div>" if size else f"<div id={name} class=plot></div>"
        case Html(text):
            return text
        case Section(title, inner, together):
            body, head = html_of(inner, is_together=together), f"<h2>{escape(title)}</h2>" if title else ""
            return f"<section>{head}{body}</section>" if body else ""


def card(one: Card) -> str:
    """A figure with the meaning of its name, and a colour where it is a verdict."""
    name = escape(one.name)
    if one.tip:
        name = f'<span class=term tabindex=0 data-tip="{escape(one.tip)}">{name}</span>'
    beside = escape(one.beside).replace("–", "\u2060–\u2060")  # No line ends within an interval.
    return (
        f"<div class='{f'card {one.verdict}'.strip()}'><span>{name}</span><b>{escape(one.value)}</b>"
        f"<small>{beside}</small></div>"
    )


def _table(table: Table) -> str:
    style = {name: " class=l" if table.is_left(name) else "" for name in table.columns}
    style |= {name: " class='l why'" for name in ("why", "how", "what") if name in style}
    head = "".join(f"<th{style[name]}>{escape(name)}</th>" for name in table.columns)
    body = "".join(
        f"<tr>{''.join(f'<td{style[name]}>{_cell(row.get(name))}</td>' for name in table.columns)}</tr>"
        for row in table.rows
    )
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    caption = f"<p class=more>{escape(table.caption)}</p>" if table.caption else ""
    rows = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"{title}<div class=scroll tabindex=0>{rows}</div>{caption}"


def _cell(value: Any) -> str:
    return value.text if isinstance(value, Html) else escape(cell(value))


def _command(name: str, text: str) -> str:
    id = f"copy-{''.join(letter if letter.isalnum() else '-' for letter in name.lower())}"
    label = escape(f"Copy {name}")
    button = f'<button type=button class="button copy" id={id}-copy data-copy={id} aria-label="{label}">Copy</button>'
    head = f"<div class=copy-head><span>{escape(name)}</span>{button}</div>"
    return f"<div class=copy-box>{head}<pre id={id} tabindex=0>{escape(text)}</pre></div>"


def shared(name: str) -> str:
    """What pages have in common: look.css (colours for light and dark, boxes), tools.js (copy a text, save a plot)."""
    return resources.files("gnomon.report").joinpath(name).read_text(encoding="utf-8")
