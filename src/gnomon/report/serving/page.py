"""A serving run as a page: key figures, why requests were slow, plots, tables, what to know of them."""

from collections.abc import Sequence
from importlib.resources import files as files_of
from pathlib import Path
from typing import Any, Literal

import polars as pl

from gnomon.core import units
from gnomon.core.config import dump
from gnomon.core.text import own_yaml
from gnomon.report.blocks import Block, Card, Facts, Line, Plot, Section, Table, lines, plots
from gnomon.report.page import write_page
from gnomon.report.serving import explain_text as explained
from gnomon.report.serving import explanation as pictures
from gnomon.report.serving import text as words
from gnomon.report.serving.figures import drawers, load_drawers
from gnomon.report.serving.fleet import day_cards, day_tables
from gnomon.report.serving.intervals import interval_blocks
from gnomon.report.serving.intervals import words as interval_words
from gnomon.report.serving.operators import operator_frame
from gnomon.search.load_curve import Headroom
from gnomon.serving.results.explain import slowest
from gnomon.serving.results.intervals import Intervals
from gnomon.serving.results.latency_breakdown import accounts
from gnomon.serving.results.percentiles import Percentiles
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import Run
from gnomon.timing import SOURCES

MAX_REPLICA_ROWS = 64
MAX_OPERATOR_ROWS = 24
WORDS: dict[str, Any] = own_yaml(files_of("gnomon.report.serving") / "page.yaml")
SECTIONS, LINKED, TERMS = WORDS["sections"], WORDS["linked"], WORDS["terms"]
"""What the terms of serving mean, for whoever meets them first: shown on hover and focus."""


def write_report(
    run: Run, summary: Summary, path: str | Path, room: Headroom | None = None, files: Sequence[str] = (),
    intervals: Intervals | None = None,
) -> Path:  # fmt: skip
    drawn = drawers(run, summary)
    latency = {name: drawn[name] for name in ("ttft", "tbt", "tpot", "e2e")}
    if room is not None and room.curve.loads:
        latency |= load_drawers(room, run.scenario.slo)
    tables = [Table(words.latency_rows(summary), left=("latency",)), *interval_blocks(intervals or {})]
    over_time = [
        Section(title, plots({name: drawn[name] for name in names if name in drawn}), together="time" in title)
        for title, names in SECTIONS.items()
    ]
    left = len(summary.replicas) - MAX_REPLICA_ROWS
    more = f"{left:,} more replicas are in summary.json." if left > 0 else ""
    replicas = words.replica_rows(summary, MAX_REPLICA_ROWS) if len(summary.replicas) > 1 else []
    blocks: list[Block] = [
        *key_figures(summary, room, intervals), *lines(summary.warnings, "warning"), Section("Why", _why(run)),
        Section("Latency", [*plots(latency), *tables]), *over_time,
        *([Section("The day", [*day_cards(summary), *day_tables(run)])] if run.fleet is not None else []),
        Section("Replicas", [Table(replicas, caption=more, left=("device",))]),
        Section("Operators", [Table(_operator_rows(run), left=("operator", "from"))]),
        Section("Summary", [Facts(words.figure_rows(summary, room))]), *lines(summary.notes, "note"),
    ]  # fmt: skip
    scenario, links = run.scenario, {name: text for name, text in LINKED.items() if name in files}
    lede = f"{words.workload_words(scenario)}; {words.policy_words(scenario)}."
    return write_page(path, words.title(scenario), blocks, lede=lede, links=links, scenario=dump(scenario))


def key_figures(summary: Summary, room: Headroom | None = None, intervals: Intervals | None = None) -> list[Card]:
    """What is shown first, with 90 % intervals where they are known."""
    t, use, slo = summary.throughput, summary.utilization, summary.slo
    million = summary.cost.per_million_output_tokens
    first = {"ttft_s": "time to first token", "tpot_s": "time per output token", "e2e_s": "end to end"}
    cards = [_spread(name, getattr(summary.latency, key), intervals, key) for key, name in first.items()]
    if slo is not None:
        goodput = f"goodput {slo.goodput_requests_per_s:.3g}/s"
        cards.append(_card("SLO met by", f"{slo.attainment:.1%}", goodput, slo.attainment >= 0.99))
    cards.append(_card("throughput", f"{t.requests_per_s:.3g}/s", f"{t.output_tokens_per_s:,.0f} output tokens/s"))
    if room is not None and room.share is not None:
        left = f"headroom {room.share:.0%}" if room.share >= 0 else f"load {-room.share:.0%} above it"
        cards.append(_card("capacity", f"{room.capacity_per_s:.3g}/s", left, room.share >= 0))
    return [
        *cards,
        _card("GPUs busy", f"{use.busy:.0%}", f"MFU {use.mfu:.0%}, HBM {use.hbm:.0%}"),
        _card("KV cache peak", f"{use.kv_peak:.0%}", f"mean {use.kv_mean:.0%}"),
        _card("cost", f"${million:.3g}" if million is not None else "–", "per million output tokens"),
    ]


def _card(name: str, value: str, beside: str, is_good: bool | None = None) -> Card:
    verdict: Literal["", "good", "bad"] = "" if is_good is None else "good" if is_good else "bad"
    return Card(name, value, beside, TERMS[name], verdict)


def _spread(name: str, values: Percentiles, intervals: Intervals | None, key: str) -> Card:
    if values.p50 is None or values.p99 is None:
        return _card(name, "–", "nothing finished")
    tail = (intervals or {}).get(f"latency.{key}.p99")
    p99 = interval_words(tail) if tail else units.seconds(values.p99)
    return _card(name, units.seconds(values.p50), f"median; P99 {p99}")


def _why(run: Run) -> list[Block]:
    """Why the slowest requests were slow: sentences, pictures, tables; nothing for a run without accounts of it."""
    found = accounts(run) if run.cluster.breakdown.size else None
    if found is None or not found.ids.size:
        return []
    slow = slowest(found, "e2e", 99.0)
    worst = int(slow.rows[found.values_s("e2e")[slow.rows].argmax()])
    drawn = [
        Plot("why_causes", lambda: pictures.causes_figure(found)),
        Plot("why_ttft", lambda: pictures.causes_figure(found, "ttft")),
        Plot("why_slowest", lambda: pictures.slowest_figure(found, slow)),
        Plot("why_neighbours", lambda: pictures.neighbours_figure(found, worst)),
    ]
    if not SOURCES[run.pools[0].timing.source].gives_iterations:
        drawn.append(Plot("why_roofline", lambda: pictures.roofline_figure(run)))
    return [
        Line(" ".join([*explained.missed_sentences(found), *explained.slow_sentences(found, slow)])),
        Line(" ".join(explained.request_sentences(found, int(found.ids[worst])))),
        *drawn,
        *(one for one in explained.slow_blocks(found, slow) if isinstance(one, Table)),
        Line("`gnomon explain` on this folder also simulates what would help.", "more"),
    ]


def _operator_rows(run: Run) -> list[words.Row]:
    """Where the GPUs' time goes, operator by operator, and where each one's time comes from."""
    weight = pl.col("seconds") * pl.col("num_iterations")
    operators = operator_frame(run, with_spread=False).group_by("operator", "provenance", maintain_order=True)
    frame = operators.agg(s=weight.sum())
    total = frame["s"].sum()
    return [
        {"operator": one["operator"], "share of GPU time": f"{one['s'] / total:.1%}", "from": one["provenance"] or "–"}
        for one in frame.sort("s", descending=True).head(MAX_OPERATOR_ROWS).iter_rows(named=True)
    ]
