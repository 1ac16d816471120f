"""What a result says, before anyone decides how it looks: lines and tables, for a terminal or a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

Row = Mapping[str, Any]
Kind = Literal["plain", "warning", "note", "aside"]


@dataclass(frozen=True)
class Line:
    """One line of text."""

    text: str
    kind: Kind = "plain"
    """aside: for the person at the terminal, not for a file."""


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
        """Names of the columns."""
        return list(self.rows[0]) if self.rows else []

    def is_left(self, column: str) -> bool:
        """Whether a column is aligned to the left."""
        if self.left is not None:
            return column in self.left
        return column == self.columns[0] or not all(_is_number(row.get(column)) for row in self.rows)


Block = Line | Table
_NUMBER = re.compile(r"[(+\-−±$≈≤]*\d")


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return _NUMBER.match(value) is not None or value in ("", "–")
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def lines(texts: Iterable[str], kind: Kind = "plain") -> list[Block]:
    """Several lines of one kind."""
    return [Line(text, kind) for text in texts]


def cell(value: Any) -> str:
    """A value as it stands in a table."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def as_html(blocks: Iterable[Block]) -> str:
    """For a notebook: no script, no style sheet."""
    return "".join(_line(block) if isinstance(block, Line) else _table(block) for block in blocks)


def _line(line: Line) -> str:
    mark = {"warning": "<b>Warning:</b> ", "note": "Note: "}.get(line.kind, "")
    return f"<div>{mark}{escape(line.text)}</div>"


def _table(table: Table) -> str:
    def one(tag: str, column: str, text: str) -> str:
        align = "left" if table.is_left(column) else "right"
        return f"<{tag} style='text-align:{align};white-space:nowrap'>{escape(text)}</{tag}>"

    title = f"<div><b>{escape(table.title)}</b></div>" if table.title else ""
    head = "".join(one("th", column, column) for column in table.columns)
    body = "".join(
        f"<tr>{''.join(one('td', column, cell(row.get(column))) for column in table.columns)}</tr>"
        for row in table.rows
    )
    caption = f"<div><small>{escape(table.caption)}</small></div>" if table.caption else ""
    return f"{title}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{caption}"
