"""A serving run as one self-contained HTML page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from gnomon.core import units
from gnomon.core.config import dump
from gnomon.report.page import table, write_whole_page
from gnomon.report.serving import text as words
from gnomon.report.serving.explain_html import why_section
from gnomon.report.serving.figures import figures
from gnomon.report.serving.intervals import CAPTION, interval_rows, other_words
from gnomon.report.serving.intervals import words as interval_words
from gnomon.report.serving.load import load_figures
from gnomon.report.serving.operators import operator_frame
from gnomon.report.serving.terms import TERMS
from gnomon.search.headroom import Headroom
from gnomon.serving.results.intervals import Intervals
from gnomon.serving.results.percentiles import Percentiles
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import Run

MAX_REPLICA_ROWS = 64
MAX_OPERATOR_ROWS = 24

SECTIONS = {
    "Latency": ("ttft", "tbt", "tpot", "e2e"),
    "Over time": ("queue", "rates", "tokens", "kv"),
    "Batches": ("batch_size", "batch_tokens"),
}
FLEET_SECTION = {"The fleet over time": ("load", "replicas", "slo_over_time", "cost_over_time", "power")}


def write_report(
    run: Run,
    summary: Summary,
    path: str | Path,
    room: Headroom | None = None,
    files: Sequence[str] = (),
    intervals: Intervals | None = None,
) -> Path:
    """Write the page; it needs no network and no other file. `files` beside it are linked."""
    drawn = figures(run, summary)
    shown = SECTIONS | (FLEET_SECTION if run.fleet is not None else {})
    chosen = {name: list(some) for name, some in shown.items()}
    if room is not None and room.curve.loads:
        curves = load_figures(room, run.scenario.slo)
        drawn |= curves
        chosen["Latency"] += curves
    together = {"Over time": " together", "The fleet over time": " together"}
    why, why_drawn = why_section(run, summary)
    plots = "".join(
        f"<section><h2>{name}</h2><div class='plots{together.get(name, '')}'>"
        f"{''.join(f'<div id={f} class=plot></div>' for f in some)}</div>"
        f"{_latency_table(summary, intervals) if name == 'Latency' else ''}</section>"
        for name, some in chosen.items()
    )
    scenario = run.scenario
    parts = {
        "@TITLE@": html.escape(words.title(scenario)),
        "@LEDE@": html.escape(f"{words.workload_words(scenario)}; {words.policy_words(scenario)}."),
        "@LINKS@": _links(files),
        "@CARDS@": "".join(card(*one) for one in key_figures(summary, room, intervals)),
        "@MESSAGES@": _messages(summary),
        "@PLOTS@": why + plots,
        "@FIGURES@": _facts(summary, room),
        "@REPLICAS@": _replicas(summary) + _operators(run),
        "@SCENARIO@": html.escape(dump(scenario)),
    }
    return write_whole_page(path, parts, why_drawn | drawn)


LINKED = {"trace.json.gz": "trace (open it in ui.perfetto.dev)", "requests.parquet": "table of requests",
          "iterations.parquet": "table of iterations", "requests.csv": "requests as CSV",
          "iterations.csv": "iterations as CSV", "summary.json": "all figures",
          "scenario.yaml": "scenario"}  # fmt: skip


def _links(files: Sequence[str]) -> str:
    named = [f"<a href={name}>{words}</a>" for name, words in LINKED.items() if name in files]
    return f"<nav aria-label=Files>{''.join(named)}</nav>" if named else ""


def key_figures(
    summary: Summary, room: Headroom | None = None, intervals: Intervals | None = None
) -> list[tuple[str, str, str]]:
    """What is shown first: name, value, what stands beside it (with 90 % intervals where they are known)."""
    known = intervals or {}
    t, use, cost = summary.throughput, summary.utilization, summary.cost
    million = cost.per_million_output_tokens
    cards = [
        ("time to first token", *_spread(summary.latency.ttft_s, known, "ttft_s")),
        ("time per output token", *_spread(summary.latency.tpot_s, known, "tpot_s")),
        ("end to end", *_spread(summary.latency.e2e_s, known, "e2e_s")),
        ("throughput", f"{t.requests_per_s:.3g}/s", f"{t.output_tokens_per_s:,.0f} output tokens/s"),
        ("GPUs busy", f"{use.busy:.0%}", f"MFU {use.mfu:.0%}, HBM {use.hbm:.0%}"),
        ("KV cache peak", f"{use.kv_peak:.0%}", f"mean {use.kv_mean:.0%}"),
        ("cost", f"${million:.3g}" if million is not None else "–", "per million output tokens"),
    ]
    if room is not None and room.share is not None:
        left = f"headroom {room.share:.0%}" if room.share >= 0 else f"load {-room.share:.0%} above it"
        cards.insert(4, ("capacity", f"{room.capacity_per_s:.3g}/s", left))
    if summary.slo is not None:
        goodput = f"goodput {summary.slo.goodput_requests_per_s:.3g}/s"
        cards.insert(3, ("SLO met by", f"{summary.slo.attainment:.1%}", goodput))
    return cards


def _spread(values: Percentiles, known: Intervals, name: str) -> tuple[str, str]:
    if values.p50 is None or values.p99 is None:
        return "–", "nothing finished"
    tail = known.get(f"latency.{name}.p99")
    return units.seconds(values.p50), f"median; P99 {interval_words(tail) if tail else units.seconds(values.p99)}"


def card(name: str, value: str, beside: str) -> str:
    """A key figure as HTML, with the meaning of its name and a colour where it is a verdict."""
    shown, tip = html.escape(name), TERMS.get(name)
    unbroken = html.escape(beside).replace("–", "\u2060–\u2060")  # No line ends within an interval.
    if tip is not None:
        shown = f'<span class=term tabindex=0 data-tip="{html.escape(tip)}">{shown}</span>'
    return (
        f"<div class='card{verdict(name, value, beside)}'><span>{shown}</span><b>{html.escape(value)}</b>"
        f"<small>{unbroken}</small></div>"
    )


def verdict(name: str, value: str, beside: str) -> str:
    """The class of a card: good or bad where it is held against a limit, else nothing."""
    if name == "SLO met by":
        return " good" if float(value.rstrip("%")) >= 99 else " bad"
    if name == "capacity":
        return " bad" if "above" in beside else " good"
    return ""


def _messages(summary: Summary) -> str:
    lines = [message("warning", text) for text in summary.warnings]
    lines += [message("note", text) for text in summary.notes]
    return "".join(lines)


def message(kind: str, text: str) -> str:
    """A warning or a note as HTML."""
    return f"<p class={kind}>{html.escape(text)}</p>"


def _latency_table(summary: Summary, intervals: Intervals | None) -> str:
    shown, known = table(words.latency_rows(summary), left=("latency",)), interval_rows(intervals or {})
    if known:
        others = "; ".join(f"{name} {value}" for name, value in other_words(intervals or {}))
        shown += table(known, left=("interval",)) + message("note", f"{CAPTION} {others}.")
    return shown


def _facts(summary: Summary, room: Headroom | None) -> str:
    pairs = words.figure_rows(summary, room)
    body = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in pairs)
    return f"<dl>{body}</dl>"


def _replicas(summary: Summary) -> str:
    if len(summary.replicas) < 2:
        return ""
    rows = words.replica_rows(summary, MAX_REPLICA_ROWS)
    left = len(summary.replicas) - len(rows)
    more = f"<p class=more>{left:,} more replicas are in summary.json.</p>" if left else ""
    return f"<section><h2>Replicas</h2>{table(rows, left=('device',))}{more}</section>"


def _operators(run: Run) -> str:
    """Where the GPUs' time goes, operator by operator, and where each one's time comes from."""
    frame = operator_frame(run)
    if frame.is_empty():
        return ""
    weight = pl.col("seconds") * pl.col("num_iterations")
    of_each = (
        frame.group_by("operator", "provenance", maintain_order=True).agg(s=weight.sum()).sort("s", descending=True)
    )
    total = of_each["s"].sum()
    rows = [
        {"operator": one["operator"], "share of GPU time": f"{one['s'] / total:.1%}", "from": one["provenance"] or "–"}
        for one in of_each.head(MAX_OPERATOR_ROWS).iter_rows(named=True)
    ]
    return f"<section><h2>Operators</h2>{table(rows, left=('operator', 'from'))}</section>"
