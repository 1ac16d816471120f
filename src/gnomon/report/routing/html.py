"""A comparison of routers as one self-contained HTML page."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from gnomon.core.config import dump
from gnomon.report import look
from gnomon.report.page import table, write_whole_page
from gnomon.report.routing import text as words
from gnomon.routing.compare import RouteComparison
from gnomon.routing.goals import Verdict

COLOURS = {"policy": "#B4512B", "teacher": "#D9A441", "heuristic": "#5B7C99", "bound": "#B9C2CC"}


def write_route_report(comparison: RouteComparison, verdicts: list[Verdict], path: str | Path) -> Path:
    """Write the page; it needs no network and no other file."""
    names = list(comparison.scenarios)
    drawn: dict[str, Any] = {"overview": overview(comparison)}
    drawn |= {f"{figure}_{i}": bars(comparison, name, figure) for i, name in enumerate(names) for figure in FIGURES}
    seeds = len({row.seed for row in comparison.rows})
    met, still_open = (sum(verdict.word == word for verdict in verdicts) for word in ("yes", "open"))
    goals = f"{met} of {len(verdicts)}" + (f", {still_open} open" if still_open else "")
    parts = {
        "@TITLE@": f"{len(comparison.contenders)} routers compared",
        "@LEDE@": html.escape(
            f"Scenarios: {len(names)}. Held-out seeds: {seeds}. Every router gets the same requests. "
            "Differences are paired by seed, with 95 % intervals."
        ),
        "@CARDS@": f"<div class=card><span>goals met</span><b>{goals}</b></div>" if verdicts else "",
        "@PLOTS@": "<section><h2>Every router in every scenario</h2><div id=overview class=plot></div></section>"
        + "".join(_section(comparison, name, i) for i, name in enumerate(names)),
        "@REPLICAS@": f"<section><h2>Goals</h2>{table(words.goal_rows(verdicts))}</section>" if verdicts else "",
        "@SCENARIO@": html.escape("\n".join(f"# {name}\n{dump(one)}" for name, one in comparison.scenarios.items())),
    }
    return write_whole_page(path, parts, drawn)


def overview(comparison: RouteComparison) -> dict[str, Any]:
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
    layout = look.LOOK | {
        "title": look.title("Mean E2E latency against the best heuristic, %"),
        "margin": {"l": 150, "r": 60, "t": 44, "b": 110},
        "height": 160 + 26 * len(names),
        "xaxis": {"tickangle": 40, "ticks": ""},
        "yaxis": {"autorange": "reversed", "ticks": ""},
    }
    return {"data": [heat], "layout": layout}


FIGURES = {"e2e_mean_s": "mean E2E latency", "ttft_p99_s": "P99 TTFT"}


def _section(comparison: RouteComparison, scenario: str, number: int) -> str:
    plots = "".join(f"<div id={figure}_{number} class=plot style='min-height:420px'></div>" for figure in FIGURES)
    rows = table(words.scenario_rows(comparison, scenario))
    rows += f"<p class=more>{html.escape(words.notes(comparison, scenario))}</p>"
    head = html.escape(f"{scenario}: {words.about(comparison, scenario)}")
    return f"<section><h2>{head}</h2><div class=plots>{plots}</div>{rows}</section>"


def bars(comparison: RouteComparison, scenario: str, figure: str) -> dict[str, Any]:
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
    layout = {
        "title": {"text": FIGURES[figure], "x": 0, "font": {"size": 14}},
        "margin": {"l": 120, "r": 12, "t": 36, "b": 40},
        "font": look.LOOK["font"],
        "xaxis": {"title": {"text": "seconds"}, "rangemode": "tozero", "gridcolor": "#EEF1F4"},
        "yaxis": {"automargin": True},
        "plot_bgcolor": "#FFFFFF",
        "paper_bgcolor": "#FFFFFF",
    }
    return {"data": [bars, dots], "layout": layout}
