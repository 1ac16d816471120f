"""A training step as plotly figures (plain dictionaries), and where its time goes: for reports and for live pages."""

from dataclasses import asdict
from typing import Any

import numpy as np

from gnomon.pipeline.explain import idle_time, total
from gnomon.pipeline.memory import Curve, micro_batches_held
from gnomon.pipeline.run import Run
from gnomon.report import look
from gnomon.report.blocks import Card, SplitRow
from gnomon.report.look import TIME_LINE, TIME_LINE_AXIS
from gnomon.report.pipeline import timeline
from gnomon.report.pipeline.timeline import COLOURS, COMPLETION, NAMES, WORDS, Timeline, View

Figure = dict[str, Any]

CAUSES = {cause: (name, colour) for cause, (name, colour, _) in WORDS["causes"].items()}
RANK_COLOURS = ("#8064A8", "#2FA0B5", "#8C6D31", "#D46A9F", "#5B6776", "#B29CD9", "#1F6E7A", "#C9A96A")
"""Of the memory of each GPU: none of them is the colour of a pass or a transfer."""
DENSE = 2000  # Bars from which on they are drawn without edges.
LINK_BINS = 400  # Links in use are means over this many intervals where they change more often.
GAP = 0.12  # Of a lane's height, left free.


def step_figure(
    run: Run, *, view: View = "single_channel", show_throttling: bool = False, show_completion_time: bool = False,
    memory: list[Curve] | None = None, memory_unit: str = "micro-batches",
) -> Figure:  # fmt: skip
    """The Gantt chart, with memory and the use of links below. `memory` replaces the count of activations."""
    lanes = timeline.drawn_together(timeline.timeline(run, view), run.total_time)
    traces = [_bars(lanes, kind, show_throttling) for kind in lanes.kinds]
    for rank, curve in enumerate(memory or micro_batches_held(run)):
        colour = RANK_COLOURS[rank % len(RANK_COLOURS)]
        hover = f"GPU {rank}: %{{y:.4g}} {memory_unit}"
        traces.append(_steps(curve, run.total_time, "y2", colour, hover))
    use = timeline.bandwidth(run)
    for kind, curve in use.items():
        hover = f"{NAMES[kind]}: %{{y:.1%}} of all links"
        steps = _steps(binned(curve, run.total_time), run.total_time, "y3", COLOURS[kind], hover)
        flat = {"shape": "hv", "width": 0, "color": COLOURS[kind]}
        traces.append(steps | {"stackgroup": "links", "line": flat, "fillcolor": COLOURS[kind]})
    end = run.total_time * (1.07 if show_completion_time else 1.01)
    layout = _layout(lanes, end, memory_unit, bool(use)) | _marks(lanes, run.total_time, show_completion_time)
    return {"data": traces, "layout": layout}


def _marks(lanes: Timeline, total_time: float, show_completion_time: bool) -> Figure:
    """Lines between the GPUs, and where the step ends."""
    shapes: list[Figure] = [
        look.rule("y", row - 0.5, "#D5DAE1", "solid", 1)
        for row, lane in enumerate(lanes.lanes)
        if row and lane.name == "compute"
    ]
    notes: list[Figure] = []
    if show_completion_time:
        ends = {"y0": -0.5, "y1": len(lanes.lanes) - 0.5, "yref": "y"}
        shapes.append(look.rule("x", total_time, COMPLETION, width=2) | ends)
        beside = {"yref": "y", "xanchor": "left", "xshift": 4, "bgcolor": "rgba(255,255,255,0.85)"}
        notes.append(look.note(total_time, 0, f"<b>{total_time:.4f}</b>", COMPLETION, 12, **beside))
    return {"shapes": shapes, "annotations": notes}


def _layout(lanes: Timeline, end: float, memory_unit: str, has_links: bool) -> Figure:
    count = len(lanes.lanes)
    height = max(36 * count, 220)
    below = 330 if has_links else 190
    whole = height + below + 110
    layout: Figure = {
        **TIME_LINE,
        "uniformtext": {"minsize": 8, "mode": "hide"},
        "height": whole,
        "margin": {"l": 92, "r": 18, "t": 46, "b": 44},
        "xaxis": TIME_LINE_AXIS
        | look.axis("time, in the unit of the lengths", range=[0, end], anchor="y3" if has_links else "y2"),
        "yaxis": {
            "domain": [(below + 20) / whole, 1],
            "range": [count - 0.5, -0.5],
            "tickvals": list(range(count)),
            "ticktext": [
                f"<b>GPU {one.gpu}</b>" if one.name == "compute" else f"<span style='color:#7A8594'>{one.name}</span>"
                for one in lanes.lanes
            ],
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
        "yaxis2": look.lane(
            (below / 2 + 30) / whole if has_links else 0, (below - 30) / whole, f"memory<br>({memory_unit})",
            rangemode="tozero",
        ),
    }  # fmt: skip
    if has_links:
        layout["yaxis3"] = look.lane(0, (below / 2 - 20) / whole, "links in use", tickformat=".0%", range=[0, 1.06])
    return layout


def _bars(lanes: Timeline, kind: str, show_throttling: bool) -> Figure:
    # The legend looks like the first bar: let that be an ordinary one.
    bars = sorted((bar for bar in lanes.bars if bar.kind == kind), key=lambda bar: bar.throttled)
    # Lanes count downwards; within a lane a share is measured from its bottom.
    height = 1.0 - GAP
    centre = [bar.lane + height * (0.5 - (bar.low + bar.high) / 2) for bar in bars]
    is_pass = bool(bars) and lanes.lanes[bars[0].lane].name == "compute"
    outline = ["#B00020" if show_throttling and bar.throttled else "#FFFFFF" for bar in bars]
    edge = 0.6 if len(lanes.bars) < DENSE else 0.0  # Where bars are as thin as their edges, nothing else would be seen.
    drawn = look.bars([bar.end - bar.start for bar in bars], centre, COLOURS[kind], name=NAMES[kind])
    line = {"color": outline, "width": [2.0 if c != "#FFFFFF" else edge for c in outline]}
    return drawn | {
        "base": [bar.start for bar in bars],
        "width": [max(height * (bar.high - bar.low), 0.04) for bar in bars],
        "marker": {"color": COLOURS[kind], "line": line},
        "text": [bar.text for bar in bars] if is_pass or len(bars) < 400 else None,
        "textposition": "inside", "insidetextanchor": "middle", "textangle": 0, "constraintext": "both",
        "textfont": {"size": 11, "color": "#FFFFFF" if is_pass else "#22303C"},
        "hovertext": [bar.hover + ("<br><b>on the critical path</b>" if bar.critical else "") for bar in bars],
        "hoverinfo": "text",
    }  # fmt: skip


def _steps(curve: Curve, end: float, axis: str, colour: str, hover: str) -> Figure:
    x, y = [*curve.times.tolist(), end], [*curve.values.tolist(), float(curve.values[-1])]
    drawn = look.line(x, y, colour, yaxis=axis, showlegend=False, hovertemplate=f"{hover}<extra></extra>")
    return drawn | {"line": {"shape": "hv", "width": 1.6, "color": colour}}


def binned(curve: Curve, end: float) -> Curve:
    """The curve's means over equal intervals, where it has more steps than a screen can show."""
    if len(curve.times) <= LINK_BINS or end <= 0:
        return curve
    edges = np.linspace(0.0, end, LINK_BINS + 1)
    at = np.concatenate([curve.times, [end]])
    area = np.concatenate([[0.0], np.cumsum(curve.values * np.diff(at))])
    sums = np.interp(edges, at, area)
    return Curve(edges[:-1], np.diff(sums) / np.diff(edges))


def cause_rows(run: Run) -> list[SplitRow]:
    ranks = idle_time(run)
    rows = [(f"GPU {rank}", time, run.total_time) for rank, time in enumerate(ranks)]
    rows.append(("all", total(ranks), run.total_time * len(ranks)))
    return [
        SplitRow(name, {cause: asdict(time)[cause] for cause in CAUSES}, whole, f"{time.idle / whole:.1%} idle")
        for name, time, whole in rows
    ]


def step_cards(run: Run) -> list[Card]:
    return [
        Card("make-span", f"{run.total_time:.6g}"),
        Card("idle", f"{run.bubble:.1%}"),
        Card("micro-batches", str(1 + max(label.microbatch for label in run.labels))),
        Card("GPUs", str(run.num_ranks)),
    ]
