"""Lines over time, and the look that all figures of serving share."""

from __future__ import annotations

from typing import Any

from gnomon.core.arrays import Floats
from gnomon.report import look

Figure = dict[str, Any]

# Labels that neither turn nor hide need no measuring, which is half of what drawing a small plot takes.
_AXIS = look.AXIS | {"tickangle": 0, "ticklabeloverflow": "allow", "automargin": False}


def plot_layout(title: str, x: Figure, y: Figure) -> Figure:
    """The look that all figures of serving share."""
    return look.LOOK | {
        "title": {"text": title, "x": 0, "xref": "container", "xanchor": "left", "pad": {"l": 8, "t": 4},
                  "y": 1, "yref": "container", "yanchor": "top", "font": {"size": 14, "color": "#1F2A37"}},
        "xaxis": _AXIS | x,
        "yaxis": _AXIS | y,
        "margin": {"l": 58, "r": 16, "t": 44, "b": 44},
        "height": 300,
        "hovermode": "x unified",
        "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom"},
        "showlegend": False,
    }  # fmt: skip


def time_lines(
    title: str,
    x: Floats,
    lines: list[tuple[str, Floats, str]],
    y_axis: Figure,
    unit: str = "seconds",
    hover: str = ".4g",
) -> Figure:
    """Several quantities over time: (name, values, colour) each."""
    data = [
        {"type": "scatter", "mode": "lines", "name": name, "x": short(x), "y": _gaps(short(y)),
         "line": {"color": colour, "width": 1.6}, "hovertemplate": f"{name} %{{y:{hover}}}<extra></extra>"}
        for name, y, colour in lines
    ]  # fmt: skip
    layout = plot_layout(title, {"title": {"text": unit}}, {"rangemode": "tozero"} | y_axis)
    return {"data": data, "layout": layout | {"showlegend": len(lines) > 1}}


def _gaps(values: list[float]) -> list[float | None]:
    """Nothing is drawn where nothing is known."""
    return [None if value != value else value for value in values]


def short(values: Floats) -> list[float]:
    """Five significant digits: enough for a screen, half the bytes."""
    return [float(f"{value:.5g}") for value in values.tolist()]
