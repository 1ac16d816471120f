"""What a result says, before anyone decides how it looks. `report.page` makes HTML of it, `cli.printing` the text of a
terminal, `ui.blocks` a part of the site."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gnomon.core import units

Row = Mapping[str, Any]
Figure = dict[str, Any]  # A plotly figure as a plain dictionary.
Kind = Literal["plain", "warning", "note", "error", "more", "aside"]


@dataclass(frozen=True)
class Line:
    """One line of text."""

    text: str
    kind: Kind = "plain"
    """more: small print. aside: for the person at the terminal, not for a file."""


@dataclass(frozen=True)
class Table:
    """Rows whose columns are the keys of the first one."""

    rows: Sequence[Row]
    title: str = ""
    caption: str = ""
    left: Sequence[str] | None = None
    """Columns of words; if not given, the first and those whose cells do not begin with a number."""

    @property
    def columns(self) -> list[str]:
        return list(self.rows[0]) if self.rows else []

    def is_left(self, column: str) -> bool:
        if self.left is not None:
            return column in self.left
        return column == self.columns[0] or not all(_is_number(row.get(column)) for row in self.rows)


@dataclass(frozen=True)
class Facts:
    """Figures that do not make a table: name and value of each."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Command:
    """Something to copy: a command, a scenario."""

    name: str
    text: str


@dataclass(frozen=True)
class Card:
    """A figure that is shown first; on pages only."""

    name: str
    value: str
    beside: str = ""
    tip: str = ""
    """What the name means."""
    verdict: Literal["", "good", "bad"] = ""


@dataclass(frozen=True)
class Plot:
    """A figure, drawn when it is wanted; on pages only."""

    name: str
    draw: Callable[[], Figure]
    size: Literal["", "short", "tall"] = ""
    """short: as low as the figure says. tall: a time line to zoom into."""


@dataclass(frozen=True)
class Html:
    """What only a page can show."""

    text: str


@dataclass(frozen=True)
class Section:
    """Blocks under a heading; nothing where all are empty."""

    title: str
    blocks: Sequence[Block]
    together: bool = False
    """Its plots share one time, with one zoom and cursor."""


Block = Line | Table | Facts | Command | Card | Plot | Html | Section


@dataclass(frozen=True)
class View:
    """How a result is shown; nothing of it is made before it is asked for."""

    title: str
    """Of its page."""
    text: Callable[[], list[Block]]
    data: Callable[[], dict[str, Any]]
    """What `--json` prints."""
    tables: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    """Rows or data frames."""
    drawings: Callable[[], Mapping[str, Callable[[], Figure]]] | None = None
    """The plots of the text unless given."""
    scenario: Callable[[], str] = str
    """Folded away at the end of a page."""


_NUMBER = re.compile(r"[(+\-−±$≈≤]*\d")


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return _NUMBER.match(value) is not None or value in ("", "–")
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def lines(texts: Iterable[str], kind: Kind = "plain") -> list[Block]:
    return [Line(text, kind) for text in texts]


def plots(drawers: Mapping[str, Callable[[], Figure]], size: Literal["", "short", "tall"] = "") -> list[Block]:
    return [Plot(name, draw, size) for name, draw in drawers.items()]


def plots_in(blocks: Iterable[Block]) -> Iterator[Plot]:
    for block in blocks:
        if isinstance(block, Plot):
            yield block
        elif isinstance(block, Section):
            yield from plots_in(block.blocks)


def without(blocks: Iterable[Block], *kinds: type) -> list[Block]:
    """What is left without some kinds, also within sections; a section of which nothing is left goes too."""
    left: list[Block] = []
    for one in blocks:
        if isinstance(one, Section):
            inner = without(one.blocks, *kinds)
            left += [replace(one, blocks=inner)] if inner else []
        elif not isinstance(one, kinds):
            left.append(one)
    return left


def seconds(value: float | None) -> str | None:
    """A time as it stands in a table; nothing where there is none."""
    return None if value is None else units.seconds(value)


def cell(value: Any) -> str:
    """A value as it stands in a table."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def in_a_row(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def link(words: str, href: str) -> Html:
    return Html(f"<a href='{html.escape(href)}'>{html.escape(words)}</a>")


Causes = dict[str, tuple[str, str]]  # By key: what a cause is called, and its colour.


@dataclass(frozen=True)
class SplitRow:
    """One bar: `parts` by cause add up to `whole`."""

    name: str
    parts: dict[str, float]
    whole: float
    words: str
    """Said beside the bar."""
    unit: str = ""

    def share(self, cause: str) -> float:
        """Of the whole, in per cent."""
        return 100 * self.parts[cause] / self.whole

    def title(self, cause: str, label: str) -> str:
        """Said of one piece when it is pointed at."""
        return f"{label}: {self.parts[cause]:.6g}{self.unit} ({self.parts[cause] / self.whole:.1%})"


def legend(colours: Mapping[str, str]) -> Html:
    names = "".join(
        f"<li><i style='background:{colour}'></i>{html.escape(name)}</li>" for name, colour in colours.items()
    )
    return Html(f"<ul class=legend>{names}</ul>")


def split_table(causes: Causes, rows: Sequence[SplitRow], beside: Literal["figure", "words"]) -> Html:
    """The legend and the bars; `beside` is the class of what stands beside each bar."""
    body = ""
    for row in rows:
        pieces = "".join(
            f"<i style='width:{row.share(cause):.3f}%;background:{colour}'"
            f" title='{html.escape(row.title(cause, label))}'></i>"
            for cause, (label, colour) in causes.items()
        )
        name, words = html.escape(row.name), html.escape(row.words)
        body += f"<tr><th>{name}</th><td><div class=split>{pieces}</div></td><td class={beside}>{words}</td></tr>"
    return Html(f"{legend(dict(causes.values())).text}<table class=splits>{body}</table>")
