"""The folder of a comparison of routers: report.html, comparison.csv, comparison.parquet, comparison.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from gnomon.core.config import dump
from gnomon.core.files import folder_written_whole, write_frame, write_text
from gnomon.report import look
from gnomon.report.blocks import Block, Card, Figure, Plot, Section, Table, plots
from gnomon.report.page import write_page
from gnomon.report.routing import text as words
from gnomon.routing.compare import RouteComparison, Verdict

COLOURS = {"policy": "#B4512B", "teacher": "#D9A441", "heuristic": "#5B7C99", "bound": "#B9C2CC"}


def text(result: Any) -> list[Block]:
    """A table per scenario, then the goals."""
    return words.comparison_blocks(result.comparison, result.goals)


def data(result: Any) -> dict[str, Any]:
    """Every row, the contenders, the scenarios and the goals."""
    return dict(result.comparison.to_dict() | {"goals": words.goal_rows(result.goals)})


def tables(result: Any) -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """Every router on every scenario and seed."""
    return {"runs": lambda: [asdict(row) for row in result.comparison.rows]}


def drawers(result: Any) -> dict[str, Callable[[], Figure]]:
    """Each scenario's routers by each figure."""
    names = result.comparison.scenarios
    return {f"{name} {figure}": partial(bars, result.comparison, name, figure) for name in names for figure in FIGURES}


def write_comparison(comparison: RouteComparison, verdicts: list[Verdict], folder: str | Path) -> Path:
    """Write everything; returns the report."""
    import polars as pl

    with folder_written_whole(folder, ("comparison.*", "report.html")) as temporary:
        frame = pl.DataFrame([asdict(row) for row in comparison.rows])
        write_frame(temporary / "comparison.csv", frame)
        write_frame(temporary / "comparison.parquet", frame)
        everything = comparison.to_dict() | {"goals": words.goal_rows(verdicts)}
        write_text(temporary / "comparison.json", json.dumps(everything, indent=1))
        _write_report(comparison, verdicts, temporary / "report.html")
    return Path(folder) / "report.html"


def _write_report(comparison: RouteComparison, verdicts: list[Verdict], path: Path) -> None:
    names = list(comparison.scenarios)
    seeds = len({row.seed for row in comparison.rows})
    met, still_open = (sum(verdict.word == word for verdict in verdicts) for word in ("yes", "open"))
    goals = f"{met} of {len(verdicts)}" + (f", {still_open} open" if still_open else "")
    blocks: list[Block] = [Card("goals met", goals)] if verdicts else []
    blocks.append(Section("Every router in every scenario", [Plot("overview", lambda: overview(comparison), "short")]))
    for number, name in enumerate(names):
        drawn = {f"{figure}_{number}": partial(bars, comparison, name, figure) for figure in FIGURES}
        rows = Table(words.scenario_rows(comparison, name), caption=words.notes(comparison, name))
        blocks.append(Section(f"{name}: {words.about(comparison, name)}", [*plots(drawn), rows]))
    blocks.append(Section("Goals", [Table(words.goal_rows(verdicts))]))
    lede = (
        f"Scenarios: {len(names)}. Held-out seeds: {seeds}. Every router gets the same requests. "
        "Differences are paired by seed, with 95 % intervals."
    )
    scenario = "\n".join(f"# {name}\n{dump(one)}" for name, one in comparison.scenarios.items())
    write_page(path, f"{len(comparison.contenders)} routers compared", blocks, lede=lede, scenario=scenario)


def overview(comparison: RouteComparison) -> Figure:
    """A heat map: the change of the mean E2E latency against the best heuristic of each scenario, in per cent."""
    scenarios, names = list(comparison.scenarios), [one.name for one in comparison.contenders]
    best = {scenario: comparison.best_heuristic(scenario) for scenario in scenarios}

    def change(scenario: str, name: str) -> float:
        base = comparison.mean(scenario, best[scenario], "e2e_mean_s")
        return round(100 * (comparison.mean(scenario, name, "e2e_mean_s") / base - 1), 1)

    cells = [[change(scenario, name) for scenario in scenarios] for name in names]
    heat = {
        "type": "heatmap", "x": scenarios, "y": names, "z": cells, "zmin": -25, "zmid": 0, "zmax": 25,
        "text": [[f"{value:+z.0f}" for value in row] for row in cells], "texttemplate": "%{text}",
        "colorscale": [[0, "#2F6FB5"], [0.5, "#F4F6F8"], [1, "#C8493F"]], "showscale": False, "xgap": 1, "ygap": 1,
        "hovertemplate": "%{y} on %{x}: %{z:+.1f} %<extra></extra>",
    }  # fmt: skip
    title, height = "Mean E2E latency against the best heuristic, %", 160 + 26 * len(names)
    axes = {"xaxis": {"tickangle": 40, "ticks": ""}, "yaxis": {"autorange": "reversed", "ticks": ""}}
    return look.figure([heat], title, height, {"l": 150, "r": 60, "b": 110}, **axes)


FIGURES = {"e2e_mean_s": "mean E2E latency", "ttft_p99_s": "P99 TTFT"}


def bars(comparison: RouteComparison, scenario: str, figure: str) -> Figure:
    """One bar per router, the fastest at the top, with the seeds as dots."""
    roles = {one.name: one.role for one in comparison.contenders}
    names = words.ranked(comparison, scenario)[::-1]
    means = [comparison.mean(scenario, name, figure) for name in names]
    seeds = [(value, name) for name in names for value in comparison.values(scenario, name, figure)]
    bars = {
        "type": "bar", "orientation": "h", "y": names, "x": means, "showlegend": False,
        "marker": {"color": [COLOURS[roles[name]] for name in names]},
        "hovertemplate": "%{y}: %{x:.4g} s<extra></extra>",
    }  # fmt: skip
    dots = {
        "type": "scatter", "mode": "markers", "x": [value for value, _ in seeds], "y": [name for _, name in seeds],
        "marker": {"color": "#6B7A8C", "size": 5}, "showlegend": False,
        "hovertemplate": "one seed: %{x:.4g} s<extra></extra>",
    }  # fmt: skip
    x = look.AXIS | {"title": {"text": "seconds"}, "rangemode": "tozero"}
    return look.figure([bars, dots], FIGURES[figure], 420, {"l": 120}, xaxis=x, yaxis={"automargin": True})
