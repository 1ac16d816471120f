"""Latency against load: how it rises towards the capacity, with the SLO's line and the capacity marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

from gnomon.report.serving_figures import BLUE, GREEN, LATENCIES, ORANGE, RED, plot_layout

Figure = dict[str, Any]
STATISTICS = {"p50": ("median", BLUE), "p90": ("P90", GREEN), "p99": ("P99", ORANGE)}


def load_figure(
    name: str,
    loads: Sequence[float],
    latencies: Mapping[str, Sequence[float | None]],
    *,
    target: float | None,
    capacity: float | None,
    load: float | None,
) -> Figure:
    """One latency of `LATENCIES` at each load; `target` is its limit, `load` where the reader stands."""
    known = [value for values in latencies.values() for value in values if value is not None]
    shown, factor = ("ms", 1e3) if known and min(known) < 1 else ("s", 1.0)
    data = [
        {"type": "scatter", "mode": "lines+markers", "name": STATISTICS[statistic][0], "x": list(loads),
         "y": [None if value is None else float(f"{value * factor:.5g}") for value in values],
         "line": {"color": STATISTICS[statistic][1], "width": 2}, "marker": {"size": 5},
         "hovertemplate": f"{STATISTICS[statistic][0]} %{{y:.4g}} {shown}<extra></extra>"}
        for statistic, values in latencies.items()
    ]  # fmt: skip
    drawn = plot_layout(
        f"{LATENCIES[name]} against load",
        {"title": {"text": "requests per second"}, "rangemode": "tozero"},
        {"title": {"text": shown}, "type": "log", "dtick": 1},
    )
    drawn |= {"showlegend": True, "shapes": [], "annotations": []}
    if target is not None:
        _line(drawn, "y", target * factor, "SLO", RED, "dash")
    if capacity:
        _line(drawn, "x", capacity, f"capacity {capacity:.3g}/s", RED, "dot")
    if load is not None:
        _line(drawn, "x", load, "now", "#4A5565", "solid")
    return {"data": data, "layout": drawn}


def _line(drawn: Figure, axis: str, at: float, words: str, colour: str, dash: str) -> None:
    """A line across the plot with words at its end."""
    other = "y" if axis == "x" else "x"
    drawn["shapes"].append(
        {"type": "line", f"{axis}0": at, f"{axis}1": at, f"{other}0": 0, f"{other}1": 1, f"{other}ref": "paper",
         "line": {"color": colour, "width": 1.5 if dash != "solid" else 1, "dash": dash}}
    )  # fmt: skip
    place = {"x": at, "y": 1, "yref": "paper", "xanchor": "right", "yanchor": "top", "textangle": -90}
    if axis == "y":  # The axis is logarithmic, and annotations are placed by the exponent.
        place = {"x": 0.01, "xref": "paper", "y": log10(at), "xanchor": "left", "yanchor": "bottom"}
    drawn["annotations"].append(
        {**place, "text": words, "showarrow": False, "font": {"color": colour, "size": 11}}
    )  # fmt: skip
