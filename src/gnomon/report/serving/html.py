"""A serving run as one self-contained HTML page."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from gnomon import __version__
from gnomon.core import units
from gnomon.core.config import dump
from gnomon.core.files import write_text
from gnomon.report.page import page
from gnomon.report.serving import text as words
from gnomon.report.serving.figures import figures
from gnomon.serving.metrics import Summary
from gnomon.serving.percentiles import Percentiles
from gnomon.serving.simulate import Run

MAX_REPLICA_ROWS = 64

SECTIONS = {
    "Latency": ("ttft", "tbt", "tpot", "e2e"),
    "Over time": ("queue", "rates", "tokens", "kv"),
    "Batches": ("batch_size", "batch_tokens"),
}


def write_report(run: Run, summary: Summary, path: str | Path) -> Path:
    """Write the page; it needs no network and no other file."""
    drawn = figures(run, summary)
    plots = "".join(
        f"<section><h2>{name}</h2><div class=plots>{''.join(f'<div id={f} class=plot></div>' for f in chosen)}</div>"
        f"{_latency_table(summary) if name == 'Latency' else ''}</section>"
        for name, chosen in SECTIONS.items()
    )
    scenario = run.scenario
    parts = {
        "@TITLE@": html.escape(words.title(scenario)),
        "@LEDE@": html.escape(f"{words.workload_words(scenario)}; {words.policy_words(scenario)}."),
        "@CARDS@": "".join(card(*one) for one in key_figures(summary)),
        "@MESSAGES@": _messages(summary),
        "@PLOTS@": plots,
        "@FIGURES@": _facts(summary),
        "@REPLICAS@": _replicas(summary),
        "@SCENARIO@": html.escape(dump(scenario)),
        "@VERSION@": __version__,
        "@DATA@": json.dumps(drawn, separators=(",", ":"), allow_nan=False).replace("</", "<\\/"),
    }
    return write_text(path, page(parts))


def key_figures(summary: Summary) -> list[tuple[str, str, str]]:
    """What is shown first: name, value, what stands beside it."""
    t, use, cost = summary.throughput, summary.utilization, summary.cost
    million = cost.per_million_output_tokens
    cards = [
        ("time to first token", *_spread(summary.latency.ttft_s)),
        ("time per output token", *_spread(summary.latency.tpot_s)),
        ("end to end", *_spread(summary.latency.e2e_s)),
        ("throughput", f"{t.requests_per_s:.3g}/s", f"{t.output_tokens_per_s:,.0f} output tokens/s"),
        ("GPUs busy", f"{use.busy:.0%}", f"MFU {use.mfu:.0%}, HBM {use.hbm:.0%}"),
        ("KV cache peak", f"{use.kv_peak:.0%}", f"mean {use.kv_mean:.0%}"),
        ("cost", f"${million:.3g}" if million is not None else "–", "per million output tokens"),
    ]
    if summary.slo is not None:
        goodput = f"goodput {summary.slo.goodput_requests_per_s:.3g}/s"
        cards.insert(3, ("SLO met by", f"{summary.slo.attainment:.1%}", goodput))
    return cards


def _spread(values: Percentiles) -> tuple[str, str]:
    if values.p50 is None or values.p99 is None:
        return "–", "nothing finished"
    return units.seconds(values.p50), f"median; P99 {units.seconds(values.p99)}"


def card(name: str, value: str, beside: str) -> str:
    """A key figure as HTML."""
    return (
        f"<div class=card><span>{html.escape(name)}</span><b>{html.escape(value)}</b>"
        f"<small>{html.escape(beside)}</small></div>"
    )


def _messages(summary: Summary) -> str:
    lines = [message("warning", text) for text in summary.warnings]
    lines += [message("note", text) for text in summary.notes]
    return "".join(lines)


def message(kind: str, text: str) -> str:
    """A warning or a note as HTML."""
    return f"<p class={kind}>{html.escape(text)}</p>"


def _latency_table(summary: Summary) -> str:
    return _table(words.latency_rows(summary), left=("latency",))


def _facts(summary: Summary) -> str:
    pairs = words.figure_rows(summary)
    body = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in pairs)
    return f"<dl>{body}</dl>"


def _replicas(summary: Summary) -> str:
    if len(summary.replicas) < 2:
        return ""
    rows = words.replica_rows(summary, MAX_REPLICA_ROWS)
    left = len(summary.replicas) - len(rows)
    more = f"<p class=more>{left:,} more replicas are in summary.json.</p>" if left else ""
    return f"<section><h2>Replicas</h2>{_table(rows, left=('device',))}{more}</section>"


def _table(rows: list[dict[str, Any]], left: tuple[str, ...]) -> str:
    def cell(name: str, value: Any) -> str:
        text = "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
        return f"<td{' class=l' if name in left else ''}>{html.escape(text)}</td>"

    head = "".join(f"<th{' class=l' if name in left else ''}>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(f"<tr>{''.join(cell(n, v) for n, v in row.items())}</tr>" for row in rows)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
