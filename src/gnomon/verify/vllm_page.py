"""Recorded and simulated servers over time, on one self-contained HTML page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gnomon.core.arrays import Floats
from gnomon.report.page import write_whole_page

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 900, 180, 64, 22
_STYLE = """<style>
svg { width: 100%; height: auto } svg text { font-size: 12px; fill: var(--faint) }
.recorded { stroke: var(--edge) } .simulated { stroke: var(--blue) } polyline { fill: none; stroke-width: 1.6 }
</style>"""
_KEY = {"recorded": "#8A94A3", "simulated": "#2F6FB5"}


def write_page(comparisons: Sequence[Any], path: str | Path) -> Path:
    """Draw every run below each other; runs without a time series show their errors alone."""
    key = "".join(f"<li><i style='background:{colour}'></i>{name}</li>" for name, colour in _KEY.items())
    sections = "".join(_section(one) for one in comparisons)
    parts = {
        "@TITLE@": "Recorded and simulated vLLM servers",
        "@LEDE@": "How far the simulation is from each recording, and both over time.",
        "@PLOTS@": f"{_STYLE}<ul class=legend>{key}</ul>{sections}",
    }
    return write_whole_page(path, parts)


def _section(one: Any) -> str:
    head = f"<h2>{html.escape(one.recording.name)}</h2><p>{html.escape(one.recording.model)} on {one.device}</p>"
    return f"<section>{head}{_error_table(one)}{''.join(_charts(one))}</section>"


def _error_table(one: Any) -> str:
    metrics = list(dict.fromkeys(error.metric for error in one.errors))
    names = list(dict.fromkeys(error.statistic for error in one.errors))
    cells = {(error.metric, error.statistic): f"<td>{error.relative:+z.2%}</td>" for error in one.errors}
    rows = [
        f"<tr><th class=l>{metric if metric == 'throughput' else metric.upper()}</th>"
        f"{''.join(cells.get((metric, name), '<td></td>') for name in names)}</tr>"
        for metric in metrics
    ]
    heads = "".join(f"<th>{name}</th>" for name in names)
    return f"<div class=scroll tabindex=0><table><tr><th class=l>error</th>{heads}</tr>{''.join(rows)}</table></div>"


def _charts(one: Any) -> list[str]:
    series = one.recording.series
    if series is None or "t" not in series.columns:
        return ["<p>No timeseries.csv was recorded.</p>"]
    at = series["t"].cast(pl.Float64).to_numpy()
    return [
        _chart(title, at, series[name].cast(pl.Float64).to_numpy(), simulated)
        for title, name, simulated in _simulated(one, at)
        if name in series.columns
    ]


def _simulated(one: Any, at: Floats) -> list[tuple[str, str, Floats]]:
    """The server's columns as the simulation has them at the same moments."""
    requests, run = one.simulated.cluster.requests, one.simulated
    rows = run.log.iterations[: run.log.used[0]]
    rows = rows[rows["stage"] == 0]
    rows = rows[np.argsort(rows["end_s"], kind="stable")]
    waiting, running, blocks = np.zeros(at.size), np.zeros(at.size), np.zeros(at.size)
    for replica in run.cluster.replicas.id:
        own = rows[rows["replica"] == replica]
        last = np.searchsorted(own["end_s"], at, side="right") - 1
        ended = last >= 0
        waiting[ended] += own["waiting"][last[ended]]
        blocks[ended] += own["used_blocks"][last[ended]]
        running[ended] += own["size"][last[ended]]
    running *= at <= float(requests.last_token_s.max())
    produced = np.concatenate([[0.0], np.cumsum(rows["decodes"])])
    decoded = produced[np.searchsorted(rows["end_s"], at, side="right")]
    started = np.searchsorted(np.sort(requests.first_token_s), at, side="right")
    tokens = np.diff(decoded + started, prepend=0.0) / np.diff(at, prepend=0.0)
    share = 100.0 * blocks / float(run.cluster.replicas.num_blocks.sum())
    return [
        ("Requests in the batch", "running", running),
        ("Requests waiting", "waiting", waiting),
        ("Output tokens per second", "gen_throughput", tokens),
        ("KV blocks in use, %", "kv_cache_pct", share),
    ]


def _chart(title: str, at: Floats, recorded: Floats, simulated: Floats) -> str:
    top = max(float(recorded.max()), float(simulated.max()), 1.0)
    lines = "".join(
        f"<polyline class={name} points='{_points(at, values, top)}'/>"
        for name, values in (("recorded", recorded), ("simulated", simulated))
    )
    marks = "".join(
        f"<text x={_LEFT - 6} y={_y(value, top) + 4:.0f} text-anchor=end>{value:,.0f}</text>"
        for value in (0.0, top / 2, top)
    )
    times = "".join(
        f"<text x={_x(value, at):.0f} y={_HEIGHT - 4} text-anchor=middle>{value:,.0f} s</text>"
        for value in np.linspace(0.0, float(at[-1]), 5)
    )
    return f"<h3>{title}</h3><svg viewBox='0 0 {_WIDTH} {_HEIGHT}'>{marks}{times}{lines}</svg>"


def _points(at: Floats, values: Floats, top: float) -> str:
    return " ".join(f"{_x(x, at):.1f},{_y(y, top):.1f}" for x, y in zip(at, values, strict=True))


def _x(value: float, at: Floats) -> float:
    return _LEFT + (_WIDTH - _LEFT - 24) * value / float(at[-1])


def _y(value: float, top: float) -> float:
    return 6 + (_HEIGHT - _BOTTOM - 12) * (1.0 - value / top)
