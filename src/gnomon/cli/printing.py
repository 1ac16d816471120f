"""Tables for people, JSON for programs: one call for both.

A table never loses a digit, a unit or the names of its rows. What is wider than the terminal is wrapped where it is
words; else the columns are laid out in several parts, each with the names. A file or a pipe has no width to respect.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from unicodedata import east_asian_width

import click

if TYPE_CHECKING:
    from gnomon.api.result import Result
    from gnomon.core.errors import GnomonError
    from gnomon.report.blocks import Block, Line, Table

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")

GAP = "  "
MIN_WORDS = 16  # Columns of words are not wrapped to less.
UNLIMITED = 1 << 20
NEW_LINE = "\n"


def show(result: Result, *, as_json: bool) -> None:
    """Print an answer: its text for people, or its data as JSON."""
    from gnomon.cli.progress import progress

    with progress("summing up", compiles=False):  # Intervals and capacity are found when they are shown.
        shown: Any = result.to_dict() if as_json else result.text()
    if as_json:
        print_json(shown)
    else:
        print_blocks(shown)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=1, default=str))


def print_rows(
    rows: Sequence[Mapping[str, Any]], *, as_json: bool = False, title: str | None = None, caption: str | None = None,
    right: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Print `rows` as a table whose columns are the keys of the first row; numbers are aligned to the right."""
    from gnomon.report.blocks import Table

    if as_json:
        print_json(list(rows))
        return
    left = None if right is None or not rows else [name for name in rows[0] if name not in right]
    print_blocks([Table(rows, title or "", caption or "", left)])


def print_lines(texts: Iterable[str], kind: Literal["plain", "note"] = "plain") -> None:
    from gnomon.report.blocks import lines

    print_blocks(lines(texts, kind))


def print_blocks(blocks: Iterable[Block]) -> None:
    from gnomon.report import blocks as kinds

    width = terminal_width()
    for block in kinds.without(blocks, kinds.Card, kinds.Plot, kinds.Html):
        match block:
            case kinds.Line():
                _print_line(block, width)
            case kinds.Table():
                click.echo(laid_out(block, width))
            case kinds.Facts(pairs):
                most = max(len(name) for name, _ in pairs)
                for name, value in pairs:
                    click.echo(_filled(f"{name:<{most}}  {value}", width, " " * (most + 2)))
            case kinds.Command(name, text):
                fits = NEW_LINE not in text and len(name) + 2 + len(text) <= width
                click.echo(f"{name}: {text}" if fits else f"{name}:\n{continued(text, width)}")
            case kinds.Section(title, inner):
                click.echo(click.style(title, bold=True))
                print_blocks(inner)


def terminal_width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED


def _print_line(line: Line, width: int) -> None:
    mark = {"warning": "Warning: ", "note": "Note: "}.get(line.kind, "")
    text = _filled(mark + line.text, width, "  " if mark else "")
    click.echo(click.style(text, fg="yellow") if mark == "Warning: " else text, err=line.kind == "aside")


def _filled(text: str, width: int, indent: str) -> str:
    """Words in as many lines as they need; no word is cut."""
    if len(text) <= width:
        return text
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def complaint(error: GnomonError) -> str:
    """A user's mistake in a paragraph; on a terminal too narrow for it, what would be right on lines of its own."""
    text, fix = f"gnomon: {error}", error.fix
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else UNLIMITED
    if len(text) <= width or not fix:
        return _filled(text, width, "  ")
    return f"{_filled(text.removesuffix(f' {fix}'), width, '  ')}\n{_filled(f'  {fix}', width, '  ')}"


def continued(command: str, width: int) -> str:
    """A command of the shell in lines of at most `width` columns, to be copied as it stands; no word is cut."""
    done = []
    for line in command.split(NEW_LINE):
        if line.startswith("#"):  # The shell does not go on with a comment in the next line.
            done += textwrap.wrap(line, width, subsequent_indent="# ", break_long_words=False) or [line]
            continue
        parts = [""]
        for word in re.findall(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""", line) if len(line) > width else [line]:
            if parts[-1] and len(parts[-1]) + len(word) + 3 > width:  # A space before it, a space and \\ behind.
                parts.append(f"   {word}")
            else:
                parts[-1] = f"{parts[-1]} {word}" if parts[-1] else word
        done.append(" \\\n".join(parts))
    return NEW_LINE.join(done)


def laid_out(table: Table, width: int) -> str:
    """The table as text of at most `width` columns, as far as its cells allow."""
    from gnomon.report.blocks import cell

    columns = [
        _Column(name, [cell(row.get(name)) for row in table.rows], table.is_left(name)) for name in table.columns
    ]
    texts = [click.style(part, bold=True) for part in textwrap.wrap(table.title, width)] if table.title else []
    parts = _parts(columns, width)
    for part in parts:
        texts += [*_lines(part), ""]
    texts[-1:] = textwrap.wrap(table.caption, width) + [""] * (len(parts) > 1)  # Where one in several parts ends.
    return "\n".join(texts)


class _Column:
    """A column of a table: its head, its cells, and how wide it is laid out."""

    def __init__(self, name: str, cells: list[str], is_left: bool) -> None:
        self.name, self.cells, self.is_left = name, cells, is_left
        self.natural = max(_width(text) for text in (name, *cells))
        self.width = self.natural

    @property
    def least(self) -> int:
        """How far it can be narrowed: words can be wrapped, numbers cannot."""
        if not self.is_left:
            return self.natural
        longest = max(_width(word) for text in (self.name, *self.cells) for word in text.split() or [""])
        return min(self.natural, max(longest, MIN_WORDS))

    def wrapped(self, text: str) -> list[str]:
        """The lines of a cell, each as wide as the column."""
        fits = _width(text) <= self.width
        parts = [text] if fits else textwrap.wrap(text, self.width, break_on_hyphens=False)
        return [self.padded(part) for part in parts or [""]]

    def padded(self, text: str) -> str:
        space = " " * (self.width - _width(text))
        return text + space if self.is_left else space + text


def _parts(columns: list[_Column], width: int) -> list[list[_Column]]:
    """The columns in as few groups as fit, each led by those that tell the rows apart."""
    leading = _names(columns, width)
    parts = [columns[:leading]] if columns else []
    for column in columns[leading:]:
        candidate = [*parts[-1], column]
        if len(parts[-1]) > leading and _least(candidate) > width:
            parts.append([*(_Column(one.name, one.cells, one.is_left) for one in columns[:leading]), column])
        else:
            parts[-1] = candidate
    for part in parts:
        _narrow(part, width)
    return parts


def _names(columns: list[_Column], width: int) -> int:
    """How many columns name the rows: the first, or as many as make each row another where two parts hold them all."""
    for count in range(1, len(columns)):
        rows = list(zip(*(one.cells for one in columns[:count]), strict=True))
        if len(set(rows)) == len(rows):
            return count if max(_least([*columns[:count], one]) for one in columns[count:]) <= width else 1
    return 1


def _least(columns: list[_Column]) -> int:
    """How narrow these columns can be, side by side."""
    return sum(one.least for one in columns) + len(GAP) * (len(columns) - 1)


def _narrow(columns: list[_Column], width: int) -> None:
    """Take from the widest column of words until all fit."""
    excess = sum(one.width for one in columns) + len(GAP) * (len(columns) - 1) - width
    while excess > 0:
        widest = max(columns, key=lambda one: (one.width > one.least, one.width))
        if widest.width <= widest.least:
            return
        widest.width -= 1
        excess -= 1


def _lines(columns: list[_Column]) -> list[str]:
    head = _side_by_side([one.wrapped(one.name) for one in columns], columns)
    rule = "─" * (sum(one.width for one in columns) + len(GAP) * (len(columns) - 1))
    lines = [click.style(text, bold=True) for text in head] + [rule]
    for number in range(len(columns[0].cells)):
        lines += _side_by_side([one.wrapped(one.cells[number]) for one in columns], columns)
    return lines


def _side_by_side(cells: list[list[str]], columns: list[_Column]) -> list[str]:
    height = max(len(parts) for parts in cells)
    filled = [parts + [column.padded("")] * (height - len(parts)) for parts, column in zip(cells, columns, strict=True)]
    return [GAP.join(row).rstrip() for row in zip(*filled, strict=True)]


def _width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    return len(text) + sum(east_asian_width(letter) in "WF" for letter in text) if not text.isascii() else len(text)
