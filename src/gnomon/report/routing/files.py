"""The folder of a comparison of routers: report.html, comparison.csv, comparison.parquet, comparison.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from gnomon.core import units
from gnomon.core.config import dump
from gnomon.core.files import folder_written_whole, write_frame, write_text
from gnomon.report import look
from gnomon.report.blocks import Block, Card, Figure, Plot, Section, Table, plots
from gnomon.report.page import write_page
from gnomon.routing.compare import LEAST_OUTSTANDING, Paired, RouteComparison, Verdict

COLUMNS = {
    "E2E mean": "e2e_mean_s",
    "E2E P50": "e2e_p50_s",
    "E2E P99": "e2e_p99_s",
    "TTFT mean": "ttft_mean_s",
    "TTFT P50": "ttft_p50_s",
    "TTFT P99": "ttft_p99_s",
}


GOAL_NOTE = (
    "yes or NO: with the whole interval. open: the goal lies inside the interval; more seeds (--num-seeds) tell."
)


def ranked(comparison: RouteComparison, scenario: str) -> list[str]:
    """Names of the contenders, the fastest first."""
    names = [one.name for one in comparison.contenders]
    return sorted(names, key=lambda name: comparison.mean(scenario, name, "e2e_mean_s"))


def comparison_blocks(comparison: RouteComparison, verdicts: list[Verdict]) -> list[Block]:
    """A table per scenario, then the goals."""
    blocks: list[Block] = [
        Table(
            scenario_rows(comparison, scenario),
            f"{scenario}: {about(comparison, scenario)}",
            notes(comparison, scenario),
        )
        for scenario in comparison.scenarios
    ]
    return [*blocks, *([Table(goal_rows(verdicts), "Goals", GOAL_NOTE)] if verdicts else [])]


def scenario_rows(comparison: RouteComparison, scenario: str) -> list[dict[str, Any]]:
    """One row per contender: figures as means over the seeds, differences paired by seed."""
    roles = {one.name: one.role for one in comparison.contenders}
    best = comparison.best_heuristic(scenario)
    rows = []
    for name in ranked(comparison, scenario):
        mark = {"policy": " *", "teacher": " (teacher)", "bound": " (knows lengths)", "heuristic": ""}[roles[name]]
        row: dict[str, Any] = {"router": name + mark}
        row |= {title: units.seconds(comparison.mean(scenario, name, figure)) for title, figure in COLUMNS.items()}
        row["requests/s"] = f"{comparison.mean(scenario, name, 'requests_per_s'):.4g}"
        row["imbalance"] = f"{comparison.mean(scenario, name, 'imbalance'):.2f}"
        if roles.get(LEAST_OUTSTANDING) == "heuristic":
            row["vs least_outstanding"] = interval(comparison.against(scenario, name, LEAST_OUTSTANDING))
            row["P99 TTFT vs least_outstanding"] = interval(
                comparison.against(scenario, name, LEAST_OUTSTANDING, "ttft_p99_s")
            )
        row[f"vs {best}"] = interval(comparison.against(scenario, name, best))
        rows.append(row)
    return rows


MARKS = {
    "policy": "* a learned policy.",
    "teacher": "(teacher): the rule that policies learn from.",
    "bound": "(knows lengths): knows every output length, which no real router does; not the best possible.",
}


def notes(comparison: RouteComparison, scenario: str) -> str:
    """What the marks mean, and which routers gave the same digits."""
    roles = {one.role for one in comparison.contenders}
    groups: dict[tuple[float, ...], list[str]] = {}
    for name in ranked(comparison, scenario):
        groups.setdefault(tuple(comparison.values(scenario, name, "e2e_mean_s")), []).append(name)
    alike = [" and ".join(names) for names in groups.values() if len(names) > 1]
    same = [f"{names} sent every request to the same replica here." for names in alike]
    return " ".join([*(words for role, words in MARKS.items() if role in roles), *same])


def about(comparison: RouteComparison, scenario: str) -> str:
    """The scenario in a line."""
    given = comparison.scenarios[scenario]
    replicas = sum(pool.num_replicas for pool in given.all_pools())
    seeds = len({row.seed for row in comparison.rows if row.scenario == scenario})
    finished = [row.finished for row in comparison.rows if row.scenario == scenario]
    return f"{given.model} on {replicas} replicas, {max(finished):,} requests x {seeds} seeds"


def interval(difference: Paired) -> str:
    """A relative difference, with half its 95 % interval."""
    return f"{difference.mean:+z.1%} ± {difference.high - difference.mean:.1%}"


def goal_rows(verdicts: list[Verdict]) -> list[dict[str, Any]]:
    """One row per goal."""
    return [
        {
            "policy": one.policy,
            "scenario": one.goal.scenario,
            "goal": one.goal.words,
            "against": one.baseline,
            "measured": f"{one.measured.mean:+z.1%}",
            "95 % interval": f"{one.measured.low:+z.1%} to {one.measured.high:+z.1%}",
            "met": one.word,
        }
        for one in verdicts
    ]


COLOURS = {"policy": "#B4512B", "teacher": "#D9A441", "heuristic": "#5B7C99", "bound": "#B9C2CC"}


def text(result: Any) -> list[Block]:
    """A table per scenario, then the goals."""
    return comparison_blocks(result.comparison, result.goals)


def data(result: Any) -> dict[str, Any]:
    """Every row, the contenders, the scenarios and the goals."""
    return dict(result.comparison.to_dict() | {"goals": goal_rows(result.goals)})


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
        everything = comparison.to_dict() | {"goals": goal_rows(verdicts)}
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
        rows = Table(scenario_rows(comparison, name), caption=notes(comparison, name))
        blocks.append(Section(f"{name}: {about(comparison, name)}", [*plots(drawn), rows]))
    blocks.append(Section("Goals", [Table(goal_rows(verdicts))]))
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
    names = ranked(comparison, scenario)[::-1]
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
