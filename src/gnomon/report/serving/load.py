"""Latency against load: how it rises towards the capacity, with the SLO's line and the capacity marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from gnomon.report import look
from gnomon.report.blocks import Figure
from gnomon.report.look import BLUE, GREEN, GREY, ORANGE, RED
from gnomon.report.serving.lines import plot_layout
from gnomon.search.headroom import Headroom
from gnomon.workload.slo import SloConfig

SHORT = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
STATISTICS = {"p50": ("median", BLUE), "p90": ("P90", GREEN), "p99": ("P99", ORANGE)}


def load_figure(
    name: str,
    loads: Sequence[float],
    latencies: Mapping[str, Sequence[float | None]],
    *,
    target: float | None,
    capacity: float,
    load: float | None,
    num_requests: int,
) -> Figure:
    """One latency (ttft, tpot or e2e) at each load, from runs of `num_requests`; `target` is its limit, `capacity` the
    highest load that meets all limits (0: none does), `load` where the reader stands."""
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
        f"{SHORT[name]} against load" if capacity else f"{SHORT[name]} against load: no load meets the SLO",
        {"title": {"text": f"requests per second, in runs of {num_requests:,}"}, "rangemode": "tozero"},
        {"title": {"text": shown}, **_log([value * factor for value in (*known, target) if value])},
    )
    end = max((*loads, capacity, load or 0.0))
    lines, notes = [], []
    if target is not None:
        lines.append(_line("y", target * factor, RED, "dash") | {"label": _words("SLO", RED)})
    if capacity:
        lines.append(_line("x", capacity, RED, "dot"))
        notes.append(_note(capacity, f"capacity {capacity:.3g}/s", RED, is_left=capacity > end / 2))
    if load is not None:
        is_left = load <= capacity or load > 0.9 * end
        # From above the name of the capacity, which it would cross.
        lines.append(_line("x", load, GREY, "solid") | {"y0": 0.09 if capacity else 0})
        notes.append(_note(load, "now", GREY, is_left=is_left, above=14 if capacity else 0))
    return {"data": data, "layout": drawn | {"showlegend": True, "shapes": lines, "annotations": notes}}


def load_drawers(room: Headroom, slo: SloConfig) -> dict[str, Callable[[], Figure]]:
    """The curves of a run's report, one per latency: names as in `figures`, with `load_` before them."""
    return {
        f"load_{name}": partial(
            load_figure, name, room.curve.loads, room.curve.seconds[name], target=getattr(slo, f"{name}_s"),
            capacity=room.capacity_per_s, load=room.load_per_s, num_requests=room.curve.num_requests,
        )
        for name in ("ttft", "tpot")
    }  # fmt: skip


def _log(values: Sequence[float]) -> Figure:
    """With room below the curves for words."""
    if not values:
        return {"type": "log"}
    axis = look.log_axis(min(values), max(values))
    low, high = axis["range"]
    return axis | {"range": [low - 0.2 * (high - low), high]}


def _line(axis: str, at: float, colour: str, dash: str) -> Figure:
    """A line across the plot."""
    other = "y" if axis == "x" else "x"
    line = {"color": colour, "width": 1.5 if dash != "solid" else 1, "dash": dash}
    ends = {f"{axis}0": at, f"{axis}1": at, f"{other}0": 0, f"{other}1": 1, f"{other}ref": "paper"}
    return {"type": "line", "line": line, **ends}


def _words(text: str, colour: str) -> Figure:
    """At the beginning of a line across."""
    return {"text": text, "font": {"color": colour, "size": 11}, "padding": 2, "textposition": "start",
            "yanchor": "bottom"}  # fmt: skip


def _note(at: float, text: str, colour: str, *, is_left: bool, above: int = 0) -> Figure:
    """Words beside a line upwards, below the curves, on the side where there is room."""
    return {"text": text, "showarrow": False, "x": at, "xanchor": "right" if is_left else "left", "y": 0,
            "yref": "paper", "yanchor": "bottom", "yshift": above, "font": {"color": colour, "size": 11}}  # fmt: skip
