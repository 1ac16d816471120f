"""A search's answer as plotly figures (plain dictionaries): what each configuration gives and costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gnomon.core import units
from gnomon.report import look
from gnomon.report.blocks import Figure
from gnomon.report.search.text import gpus, latency_name
from gnomon.search.answers import is_on_front, latency_axes
from gnomon.search.evaluate import Record
from gnomon.search.objective import UNITS, shown
from gnomon.search.study import Found


def drawers(found: Found) -> dict[str, Callable[[], Figure]]:
    """One scatter per latency, with the front drawn through it; a point's `customdata` is its place in the ranking."""
    names = ("ttft_front", "tbt_front")
    return {name: partial(_scatter, found, axis) for name, axis in zip(names, latency_axes(found.search), strict=True)}


def _scatter(found: Found, axis: str) -> Figure:
    objective = found.search.objective
    ranked = [(number, one) for number, one in enumerate(found.ranked) if one.figures.get(axis) is not None]
    groups: dict[str, list[tuple[int, Record]]] = {}
    for number, one in ranked:
        apart = ", prefill and decode apart" if "layout" in one.overrides else ""
        name = f"{one.overrides['device']} {one.overrides['batching.policy']}{apart}"
        groups.setdefault(name, []).append((number, one))
    is_whole = found.search.strategy == "exhaustive"
    data = [_front_line([one for _, one in ranked], axis, objective, "front" if is_whole else "best of those measured")]
    for number, (name, members) in enumerate(groups.items()):
        data.append(
            {"type": "scatter", "mode": "markers", "name": name,
             "x": [_short((one.figures[axis] or 0.0) * 1e3) for _, one in members],
             "y": [_short(shown(objective, one.score or 0.0)) for _, one in members],
             "customdata": [number for number, _ in members],
             "text": [_hover(one) for _, one in members], "hovertemplate": "%{text}<extra></extra>",
             "marker": {"size": 9, "color": look.COLOURS[number % len(look.COLOURS)],
                        "line": {"width": 1, "color": "#fff"}}}
        )  # fmt: skip
    metric, _, statistic = axis.partition(" ")
    limit = getattr(found.search.slo, metric).get(statistic)
    values = [x for one in data[1:] for x in one["x"] if x > 0] + ([limit * 1e3] if limit is not None else [])
    x = look.log_axis(min(values), max(values)) if values else look.LOG_AXIS
    return look.figure(
        data, f"Against {latency_name(axis)} at capacity", 440, {"l": 62, "b": 90}, hovermode="closest",
        xaxis=x | {"title": {"text": f"{latency_name(axis)} (ms)"}},
        yaxis=look.AXIS | {"title": {"text": UNITS[objective]}},
        legend={"orientation": "h", "x": 0, "y": -0.18, "yanchor": "top"},
        shapes=[] if limit is None else [look.slo_line(limit * 1e3, textposition="end", xanchor="right", padding=3)],
    )  # fmt: skip


def _front_line(ranked: list[Record], axis: str, objective: Any, name: str) -> Figure:
    """The configurations that nothing beats in both respects, joined."""
    points = [(-(one.score or 0.0), one.figures[axis] or 0.0) for one in ranked]
    chosen = sorted(one for one, is_on in zip(points, is_on_front(points), strict=True) if is_on)
    return {
        "type": "scatter", "mode": "lines", "name": name, "hoverinfo": "skip",
        "x": [_short(latency * 1e3) for _, latency in chosen],
        "y": [_short(shown(objective, -worth)) for worth, _ in chosen],
        "line": {"color": look.DARK, "width": 1.4, "dash": "dot"},
    }  # fmt: skip


def _hover(one: Record) -> str:
    lines = [f"<b>{one.label}</b>", f"{one.capacity_per_s:.4g} requests/s on {gpus(one.num_gpus)}",
             f"${one.cost_per_hour:.2f}/h"]  # fmt: skip
    lines += [f"{latency_name(k)} {units.seconds(v)}" for k, v in one.figures.items() if v is not None]
    return "<br>".join(lines)


def _short(value: float) -> float:
    return float(f"{value:.5g}")
