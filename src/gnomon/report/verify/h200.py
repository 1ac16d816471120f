"""Measured and simulated runs: errors in a table, CDFs over each other in one SVG picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.files import write_text
from gnomon.report.blocks import Table
from gnomon.report.verify.told import Told
from gnomon.timing import HostConfig
from gnomon.verify.h200 import TOLERANCES, Comparison

WIDTH, HEIGHT, MARGIN, LABEL = 230, 120, 14, 26
MEASURED, SIMULATED = "#222222", "#e4572e"


def told(found: list[Comparison], host: HostConfig) -> Told:
    """One row per run, the error of every figure in it."""
    caption = (
        f"Errors in %. Host: {host.per_iteration_s * 1e6:.0f} µs, {host.per_sequence_s * 1e6:.2f} µs per sequence. "
        f"! = beyond tolerance (mean and P99: TPOT and E2E 3 %, TTFT 5 %)."
    )
    runs = {one.name: _as_data(one) for one in found}
    return Told(
        rows=[{"run": name, **row} for name, rows in runs.items() for row in rows],
        data={"host": host.model_dump(), "runs": runs},
        blocks=[Table([_row(one) for one in found], "Simulated against measured", caption)],
        failures=[
            f"{c.name} {e.metric} {e.statistic} ({e.relative:+z.1%})" for c in found for e in c.errors if e.is_beyond
        ],
    )


def _row(one: Comparison) -> dict[str, Any]:
    row: dict[str, Any] = {"run": one.name, "requests": one.num_requests, "clock": f"{one.clock:.3f}"}
    for error in one.errors:
        row[f"{error.metric} {error.statistic}"] = f"{100 * error.relative:+z.1f}{'!' if error.is_beyond else ''}"
    return row


def _as_data(one: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "metric": error.metric,
            "statistic": error.statistic,
            "measured_s": error.measured_s,
            "simulated_s": error.simulated_s,
            "error": error.relative,
            "is_beyond": error.is_beyond,
        }
        for error in one.errors
    ]


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
