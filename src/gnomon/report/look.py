"""The look that plotly figures (plain dictionaries) share: colours, letters, axes."""

import math
from typing import Any

from gnomon.core.arrays import Floats

DARK = "#1F2A37"
BLUE, ORANGE, GREEN, RED, GREY = "#2F6FB5", "#E08A2E", "#3E9B6E", "#C8493F", "#8A94A3"
COLOURS = (BLUE, ORANGE, GREEN, RED, "#7B61A8", GREY, "#B58A2F", "#2FA0B5", "#D46A9F", "#6B8E23",
           "#8C564B", DARK, "#9ECAE1", "#FDBF6F", "#B2DF8A", "#FB9A99")  # fmt: skip
"""Of lines side by side."""
LOOK: dict[str, Any] = {
    "font": {"family": "Inter, system-ui, sans-serif", "size": 12, "color": "#4A5565"},
    "plot_bgcolor": "#FFFFFF",
    "paper_bgcolor": "#FFFFFF",
}
"""Of a layout."""
ROOM = {"l": 58, "r": 16, "t": 44, "b": 44}  # Around a plot, in pixels.
AXIS = {"gridcolor": "#EBEEF2", "zeroline": False, "linecolor": "#C5CCD6", "ticks": "outside", "tickcolor": "#C5CCD6"}
LOG_AXIS: dict[str, Any] = AXIS | {"type": "log", "dtick": "D2", "tickformat": "~g"}
"""Logarithmic, with whole numbers at 1, 2 and 5: plotly would write single digits between powers of ten."""


def log_axis(least: float, most: float) -> dict[str, Any]:
    """A logarithmic axis over these values, with a margin; below a decade every step of the leading digit is labelled,
    so that there are always a few labels."""
    low, high = math.log10(least), math.log10(most)
    margin = max(0.05 * (high - low), 0.02)
    if high - low >= 1:
        return LOG_AXIS | {"range": [low - margin, high + margin]}
    ticks = _round_numbers(10 ** (low - margin), 10 ** (high + margin))
    return AXIS | {"type": "log", "range": [low - margin, high + margin], "tickvals": ticks,
                   "ticktext": [f"{value:g}" for value in ticks]}  # fmt: skip


def _round_numbers(least: float, most: float) -> list[float]:
    """About five round numbers between two."""
    step = 10 ** math.floor(math.log10((most - least) / 2))
    for factor in (5.0, 2.0, 1.0, 0.5, 0.2):
        first, last = math.ceil(least / (factor * step)), math.floor(most / (factor * step))
        if last - first >= 3:
            return [float(f"{number * factor * step:.6g}") for number in range(first, last + 1)]
    return [least, most]


TIME_LINE_AXIS = {
    "showgrid": True,
    "gridcolor": "#EEF1F4",
    "zeroline": False,
    "linecolor": "#C5CCD6",
    "ticks": "outside",
}
TIME_LINE: dict[str, Any] = LOOK | {
    "barmode": "overlay",
    "bargap": 0,
    "font": {"family": "Inter, system-ui, sans-serif", "size": 12, "color": "#2B3440"},
    "hoverlabel": {"bgcolor": "#FFFFFF", "bordercolor": "#C5CCD6", "font": {"size": 12}},
    "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
}
"""Of bars over time, with curves below."""


def slo_line(at: float, **label: Any) -> dict[str, Any]:
    """The line of a limit across a plot, from below to above, with its name; `label` says where that stands."""
    named = {"text": "SLO", "textangle": 0, "font": {"color": RED, "size": 11}} | label
    return rule("x", at, RED) | {"label": named}


def line(x: Any, y: Any, colour: str, width: float = 1.6, **more: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": {"color": colour, "width": width}} | more


def bars(x: Any, y: Any, colour: Any, **more: Any) -> dict[str, Any]:
    return {"type": "bar", "orientation": "h", "x": x, "y": y, "marker": {"color": colour}} | more


def dots(x: Any, y: Any, colour: Any, size: float = 9, **more: Any) -> dict[str, Any]:
    """Points; `more` as plotly calls it."""
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": {"color": colour, "size": size}} | more


def heat(
    x: Any, y: Any, z: Any, text: Any, colours: tuple[str, str, str], hover: str, **more: Any
) -> dict[str, Any]:  # fmt: skip
    """Cells with words in them, coloured from the least to the most; `said` when a cell is pointed at."""
    scale = [[0, colours[0]], [0.5, colours[1]], [1, colours[2]]]
    return {"type": "heatmap", "x": x, "y": y, "z": z, "text": text, "texttemplate": "%{text}", "colorscale": scale,
            "showscale": False, "hovertemplate": hover} | more  # fmt: skip


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with a title, to go over another; `more` as plotly calls it."""
    return {"title": {"text": title}} | more


def lane(low: float, high: float, title: str, **more: Any) -> dict[str, Any]:
    """The axis upwards of a curve below bars over time, between two shares of the height."""
    return TIME_LINE_AXIS | {"domain": [low, high], "title": {"text": title}, "fixedrange": True} | more


def rule(axis: str, at: float, colour: str, dash: str = "dash", width: float = 1.5) -> dict[str, Any]:
    """A line across the plot where an axis has a value."""
    other = "y" if axis == "x" else "x"
    ends = {f"{axis}0": at, f"{axis}1": at, f"{other}0": 0, f"{other}1": 1, f"{other}ref": "paper"}
    return {"type": "line", "line": {"color": colour, "width": width, "dash": dash}, **ends}


def words(text: str, colour: str) -> dict[str, Any]:
    """Of a line across, at its beginning."""
    return {"text": text, "font": {"color": colour, "size": 11}, "padding": 2, "textposition": "start",
            "yanchor": "bottom"}  # fmt: skip


def note(x: float, y: float, text: str, colour: str, size: int = 11, **more: Any) -> dict[str, Any]:
    """Words at a place: `y` from the foot of the plot (0) to its head (1)."""
    font = {"size": size, "color": colour}
    return {"x": x, "y": y, "yref": "paper", "text": text, "showarrow": False, "font": font} | more


def figure(data: list[Any], named: str, height: int, margin: dict[str, int], **layout: Any) -> dict[str, Any]:
    """Traces in the look that all figures share, with a title and room for labels (`margin`: what is not usual)."""
    own = {"title": title(named), "height": height, "margin": ROOM | margin}
    return {"data": data, "layout": LOOK | own | layout}


def title(text: str) -> dict[str, Any]:
    return {
        "text": text, "x": 0, "xref": "container", "xanchor": "left", "pad": {"l": 8},
        "font": {"size": 14, "color": DARK},
    }  # fmt: skip


# Labels that neither turn nor hide need no measuring, which is half of what drawing a small plot takes.
_AXIS = AXIS | {"tickangle": 0, "ticklabeloverflow": "allow", "automargin": False}


def plot_layout(title: str, x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    """The look that all figures of serving share."""
    return LOOK | {
        "title": {"text": title, "x": 0, "xref": "container", "xanchor": "left", "pad": {"l": 8, "t": 4},
                  "y": 1, "yref": "container", "yanchor": "top", "font": {"size": 14, "color": "#1F2A37"}},
        "xaxis": _AXIS | x,
        "yaxis": _AXIS | y,
        "margin": ROOM,
        "height": 300,
        "hovermode": "x unified",
        "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom"},
        "showlegend": False,
    }  # fmt: skip


def plot(data: list[Any], title: str, x: dict[str, Any], y: dict[str, Any], **layout: Any) -> dict[str, Any]:
    return {"data": data, "layout": plot_layout(title, x, y) | layout}


def time_lines(
    title: str, x: Floats, lines: list[tuple[str, Floats, str]], y: dict[str, Any], unit: str = "seconds",
    hover: str = ".4g",
) -> dict[str, Any]:  # fmt: skip
    """Several quantities over time: (name, values, colour) each."""
    data = [
        line(short(x), [None if value != value else value for value in short(values)], colour, name=name,
             hovertemplate=f"{name} %{{y:{hover}}}<extra></extra>")
        for name, values, colour in lines
    ]  # fmt: skip
    return plot(data, title, axis(unit), {"rangemode": "tozero"} | y, showlegend=len(lines) > 1)


def short(values: Floats) -> list[float]:
    """Five significant digits: enough for a screen, half the bytes."""
    return [float(f"{value:.5g}") for value in values.tolist()]
