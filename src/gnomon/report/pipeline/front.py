"""The Pareto front of a schedule search as a self-contained HTML page."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from gnomon.pipeline.schedule_search import Found
from gnomon.report.page import as_script, page, write_page


def front_figure(found: Found, unit: str) -> dict[str, Any]:
    """Every candidate by memory and time, the front joined by a line, the limit as a dashed one."""
    front = sorted((one for one in found.candidates if one.is_on_front), key=lambda one: one.memory)
    rest = [one for one in found.candidates if not one.is_on_front]
    traces = [
        {
            "type": "scatter",
            "mode": mode,
            "name": name,
            "x": [one.memory for one in members],
            "y": [one.total_time for one in members],
            "text": [one.name for one in members],
            "textposition": "top right",
            "textfont": {"size": 12, "color": "#2B3440"},
            "line": {"shape": "hv", "color": "#4C78A8", "width": 2},
            "marker": {"size": 10, "color": colour},
            "hovertemplate": "%{text}<br>%{x:.4g} " + unit + "<br>%{y:.5g}<extra></extra>",
        }
        for name, members, mode, colour in (
            ("front", front, "lines+markers+text", "#4C78A8"),
            ("others", rest, "markers", "#C5CCD6"),
        )
    ]
    shapes = []
    if found.limit is not None:
        line = {"color": "#E45756", "width": 2, "dash": "dash"}
        shapes.append(
            {"type": "line", "x0": found.limit, "x1": found.limit, "y0": 0, "y1": 1, "yref": "paper", "line": line}
        )
    axis = {"gridcolor": "#EEF1F4", "zeroline": False, "linecolor": "#C5CCD6", "ticks": "outside"}
    layout = {
        "height": 620,
        "margin": {"l": 70, "r": 30, "t": 30, "b": 60},
        "font": {"family": "Inter, system-ui, sans-serif", "size": 13, "color": "#2B3440"},
        "plot_bgcolor": "#FFFFFF",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "xaxis": axis | {"title": {"text": f"peak memory of a rank ({unit})"}},
        "yaxis": axis | {"title": {"text": "make-span"}},
        "shapes": shapes,
    }
    return {"data": traces, "layout": layout}


def write_front(found: Found, path: str | Path, unit: str) -> Path:
    """Write the figure as a page."""
    best = found.best
    heading = f"Best within the limit: {best.name}" if best else "No schedule fits the limit"
    plot = "<section><div id=front class='plot tall'></div></section>"
    data = as_script({"front": front_figure(found, unit)})
    return write_page(path, page({"@TITLE@": html.escape(heading), "@PLOTS@": plot, "@DATA@": data}))
