"""A post-training run as one self-contained HTML page: the allocation over time, and where the GPU time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnomon.posttrain.record import RunRecord
from gnomon.report.page import write_time_line
from gnomon.report.posttrain_timeline import CAUSES, COLOURS, NAMES, bars, counts, starts, unfinished


def write_html(record: RunRecord, path: str | Path) -> Path:
    """Write the page; it needs no network and no other file."""
    moved = sum(step.num_moved for step in record.steps)
    figures = {
        "step": f"{record.step_s:.1f} s",
        "tokens/s": f"{record.tokens_s:,.0f}",
        "GPUs": str(record.num_gpus),
        "steps": str(len(record.steps)),
        "idle": f"{100 * (1 - record.shares()['busy']):.1f} %",
        "sequences moved": f"{moved:,}",
        "staleness": str(record.staleness),
    }
    return write_time_line(
        path,
        title=f"RL post-training: {record.policy} on {record.num_gpus} GPUs",
        cards=figures,
        figure=_figure(record),
        heading="Where the GPU time goes",
        causes=_causes(record),
    )


def _figure(record: RunRecord) -> dict[str, Any]:
    found = bars(record)
    traces: list[dict[str, Any]] = []
    for owner, colour in COLOURS.items():
        mine = [bar for bar in found if bar.owner == owner]
        if mine:
            traces.append(_bar_trace(mine, NAMES[owner], colour))
    traces += _minibatches(record)
    moments, series = counts(record)
    for owner, values in series.items():
        if any(values):
            traces.append(_count_trace(moments, values, NAMES[owner], COLOURS[owner]))
    at, left = unfinished(record)
    traces.append(
        {
            "type": "scatter", "mode": "lines", "x": at, "y": left, "yaxis": "y3", "showlegend": False,
            "line": {"color": "#2B3440", "width": 1.6},
            "hovertemplate": "%{y:,} sequences at %{x:.0f} s<extra></extra>",
        }
    )  # fmt: skip
    return {"data": traces, "layout": _layout(record)}


def _bar_trace(mine: list[Any], name: str, colour: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "base": [bar.start_s for bar in mine],
        "x": [bar.end_s - bar.start_s for bar in mine],
        "y": [(bar.first + bar.last) / 2 for bar in mine],
        "width": [bar.last - bar.first + 1 for bar in mine],
        "marker": {"color": colour, "line": {"width": 0}},
        "hovertext": [
            f"<b>{name}</b><br>GPU {bar.first}-{bar.last}<br>{bar.start_s:.1f} to {bar.end_s:.1f} s, step {bar.step}"
            for bar in mine
        ],
        "hoverinfo": "text",
    }


def _minibatches(record: RunRecord) -> list[dict[str, Any]]:
    """Where the actor computes, as darker bars on its GPUs."""
    at, length, y, width, text, hover = [], [], [], [], [], []
    for step, start in zip(record.steps, starts(record), strict=True):
        for one in step.work:
            if one.component != "actor":
                continue
            for first, last in _ranges(one.gpus):
                at.append(start + one.start_s)
                length.append(one.end_s - one.start_s)
                y.append((first + last) / 2)
                width.append(last - first + 1)
                text.append(str(one.number + 1))
                seconds = one.end_s - one.start_s
                hover.append(
                    f"<b>mini-batch {one.number + 1}</b><br>{len(one.gpus)} GPUs"
                    f"<br>{seconds:.1f} s, computing {100 * one.busy_s / seconds:.0f} %"
                )
    marker = {"color": "#2F5279", "line": {"color": "#FFFFFF", "width": 0.8}}
    return [
        {
            "type": "bar", "orientation": "h", "name": "training", "base": at, "x": length, "y": y, "width": width,
            "marker": marker, "text": text, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
            "textfont": {"color": "#FFFFFF", "size": 11}, "hovertext": hover, "hoverinfo": "text",
        }
    ]  # fmt: skip


def _ranges(gpus: tuple[int, ...]) -> list[tuple[int, int]]:
    """Contiguous runs of GPU numbers."""
    found: list[tuple[int, int]] = []
    for gpu in gpus:
        if found and found[-1][1] == gpu - 1:
            found[-1] = (found[-1][0], gpu)
        else:
            found.append((gpu, gpu))
    return found


def _count_trace(moments: list[float], values: list[int], name: str, colour: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": moments,
        "y": values,
        "yaxis": "y2",
        "stackgroup": "gpus",
        "line": {"shape": "hv", "width": 0, "color": colour},
        "fillcolor": colour,
        "showlegend": False,
        "hovertemplate": f"{name}: %{{y}} GPUs<extra></extra>",
    }


def _layout(record: RunRecord) -> dict[str, Any]:
    axes = {"showgrid": True, "gridcolor": "#EEF1F4", "zeroline": False, "linecolor": "#C5CCD6", "ticks": "outside"}
    lines = [
        {
            "type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1,
            "line": {"color": "#2B3440", "width": 1, "dash": "dot"},
        }
        for at in starts(record)[1:]
    ]  # fmt: skip
    return {
        "height": 760,
        "barmode": "overlay",
        "bargap": 0,
        "margin": {"l": 76, "r": 18, "t": 46, "b": 44},
        "font": {"family": "Inter, system-ui, sans-serif", "size": 12, "color": "#2B3440"},
        "plot_bgcolor": "#FFFFFF",
        "paper_bgcolor": "#FFFFFF",
        "hoverlabel": {"bgcolor": "#FFFFFF", "bordercolor": "#C5CCD6", "font": {"size": 12}},
        "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
        "shapes": lines,
        "xaxis": axes | {"range": [0, record.duration_s], "title": {"text": "seconds"}, "anchor": "y3"},
        "yaxis": {
            "domain": [0.46, 1],
            "range": [record.num_gpus - 0.5, -0.5],
            "title": {"text": "GPU"},
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
        "yaxis2": axes
        | {"domain": [0.22, 0.42], "title": {"text": "GPUs"}, "range": [0, record.num_gpus], "fixedrange": True},
        "yaxis3": axes
        | {"domain": [0, 0.18], "title": {"text": "to generate"}, "rangemode": "tozero", "tickformat": "~s"}
        | {"fixedrange": True},
    }


def _causes(record: RunRecord) -> str:
    """A table of bars: every step's GPU time by cause."""
    legend = "".join(f"<li><i style='background:{colour}'></i>{name}</li>" for name, colour in CAUSES.values())
    rows = [(f"step {step.number}", step.idle(), step.duration_s * record.num_gpus) for step in record.steps]
    if len(rows) > 1:
        rows.append(("all", record.shares(), 1.0))
    body = ""
    for name, parts, whole in rows:
        pieces = "".join(
            f"<i style='width:{100 * parts[key] / whole:.3f}%;background:{colour}'"
            f" title='{label}: {100 * parts[key] / whole:.1f} %'></i>"
            for key, (label, colour) in CAUSES.items()
        )
        words = ", ".join(
            f"{label} {100 * parts[key] / whole:.1f} %" for key, (label, _) in CAUSES.items() if parts[key] > 0
        )
        body += f"<tr><th>{name}</th><td><div class=split>{pieces}</div></td><td class=words>{words}</td></tr>"
    return f"<ul class=legend>{legend}</ul><table>{body}</table>"
