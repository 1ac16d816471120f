"""Variants on the same requests: side by side in words, over each other in figures, and on one page."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from gnomon.core import units
from gnomon.core.config import dump
from gnomon.report.blocks import Block, Line, Table
from gnomon.report.page import table, write_whole_page
from gnomon.report.routing.figures import differences_figure
from gnomon.report.serving.figures import LATENCIES, latency_cdf, latency_curves
from gnomon.report.serving.html import message
from gnomon.report.serving.intervals import CAPTION, variant_rows
from gnomon.report.serving.text import title
from gnomon.serving.results.fleet import Regret, regret
from gnomon.serving.results.intervals import Intervals
from gnomon.serving.results.paired import Difference
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import Run
from gnomon.serving.scenario import Scenario

WORDS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E", "scheduling_delay_s": "scheduling delay"}
Differences = Mapping[str, list[Difference]]
Figure = dict[str, Any]


def drawers(runs: Mapping[str, Run], differences: Callable[[], Differences]) -> dict[str, Callable[[], Figure]]:
    """Every latency's distributions over each other, and the change of its mean and P99 against the baseline."""
    curves = cache(lambda: {name: latency_curves(run) for name, run in runs.items()})
    baseline, slo = next(iter(runs)), next(iter(runs.values())).scenario.slo

    def overlay(latency: str) -> Figure:
        return latency_cdf(latency, {name: found[latency] for name, found in curves().items()}, slo)

    def change(latency: str, statistic: str) -> Figure:
        found = {name: _one(rows, f"{latency}_s", statistic) for name, rows in differences().items()}
        words = f"{WORDS[f'{latency}_s']} {'P99' if statistic == 'p99' else statistic}"
        return differences_figure(words, baseline, found, list(found))

    drawn: dict[str, Callable[[], Figure]] = {latency: partial(overlay, latency) for latency in LATENCIES}
    for latency in LATENCIES:
        for statistic in ("mean", "p99"):
            drawn[f"{latency}_{statistic}_change"] = partial(change, latency, statistic)
    return drawn


def _one(rows: list[Difference], metric: str, statistic: str) -> Difference | None:
    return next((one for one in rows if (one.metric, one.statistic) == (metric, statistic)), None)


def comparison_blocks(
    summaries: Mapping[str, Summary], differences: Differences, intervals: Mapping[str, Intervals] | None = None
) -> list[Block]:
    """The variants side by side, then every difference to the baseline, request by request."""
    baseline = next(iter(summaries))
    blocks: list[Block] = [Table([variant_row(name, one) for name, one in summaries.items()])]
    if any((intervals or {}).values()):
        blocks.append(Table(variant_rows(intervals or {}), caption=CAPTION))
    if rows := regret_rows(summaries):
        blocks.append(Table(rows, caption=REGRET_CAPTION))
    for name, found in differences.items():
        blocks.append(Line(f"{name} against {baseline}, request by request:"))
        blocks.append(Table([difference_row(one) for one in found]))
    blocks += [Line(text, "warning") for text in warnings(summaries)]
    notes = dict.fromkeys(note for one in summaries.values() for note in one.notes)
    return [*blocks, *(Line(note, "note") for note in notes)]


def warnings(summaries: Mapping[str, Summary]) -> list[str]:
    """What the variants warn of. Where several say the same with other numbers, the one with the largest speaks."""
    alike: dict[str, dict[str, str]] = {}
    for name, one in summaries.items():
        for text in one.warnings:
            alike.setdefault(_NUMBER.sub("#", text), {})[name] = text
    found = []
    for texts in alike.values():
        largest = max(texts, key=lambda name: [float(one.replace(",", "")) for one in _NUMBER.findall(texts[name])])
        others = f" (and {len(texts) - 1} more alike)" if len(texts) > 1 else ""
        found.append(f"{largest}{others}: {texts[largest]}")
    return found


_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")

REGRET_CAPTION = "Regret: against the controller that knew the arrivals to come."


def regrets(summaries: Mapping[str, Summary]) -> dict[str, Regret]:
    """Every variant's controller against the oracle's, where one of them has it; else nothing."""
    oracle = next((one for one in summaries.values() if one.fleet is not None and one.fleet.sees_future), None)
    if oracle is None or oracle.fleet is None:
        return {}
    return {
        name: regret(one.fleet, _slo_met(one), oracle.fleet, _slo_met(oracle))
        for name, one in summaries.items()
        if one.fleet is not None
    }


def _slo_met(summary: Summary) -> float | None:
    return summary.slo.attainment if summary.slo is not None else None


def regret_rows(summaries: Mapping[str, Summary]) -> list[dict[str, Any]]:
    """`regrets`, formatted, with what the GPU hours cost."""
    return [
        {
            "variant": name,
            "GPU hours": f"{one.gpu_hours:,.1f}",
            "more than the oracle": f"{one.more_gpu_hours:+z.1%}",
            "SLO met": f"{one.slo_met:.2%}" if one.slo_met is not None else None,
            "less than the oracle": f"{one.less_slo_met * 100:+z.2f} points" if one.less_slo_met is not None else None,
        }
        for name, one in regrets(summaries).items()
    ]


def variant_row(name: str, summary: Summary) -> dict[str, Any]:
    """The figures by which variants are told apart."""
    row: dict[str, Any] = {"variant": name}
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        spread = getattr(summary.latency, metric)
        row[f"{WORDS[metric]} mean"] = _seconds(spread.mean)
        row[f"{WORDS[metric]} P99"] = _seconds(spread.p99)
    million = summary.cost.per_million_output_tokens
    row |= {
        "requests/s": f"{summary.throughput.requests_per_s:.4g}",
        "output tokens/s": f"{summary.throughput.output_tokens_per_s:,.0f}",
        "busy": f"{summary.utilization.busy:.1%}",
        "$/M output": f"{million:.3g}" if million is not None else None,
    }
    return row | ({"SLO met": f"{summary.slo.attainment:.1%}"} if summary.slo is not None else {})


def difference_row(one: Difference) -> dict[str, Any]:
    """One paired difference, formatted."""
    has_interval = one.low is not None and one.high is not None
    return {
        "figure": f"{WORDS[one.metric]} {one.statistic.upper() if one.statistic != 'mean' else 'mean'}",
        "difference": _signed(one.difference),
        "relative": f"{one.relative:+z.1%}".replace("-", "−") if one.relative is not None else None,
        "95 % interval": f"{_signed(one.low)} to {_signed(one.high)}" if has_interval else None,
        "clear": "yes" if one.is_clear else "no" if has_interval else None,
        "requests": f"{one.num_requests:,}",
    }


def write_comparison_report(
    path: Path,
    summaries: Mapping[str, Summary],
    differences: Differences,
    drawings: Mapping[str, Figure],
    scenarios: Mapping[str, Scenario],
    places: Mapping[str, str],
    intervals: Mapping[str, Intervals] | None = None,
) -> Path:
    """One page of all variants; `places` names the folder of each, whose own report is linked."""
    baseline = next(iter(summaries))
    overlays = "".join(f"<div id={name} class=plot></div>" for name in LATENCIES)
    changes = "".join(f"<div id={name} class='plot short'></div>" for name in drawings if name not in LATENCIES)
    paired = "".join(
        f"<h3>{html.escape(f'{name} against {baseline}')}</h3>{table([difference_row(one) for one in found])}"
        for name, found in differences.items()
        if found
    )
    links = "".join(
        f"<li><a href='{html.escape(place)}/report.html'>{html.escape(name)}</a></li>" for name, place in places.items()
    )
    rows = table([variant_row(name, one) for name, one in summaries.items()])
    if any((intervals or {}).values()):
        rows += table(variant_rows(intervals or {})) + message("note", CAPTION)
    if told := regret_rows(summaries):
        rows += table(told) + message("note", REGRET_CAPTION)
    parts = {
        "@TITLE@": html.escape(f"{len(summaries)} variants compared"),
        "@LEDE@": html.escape(f"{title(scenarios[baseline])} and others on the same requests; the first: {baseline}."),
        "@MESSAGES@": "".join(message("warning", text) for text in warnings(summaries)),
        "@PLOTS@": f"<section><h2>Latency</h2><div class=plots>{overlays}</div>{rows}</section>"
        f"<section><h2>Change, request by request</h2><div class=plots>{changes}</div>{paired}</section>",
        "@FIGURES@": f"<ul>{links}</ul>",
        "@SCENARIO@": html.escape("\n".join(f"# {name}\n{dump(one)}" for name, one in scenarios.items())),
    }
    return write_whole_page(path, parts, drawings)


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{'+' if value >= 0 else '−'}{units.seconds(abs(value))}"


def _seconds(value: float | None) -> str | None:
    return units.seconds(value) if value is not None else None
