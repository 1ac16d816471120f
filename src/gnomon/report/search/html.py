"""A search's answer as one self-contained HTML page."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnomon.convert.commands import ENGINES
from gnomon.core.config import dump
from gnomon.report.page import table, write_whole_page
from gnomon.report.search import text as words
from gnomon.report.search.figures import figures
from gnomon.search.answers import winning_scenario
from gnomon.search.study import Found
from gnomon.serving.results.intervals import Interval


def write_search_report(
    found: Found, path: str | Path, commands: Mapping[str, str], capacity: Interval | None = None
) -> Path:
    """Write the page; it needs no network and no other file. `commands` start the winner, by engine."""
    drawn = figures(found) if found.ranked else {}
    plots = "".join(f"<div id={name} class=plot style='min-height:440px'></div>" for name in drawn)
    best = found.best
    parts = {
        "@TITLE@": html.escape(f"Best deployment: {best.label}" if best else "No configuration meets the SLO"),
        "@LEDE@": html.escape(words.question_words(found.search)),
        "@CARDS@": "".join(_card(*card) for card in words.cards(found)),
        "@MESSAGES@": _messages(found)
        + (f"<p class=note>{html.escape(words.capacity_words(capacity))}</p>" if capacity else ""),
        "@PLOTS@": f"<section><h2>{words.HEADINGS[found.search.objective]}</h2><div class=plots>{plots}</div></section>"
        if plots
        else "",
        "@REPLICAS@": _section("Ranking", words.ranking_rows(found))
        + _section("Not in the ranking", words.reason_rows(found)),
        "@FIGURES@": _facts(found, commands),
        "@SCENARIO@": html.escape(dump(winning_scenario(found.search, best) if best else found.search)),
    }
    return write_whole_page(path, parts, drawn)


def _card(name: str, value: str, beside: str) -> str:
    return (
        f"<div class=card><span>{html.escape(name)}</span><b>{html.escape(value)}</b>"
        f"<small>{html.escape(beside)}</small></div>"
    )


def _messages(found: Found) -> str:
    lines = [f"<p class=note>{html.escape(text)}</p>" for text in words.account(found)]
    if found.best is None:
        lines.append(f"<p class=warning>{html.escape(words.nothing_qualifies(found))}</p>")
    if found.search.strategy == "smart" and found.ranked:
        lines.append(
            "<p class=note>The smart strategy measures only configurations that may win: the front is that of the "
            "measured ones. Use <code>--strategy exhaustive</code> for the whole of it.</p>"
        )
    return "".join(lines)


def _facts(found: Found, commands: Mapping[str, str]) -> str:
    pairs = [("asked", words.question_words(found.search)), *(("found", line) for line in words.account(found))]
    shown = [(name, html.escape(value)) for name, value in pairs]
    shown += [(ENGINES[name].name, f"<pre>{html.escape(command)}</pre>") for name, command in commands.items()]
    return "<dl>" + "".join(f"<dt>{html.escape(name)}</dt><dd>{value}</dd>" for name, value in shown) + "</dl>"


def _section(title: str, rows: list[dict[str, Any]]) -> str:
    return f"<section><h2>{title}</h2>{table(rows)}</section>" if rows else ""
