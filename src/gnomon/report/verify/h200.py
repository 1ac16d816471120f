"""Measured and simulated CDFs over each other, as one SVG picture without a plotting library."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.files import write_text
from gnomon.verify.h200 import TOLERANCES, Comparison

WIDTH, HEIGHT, MARGIN, LABEL = 230, 120, 14, 26
MEASURED, SIMULATED = "#222222", "#e4572e"


def write_cdfs(found: list[Comparison], path: Path) -> Path:
    """One row per run, one column per metric; black is measured, the coloured dashes are simulated."""
    width = len(TOLERANCES) * WIDTH + MARGIN
    height = len(found) * HEIGHT + LABEL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="10">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{MARGIN}" y="16" fill="{MEASURED}">measured</text>',
        f'<text x="{MARGIN + 60}" y="16" fill="{SIMULATED}">simulated (dashed)</text>',
    ]
    for row, one in enumerate(found):
        for column, metric in enumerate(TOLERANCES):
            measured = getattr(one.measured, metric)
            simulated = np.concatenate([getattr(latencies, metric) for latencies in one.simulated])
            title = f"{one.name}: {metric.upper()}"
            parts.append(_panel(column * WIDTH + MARGIN, row * HEIGHT + LABEL, title, measured, simulated))
    parts.append("</svg>\n")
    return write_text(path, "\n".join(parts))


def _panel(x: float, y: float, title: str, measured: Floats, simulated: Floats) -> str:
    inner_width, inner_height = WIDTH - 2 * MARGIN, HEIGHT - 44
    largest = float(max(np.percentile(measured, 99.8), np.percentile(simulated, 99.8)))
    lines = [
        f'<g transform="translate({x},{y})"><text x="0" y="10">{title}</text>',
        f'<rect x="0" y="14" width="{inner_width}" height="{inner_height}" fill="none" stroke="#ccc"/>',
        f'<text x="0" y="{inner_height + 25}" fill="#777">0</text>',
        f'<text x="{inner_width}" y="{inner_height + 25}" fill="#777" text-anchor="end">{largest * 1e3:.4g} ms</text>',
    ]
    for values, colour, dash in ((measured, MEASURED, ""), (simulated, SIMULATED, ' stroke-dasharray="4 3"')):
        shares = np.linspace(0.0, 1.0, 101)
        at = np.minimum(np.quantile(values, shares) / largest, 1.0) * inner_width
        points = " ".join(f"{a:.1f},{14 + inner_height * (1 - s):.1f}" for a, s in zip(at, shares, strict=True))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4"{dash}/>')
    return "\n".join([*lines, "</g>"])
