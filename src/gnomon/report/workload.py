"""A workload as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gnomon.core.files import write_text
from gnomon.workload.describe import gaps_s
from gnomon.workload.requests import Requests

# Enough points for a smooth curve, few enough for a small page.
CURVE_POINTS = 500


def write_page(requests: Requests, path: str | Path, title: str) -> Path:
    """Distribution functions of the lengths and gaps, arrivals over time, prompt against output."""
    from plotly.graph_objects import Bar, Scatter, Scattergl
    from plotly.subplots import make_subplots

    figure = make_subplots(2, 2, subplot_titles=("Lengths", "Arrivals", "Prompt and output", "Gaps between arrivals"))
    for name, values in (("prompt", requests.prompt_tokens), ("output", requests.output_tokens)):
        figure.add_trace(Scatter(**_curve(values), name=name, mode="lines"), 1, 1)
    gaps = gaps_s(requests)
    if len(gaps):
        counts, edges = np.histogram(requests.arrival_s, bins=min(200, max(10, len(requests) // 50)))
        per_second = counts / np.diff(edges)
        middles = (edges[1:] + edges[:-1]) / 2
        figure.add_trace(Bar(x=middles.round(3).tolist(), y=per_second.round(3).tolist(), name="requests/s"), 1, 2)
        figure.add_trace(Scatter(**_curve(gaps), name="gap", mode="lines"), 2, 2)
    some = np.linspace(0, len(requests) - 1, min(len(requests), 5000)).astype(int)
    dots = {"size": 3, "opacity": 0.4}
    figure.add_trace(
        Scattergl(
            x=requests.prompt_tokens[some].tolist(),
            y=requests.output_tokens[some].tolist(),
            mode="markers",
            marker=dots,
            name="requests",
        ),
        2,
        1,
    )
    labels = (
        ("tokens", "share"),
        ("seconds", "requests / s"),
        ("prompt tokens", "output tokens"),
        ("seconds", "share"),
    )
    for (row, column), (x, y) in zip(((1, 1), (1, 2), (2, 1), (2, 2)), labels, strict=True):
        figure.update_xaxes(title_text=x, row=row, col=column, type="linear" if x == "seconds" and row == 1 else "log")
        figure.update_yaxes(title_text=y, row=row, col=column, type="log" if row == 2 and column == 1 else "linear")
    figure.update_layout(title=title, template="plotly_white", height=800, showlegend=True)
    return write_text(
        path, figure.to_html(include_plotlyjs=True, full_html=True, div_id="workload", config={"responsive": True})
    )


def _curve(values: Any) -> dict[str, list[float]]:
    """The empirical distribution function at evenly spaced shares."""
    shares = np.linspace(0, 1, CURVE_POINTS)
    return {"x": np.quantile(values, shares).tolist(), "y": shares.round(4).tolist()}
