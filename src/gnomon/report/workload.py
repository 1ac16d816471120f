"""A workload as one self-contained HTML page."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.report import page
from gnomon.report.blocks import Figure, Section, plots
from gnomon.report.look import COLOURS, axis, dots, line, plot, short
from gnomon.workload.describe import gaps_s, hits_by_cache_size
from gnomon.workload.requests import Requests

# Enough points for a smooth curve, few enough for a small page.
CURVE_POINTS = 500
MOST_DOTS = 5000


def write_page(requests: Requests, path: str | Path, title: str) -> Path:
    drawn = plots(drawers(requests))
    return page.write_page(path, title, [Section("Workload", drawn)], lede=f"{len(requests):,} requests.")


def drawers(requests: Requests) -> dict[str, Callable[[], Figure]]:
    """The plots by name; those of arrivals only where there is more than one."""
    lengths = {"prompt": requests.prompt_tokens, "output": requests.output_tokens}
    gaps = gaps_s(requests)
    arrivals = {
        "arrivals": partial(_arrivals, requests),
        "gaps": partial(_distributions, "Gaps between arrivals", {"gap": gaps}, "seconds"),
    }
    return {
        "lengths": partial(_distributions, "Lengths", lengths, "tokens"),
        "both": partial(_dots, requests),
        **(arrivals if len(gaps) else {}),
        **({"prefixes": partial(_prefix_hits, requests)} if len(requests.prefix_hashes) else {}),
    }


def _prefix_hits(requests: Requests) -> Figure:
    rows = hits_by_cache_size(requests)
    sizes, rates = ([row[key] for row in rows] for key in ("cache_tokens", "hit_rate"))
    curve = {"type": "scatter", "mode": "lines+markers", "x": sizes, "y": rates, "line": {"color": COLOURS[0]}}
    axes = axis("tokens in the cache", type="log"), {"tickformat": ".0%", "rangemode": "tozero"}
    return plot([curve], "Prompt tokens found in a prefix cache", *axes)


def _distributions(title: str, samples: dict[str, Any], unit: str) -> Figure:
    """Empirical distribution functions at evenly spaced shares, on a logarithmic axis."""
    shares, hover = np.linspace(0, 1, CURVE_POINTS), f"%{{y:.1%}} at most %{{x:.4g}} {unit}<extra></extra>"
    data = [
        line(short(np.quantile(values, shares)), short(shares), colour, 2, name=name, hovertemplate=hover)
        for (name, values), colour in zip(samples.items(), COLOURS, strict=False)
    ]
    axes = axis(unit, type="log"), {"tickformat": ".0%"}
    return plot(data, title, *axes, showlegend=len(data) > 1, hovermode="closest")


def _arrivals(requests: Requests) -> Figure:
    counts, edges = np.histogram(requests.arrival_s, bins=min(200, max(10, len(requests) // 50)))
    bars = {
        "type": "bar", "x": short((edges[1:] + edges[:-1]) / 2), "y": short(counts / np.diff(edges)),
        "marker": {"color": COLOURS[0]}, "hovertemplate": "%{y:.4g}/s at %{x:.4g} s<extra></extra>",
    }  # fmt: skip
    return plot([bars], "Arrivals per second", axis("seconds"), {})


def _dots(requests: Requests) -> Figure:
    some = np.linspace(0, len(requests) - 1, min(len(requests), MOST_DOTS)).astype(int)
    x, y = requests.prompt_tokens[some].tolist(), requests.output_tokens[some].tolist()
    hover, mark = "%{x} prompt, %{y} output tokens<extra></extra>", {"size": 3, "opacity": 0.4, "color": COLOURS[0]}
    drawn = dots(x, y, "", marker=mark, hovertemplate=hover) | {"type": "scattergl"}
    axes = [axis(f"{side} tokens", type="log") for side in ("prompt", "output")]
    return plot([drawn], "Prompt and output", *axes, hovermode="closest")
