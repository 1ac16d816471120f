"""Variants on the same requests: side by side in words, over each other in figures, and on one page."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

from gnomon.core import units
from gnomon.core.config import dump
from gnomon.core.files import folder_written_whole, write_text
from gnomon.report.blocks import Block, Figure, Section, Table, View, lines, plots, seconds
from gnomon.report.routing.files import differences_figure
from gnomon.report.serving.figures import LATENCIES, latency_cdf, latency_curves
from gnomon.report.serving.files import write_run
from gnomon.report.serving.intervals import CAPTION, as_data, words
from gnomon.search.slo import WORDS, latency_name
from gnomon.serving.results.fleet import Regret, regret
from gnomon.serving.results.intervals import Intervals
from gnomon.serving.results.paired import Difference
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import Run

Differences = Mapping[str, list[Difference]]


def drawers(result: Any) -> dict[str, Callable[[], Figure]]:
    """Every latency's distributions over each other, and the change of its mean and P99 against the baseline."""
    runs: dict[str, Run] = {name: one.run for name, one in result.results.items()}
    curves = cache(lambda: {name: latency_curves(run) for name, run in runs.items()})
    slo = runs[result.baseline].scenario.slo

    def overlay(latency: str) -> Figure:
        return latency_cdf(latency, {name: found[latency] for name, found in curves().items()}, slo)

    def change(latency: str, statistic: str) -> Figure:
        found = {
            name: next((one for one in rows if (one.metric, one.statistic) == (f"{latency}_s", statistic)), None)
            for name, rows in result.differences.items()
        }
        words = latency_name(f"{latency}_s {statistic}")
        return differences_figure(words, result.baseline, found, list(found))

    drawn: dict[str, Callable[[], Figure]] = {latency: partial(overlay, latency) for latency in LATENCIES}
    for latency in LATENCIES:
        for statistic in ("mean", "p99"):
            drawn[f"{latency}_{statistic}_change"] = partial(change, latency, statistic)
    return drawn


def view(result: Any) -> View:
    variants = {name: (lambda one=one: one.requests) for name, one in result.results.items()}
    return View(
        f"{len(result.results)} variants compared", partial(_text, result), partial(data, result),
        {"differences": partial(_difference_rows, result.differences), **variants}, partial(drawers, result),
        lambda: "\n".join(f"# {name}\n{dump(one.scenario)}" for name, one in result.results.items()),
    )  # fmt: skip


def _as_data(one: Difference) -> dict[str, Any]:
    return asdict(one) | {"difference": one.difference, "relative": one.relative}


def _difference_rows(differences: Differences) -> list[dict[str, Any]]:
    return [{"variant": name, **_as_data(one)} for name, found in differences.items() for one in found]


def data(result: Any) -> dict[str, Any]:
    rows = {name: [_as_data(one) for one in differences] for name, differences in result.differences.items()}
    summaries = {
        name: summary.to_dict() | {"intervals": as_data(result.intervals[name])}
        for name, summary in result.summary.items()
    }
    found = {name: asdict(one) for name, one in regrets(result.summary).items()}
    known = {"regret": found} if found else {}
    return {"baseline": result.baseline, "summaries": summaries, "differences": rows} | known


def _text(result: Any) -> list[Block]:
    """The variants side by side, then every difference to the baseline, request by request."""
    summaries: dict[str, Summary] = result.summary
    notes = dict.fromkeys(note for one in summaries.values() for note in one.notes)
    drawn = drawers(result)
    overlays = {name: draw for name, draw in drawn.items() if name in LATENCIES}
    changes = {name: draw for name, draw in drawn.items() if name not in LATENCIES}
    paired = [
        Table([difference_row(one) for one in found], f"{name} against {result.baseline}, request by request")
        for name, found in result.differences.items()
        if found
    ]
    return [
        *lines(verdict(summaries, result.differences)),
        Section("Latency", [*plots(overlays), *_variant_tables(summaries, result.intervals)]),
        Section("Change", [*plots(changes, "short"), *paired]),
        *lines(warnings(summaries), "warning"),
        *lines(notes, "note"),
    ]


CONTESTED: dict[str, Callable[[Summary], float | None]] = {
    "SLO met": lambda one: -one.slo.attainment if one.slo is not None else None,
    "TTFT P99": lambda one: one.latency.ttft_s.p99,
    "TPOT P99": lambda one: one.latency.tpot_s.p99,
    "E2E P99": lambda one: one.latency.e2e_s.p99,
    "requests/s": lambda one: -one.throughput.requests_per_s,
    "$ per output token": lambda one: one.cost.per_million_output_tokens,
}
"""What variants are held against each other by; the least is the best."""
SLO_SHARE = 0.9  # Where all variants meet the SLO for fewer, their prices are of answers that nobody wants.
A_DRAW = 0.01  # Variants within so much of the best share the first place, and where all do, there is none.


def verdict(summaries: Mapping[str, Summary], differences: Differences) -> list[str]:
    """Who is best at what, in one sentence; who differs from the baseline by chance at most is as good."""
    baseline = next(iter(summaries))
    won: dict[tuple[str, ...], list[str]] = {}
    for what, figure in CONTESTED.items():
        values = {name: figure(one) for name, one in summaries.items()}
        known = {name: value for name, value in values.items() if value is not None}
        if len(known) == len(values) > 1:
            least = min(known.values())
            first = tuple(name for name, value in known.items() if value <= least + A_DRAW * abs(least))
            unclear = {
                name for name, rows in differences.items() for one in rows
                if latency_name(f"{one.metric} {one.statistic}") == what and not one.is_clear
            }  # fmt: skip
            if baseline in first or unclear & {*first}:
                first = tuple(name for name in summaries if name in {*first, *unclear, baseline})
            won.setdefault(first, []).append(what)
    alike = won.pop(tuple(summaries), [])
    parts = [f"best at {', '.join(of)}: {' and '.join(names)}" for names, of in won.items()]
    parts += [f"alike (within 1 % or by chance): {', '.join(alike)}"] if alike else []
    sentence = "; ".join(parts)
    met = max((one.slo.attainment if one.slo is not None else 1.0 for one in summaries.values()), default=1.0)
    missed = f"No variant meets the SLO for more than {met:.1%} of the requests: compare at a lower load, or search."
    return [*([f"{sentence[0].upper()}{sentence[1:]}."] if sentence else []), *([missed] if met < SLO_SHARE else [])]


def _variant_tables(summaries: Mapping[str, Summary], intervals: Mapping[str, Intervals]) -> list[Block]:
    of_fleets = {"moved": "moves", "switched": "switches"}
    counts = {name: {to: getattr(one.fleet, of, 0) for to, of in of_fleets.items()} for name, one in summaries.items()}
    asked = [to for to in of_fleets if any(count[to] for count in counts.values())]
    shown = {name: {to: f"{count[to]:,}" for to in asked} for name, count in counts.items()}
    tables = [Table([variant_row(name, one) | shown[name] for name, one in summaries.items()])]
    if any(intervals.values()):
        places = {"TTFT P99": "ttft_s.p99", "TPOT mean": "tpot_s.mean", "E2E mean": "e2e_s.mean"}
        places = {name: f"latency.{place}" for name, place in places.items()}
        rows = [
            {"variant": variant, **{name: words(one[at]) if at in one else None for name, at in places.items()}}
            for variant, one in intervals.items()
        ]
        tables.append(Table(rows, caption=CAPTION))
    regretted = [
        {
            "variant": name,
            "GPU hours": f"{one.gpu_hours:,.1f}",
            "more than the oracle": f"{one.more_gpu_hours:+z.1%}",
            "SLO met": f"{one.slo_met:.2%}" if one.slo_met is not None else None,
            "less than the oracle": f"{one.less_slo_met * 100:+z.2f} points" if one.less_slo_met is not None else None,
        }
        for name, one in regrets(summaries).items()
    ]
    return [*tables, *([Table(regretted, caption=REGRET_CAPTION)] if regretted else [])]


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


def variant_row(name: str, summary: Summary) -> dict[str, Any]:
    """The figures by which variants are told apart."""
    row: dict[str, Any] = {"variant": name}
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        spread = getattr(summary.latency, metric)
        row[f"{WORDS[metric]} mean"] = seconds(spread.mean)
        row[f"{WORDS[metric]} P99"] = seconds(spread.p99)
    million = summary.cost.per_million_output_tokens
    row |= {
        "requests/s": f"{summary.throughput.requests_per_s:.4g}",
        "output tokens/s": f"{summary.throughput.output_tokens_per_s:,.0f}",
        "busy": f"{summary.utilization.busy:.1%}",
        "$/M output": f"{million:.3g}" if million is not None else None,
    }
    if summary.fleet is not None:
        row["GPU hours"] = f"{summary.fleet.gpu_hours:,.4g}"
    return row | ({"SLO met": f"{summary.slo.attainment:.1%}"} if summary.slo is not None else {})


def difference_row(one: Difference) -> dict[str, Any]:
    has_interval = one.low is not None and one.high is not None
    return {
        "figure": latency_name(f"{one.metric} {one.statistic}"), "difference": _signed(one.difference),
        "relative": f"{one.relative:+z.1%}".replace("-", "−") if one.relative is not None else None,
        "95 % interval": f"{_signed(one.low)} to {_signed(one.high)}" if has_interval else None,
        "clear": "yes" if one.is_clear else "no" if has_interval else None, "requests": f"{one.num_requests:,}",
    }  # fmt: skip


def write(result: Any, folder: str | Path) -> Path:
    """Write one report of all, comparison.json, and every variant's run into a folder of its own."""
    places = {name: f"{i}-{re.sub(r'[^A-Za-z0-9._=-]+', '-', name)[:80]}" for i, name in enumerate(result.results)}
    with folder_written_whole(folder, ("comparison.json", "report.html", "[0-9]*-*")) as temporary:
        for name, one in result.results.items():
            write_run(one.run, one.summary, temporary / places[name])
        write_text(temporary / "comparison.json", json.dumps(data(result), indent=1))
        links = {f"{place}/report.html": name for name, place in places.items()}
        result.write_page(temporary / "report.html", links=links)
    return Path(folder)


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{'+' if value >= 0 else '−'}{units.seconds(abs(value))}"
