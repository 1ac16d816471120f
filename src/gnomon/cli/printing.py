"""Tables for people, JSON for programs: one call for both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    as_json: bool = False,
    title: str | None = None,
    caption: str | None = None,
    right: Sequence[str] | None = None,
) -> None:
    """Print `rows` as a table whose columns are the keys of the first row; numbers are aligned to the right."""
    if as_json:
        click.echo(json.dumps(list(rows), indent=1, default=str))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for index, name in enumerate(rows[0] if rows else ()):
        numeric = name in right if right is not None else all(isinstance(r[name], int | float) for r in rows)
        table.add_column(name, justify="right" if numeric else "left", no_wrap=numeric or index == 0)
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console = Console(markup=False, emoji=False)  # [brackets] and :colons: in a cell are text.
    if not console.is_terminal:  # A file or a pipe has no width to respect.
        console.width = 200
    console.print(table)


def print_json(value: Any) -> None:
    """Print anything JSON can hold (numbers, lists, mappings)."""
    click.echo(json.dumps(value, indent=1, default=str))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
