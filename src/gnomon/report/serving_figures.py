"""The figures of a serving run as plain plotly dictionaries: the report embeds them, `Result.figures` wraps them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnomon.core import units
from gnomon.report.serving_series import MARKED_SHARES, Curve, TimeSeries, distribution, time_series
from gnomon.serving.metrics import Summary, request_times
from gnomon.serving.simulate import Run
from gnomon.serving.state import FINISHED, Floats

Figure = dict[str, Any]

BLUE, ORANGE, GREEN, RED, GREY = "#2F6FB5", "#E08A2E", "#3E9B6E", "#C8493F", "#8A94A3"
_AXIS = {"gridcolor": "#EBEEF2", "zeroline": False, "linecolor": "#C5CCD6", "ticks": "outside", "tickcolor": "#C5CCD6"}

# More than this from the median to the largest value, and only a logarithmic axis shows both.
_LOG_FROM = 30.0


def figures(run: Run, summary: Summary) -> dict[str, Figure]:
    """Every figure by its name, each with a title in its layout."""
    times, log = request_times(run), run.log
    done = run.cluster.requests.status == FINISHED
    rows = log.iterations[: log.used[0]]
    first = rows[rows["stage"] == 0]
    gaps = log.used[2]
    slo = run.scenario.slo
    start = float(run.cluster.requests.arrival_s.min())
    series = time_series(run, start, start + summary.duration_s)
    return {
        "ttft": _cdf("Time to first token", distribution(times.ttft_s[done]), target=slo.ttft_s),
        "tbt": _cdf("Time between tokens", distribution(log.gap_s[:gaps], log.gap_count[:gaps])),
        "tpot": _cdf("Time per output token", distribution(times.tpot_s[done]), target=slo.tpot_s),
        "e2e": _cdf("End to end", distribution(times.e2e_s[done]), target=slo.e2e_s),
        "queue": _queue(series),
        "rates": _rates(series),
        "tokens": _tokens(series),
        "kv": _kv(series, many=len(summary.replicas) > 1),
        "batch_size": _cdf("Batch size", distribution(first["size"].astype(np.float64)), unit="requests"),
        "batch_tokens": _cdf("Tokens per batch", distribution(first["tokens"].astype(np.float64)), unit="tokens"),
    }


def _layout(title: str, x: Figure, y: Figure) -> Figure:
    return {
        "title": {"text": title, "x": 0, "xref": "container", "xanchor": "left", "pad": {"l": 8},
                  "font": {"size": 14, "color": "#1F2A37"}},
        "xaxis": _AXIS | x,
        "yaxis": _AXIS | y,
        "margin": {"l": 58, "r": 16, "t": 44, "b": 44},
        "height": 300,
        "font": {"family": "Inter, system-ui, sans-serif", "size": 12, "color": "#4A5565"},
        "plot_bgcolor": "#FFFFFF",
        "paper_bgcolor": "#FFFFFF",
        "hovermode": "x unified",
        "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom"},
        "showlegend": False,
    }  # fmt: skip


def _cdf(title: str, curve: Curve, *, unit: str = "s", target: float | None = None) -> Figure:
    """A distribution function with its median, P90 and P99 marked, and the SLO's target as a line."""
    shown, factor = ("ms", 1e3) if unit == "s" and curve.x.size and curve.x[-1] < 2 else (unit, 1.0)
    is_log = bool(curve.x.size) and curve.x[-1] > _LOG_FROM * max(float(np.median(curve.x)), 1e-12)
    positive = curve.x > 0 if is_log else np.full(curve.x.size, True)
    x, y = curve.x[positive] * factor, curve.y[positive]
    marked = np.searchsorted(y, MARKED_SHARES) if y.size else np.empty(0, int)
    marked = marked[marked < y.size]
    data = [
        {"type": "scatter", "mode": "lines", "x": _short(x), "y": _short(y), "line": {"color": BLUE, "width": 2},
         "hovertemplate": f"%{{y:.2%}} at most %{{x:.4g}} {shown}<extra></extra>"},
        {"type": "scatter", "mode": "markers+text", "x": _short(x[marked]), "y": _short(y[marked]),
         "text": [f"P{100 * share:.0f}  {_value(value / factor, unit)}"
                  for share, value in zip(y[marked], x[marked], strict=True)],
         "textposition": [_side(x[i], x[-1], y[i]) for i in marked],
         "textfont": {"size": 11, "color": "#1F2A37"},
         "marker": {"color": BLUE, "size": 7}, "hoverinfo": "skip", "cliponaxis": False},
    ]  # fmt: skip
    layout = _layout(
        title,
        {"title": {"text": shown}, "type": "log" if is_log else "linear"},
        {"tickformat": ".0%", "range": [0, 1.12], "tickvals": [0, 0.25, 0.5, 0.75, 1]},
    )
    if target is not None:
        at = np.log10(target * factor) if is_log else target * factor
        layout["shapes"] = [
            {"type": "line", "x0": target * factor, "x1": target * factor, "y0": 0, "y1": 1, "yref": "paper",
             "line": {"color": RED, "width": 1.5, "dash": "dash"}}
        ]  # fmt: skip
        layout["annotations"] = [
            {"x": at, "y": 0.04, "yref": "paper", "text": "SLO", "showarrow": False, "xanchor": "left", "xshift": 4,
             "font": {"color": RED, "size": 11}}
        ]  # fmt: skip
    return {"data": data, "layout": layout}


def _side(x: float, largest: float, share: float) -> str:
    """Where a mark's label finds room beside the curve."""
    if x > 0.7 * largest:
        return "top left"
    return "top right" if share > 0.95 else "bottom right"


def _value(value: float, unit: str) -> str:
    return units.seconds(value) if unit == "s" else f"{value:,.4g}"


def _lines(title: str, x: Floats, lines: list[tuple[str, Floats, str]], y_axis: Figure, hover: str = ".4g") -> Figure:
    data = [
        {"type": "scatter", "mode": "lines", "name": name, "x": _short(x), "y": _short(y),
         "line": {"color": colour, "width": 1.6}, "hovertemplate": f"{name} %{{y:{hover}}}<extra></extra>"}
        for name, y, colour in lines
    ]  # fmt: skip
    layout = _layout(title, {"title": {"text": "seconds"}}, {"rangemode": "tozero"} | y_axis)
    return {"data": data, "layout": layout | {"showlegend": len(lines) > 1}}


def _queue(series: TimeSeries) -> Figure:
    lines = [("waiting", series.waiting, ORANGE), ("running", series.running, BLUE)]
    return _lines("Requests in the system", series.at_s, lines, {})


def _rates(series: TimeSeries) -> Figure:
    lines = [("arriving", series.arrivals_per_s, GREY), ("finishing", series.finished_per_s, BLUE)]
    return _lines("Requests per second", series.middle_s, lines, {})


def _tokens(series: TimeSeries) -> Figure:
    lines = [("prompt", series.prompt_tokens_per_s, ORANGE), ("output", series.output_tokens_per_s, BLUE)]
    return _lines("Tokens per second", series.middle_s, lines, {})


def _kv(series: TimeSeries, *, many: bool) -> Figure:
    lines = [("mean of replicas" if many else "in use", series.kv_mean, GREEN)]
    if many:
        lines.append(("fullest replica", series.kv_max, GREY))
    return _lines("KV cache in use", series.at_s, lines, {"tickformat": ".0%"}, hover=".1%")


def _short(values: Floats) -> list[float]:
    """Five significant digits: enough for a screen, half the bytes."""
    return [float(f"{value:.5g}") for value in values]
