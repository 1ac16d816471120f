"""A post-training run as plotly figures (plain dictionaries), and where its GPU time goes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.posttrain.simulator import record
from gnomon.posttrain.simulator.record import RunRecord, Span, StepRecord
from gnomon.posttrain.studies.compare import Outcome
from gnomon.report import look
from gnomon.report.blocks import Card, SplitRow
from gnomon.report.look import TIME_LINE, TIME_LINE_AXIS
from gnomon.report.perfetto import Event, counter_event, process_name, slice_event, thread_name, write_events

COLOURS = {
    "rollout": "#54A24B",
    "idle rollout": "#B9DDB4",
    "inference": "#F2B134",
    "actor": "#4C78A8",
    "transition": "#9D7CBF",
    "free": "#E8E3DA",
}
_OF_CAUSES = ("#4C78A8", "#B9DDB4", "#C7D3E3", "#9D7CBF", "#E8E3DA")
CAUSES = {name: (name, colour) for name, colour in zip(record.CAUSES, _OF_CAUSES, strict=True)}


@dataclass(frozen=True)
class Bar:
    """GPUs `first` to `last` in one hand from `start_s` to `end_s`, seconds of the whole run."""

    owner: str
    first: int
    last: int
    start_s: float
    end_s: float
    step: int


def starts(record: RunRecord) -> list[float]:
    at, found = 0.0, []
    for step in record.steps:
        found.append(at)
        at += step.duration_s
    return found


def bars(record: RunRecord) -> list[Bar]:
    """Neighbouring GPUs with the same owner over the same time are one bar."""
    found = []
    for step, start in zip(record.steps, starts(record), strict=True):
        found += _bars_of([part for span in step.spans for part in _with_idle(step, span)], step.number, start)
    return found


def _bars_of(spans: list[Span], number: int, start: float) -> list[Bar]:
    found: list[Bar] = []
    for span in sorted(spans, key=lambda one: (one.owner, one.start_s, one.end_s, one.gpu)):
        last = found[-1] if found else None
        begin, end = start + span.start_s, start + span.end_s
        if last and (last.owner, last.start_s, last.end_s, last.last) == (span.owner, begin, end, span.gpu - 1):
            found[-1] = Bar(span.owner, last.first, span.gpu, begin, end, number)
        else:
            found.append(Bar(span.owner, span.gpu, span.gpu, begin, end, number))
    return found


def _with_idle(step: StepRecord, span: Span) -> Iterator[Span]:
    """What rollout owns in two parts: while it generates, and while it has nothing left to."""
    end_s = step.instance_end_s.get(span.gpu, span.end_s)
    if span.owner != "rollout" or not span.start_s < end_s < span.end_s:
        yield span
        return
    yield replace(span, end_s=end_s)
    yield Span(span.gpu, "idle rollout", end_s, span.end_s)


def counts(record: RunRecord) -> tuple[list[float], dict[str, list[int]]]:
    """GPUs of each owner as steps over time: moments, and the number from each moment on."""
    changes: dict[float, dict[str, int]] = {}
    for bar in bars(record):
        size = bar.last - bar.first + 1
        for moment, sign in ((bar.start_s, 1), (bar.end_s, -1)):
            at = changes.setdefault(round(moment, 6), {})
            at[bar.owner] = at.get(bar.owner, 0) + sign * size
    moments = sorted(changes)
    series: dict[str, list[int]] = {}
    for owner in COLOURS:
        level, values = 0, []
        for moment in moments:
            level += changes[moment].get(owner, 0)
            values.append(level)
        series[owner] = values
    return moments, series


def unfinished(record: RunRecord, points: int = 400) -> tuple[list[float], list[int]]:
    """Sequences not generated yet over the run."""
    moments: list[float] = []
    values: list[int] = []
    for step, start in zip(record.steps, starts(record), strict=True):
        at = np.linspace(0.0, step.duration_s, points + 1)
        moments += (start + at).tolist()
        left = step.finished_s.size - np.searchsorted(np.sort(step.finished_s), at, side="right")
        values += np.where(at < step.rollout_end_s, left, 0).tolist()
    return moments, values


Figure = dict[str, Any]
LEFT = "#6B7A8C"
"""Of what is left to generate, and of the ends of steps; seen on light and on dark."""


def allocation_figure(record: RunRecord) -> Figure:
    """Who has which GPU when, then GPUs by owner and the sequences still to generate."""
    found = bars(record)
    traces: list[Figure] = []
    for owner, colour in COLOURS.items():
        mine = [bar for bar in found if bar.owner == owner]
        hover = [
            f"<b>{owner}</b><br>GPU {bar.first}-{bar.last}<br>{bar.start_s:.1f} to {bar.end_s:.1f} s, step {bar.step}"
            for bar in mine
        ]
        if mine:
            traces.append(_bar_trace(mine, owner, colour, hover))
    traces.append(_minibatches(record))
    moments, series = counts(record)
    for owner, values in series.items():
        if any(values):
            traces.append(_count_trace(moments, values, owner, COLOURS[owner]))
    at, left = unfinished(record)
    words = "%{y:,} sequences at %{x:.0f} s<extra></extra>"
    traces.append(look.line(at, left, LEFT, yaxis="y3", showlegend=False, hovertemplate=words))
    return {"data": traces, "layout": _layout(record)}


def _bar_trace(mine: list[Bar], name: str, colour: str, hover: list[str]) -> Figure:
    lengths, middles = [bar.end_s - bar.start_s for bar in mine], [(bar.first + bar.last) / 2 for bar in mine]
    drawn = look.bars(lengths, middles, colour, name=name, base=[bar.start_s for bar in mine], hovertext=hover)
    heights = [bar.last - bar.first + 1 for bar in mine]
    return drawn | {"width": heights, "marker": {"color": colour, "line": {"width": 0}}, "hoverinfo": "text"}


def _minibatches(record: RunRecord) -> Figure:
    """Where the actor computes, as darker bars on its GPUs."""
    mine, numbers, hover = [], [], []
    for step, start in zip(record.steps, starts(record), strict=True):
        for one in step.work:
            if one.component == "actor":
                spans = [Span(gpu, "actor", one.start_s, one.end_s) for gpu in one.gpus]
                found = _bars_of(spans, step.number, start)
                share = one.busy_s / (one.end_s - one.start_s)
                words = f"<b>mini-batch {one.number + 1}</b><br>{len(one.gpus)} GPUs"
                words += f"<br>{one.end_s - one.start_s:.1f} s, computing {share:.0%}"
                mine += found
                numbers += [str(one.number + 1)] * len(found)
                hover += [words] * len(found)
    return _bar_trace(mine, "training", "#2F5279", hover) | {
        "marker": {"color": "#2F5279", "line": {"color": "#FFFFFF", "width": 0.8}},
        "text": numbers, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
        "textfont": {"color": "#FFFFFF", "size": 11},
    }  # fmt: skip


def _count_trace(moments: list[float], values: list[int], name: str, colour: str) -> Figure:
    hover, flat = f"{name}: %{{y}} GPUs<extra></extra>", {"shape": "hv", "width": 0, "color": colour}
    drawn = look.line(moments, values, colour, yaxis="y2", stackgroup="gpus", fillcolor=colour, hovertemplate=hover)
    return drawn | {"line": flat, "showlegend": False}


def _layout(record: RunRecord) -> Figure:
    lines = [look.rule("x", at, LEFT, "dot", 1) for at in starts(record)[1:]]
    versions = [
        look.note(at, 1, f"v{step.number}", LEFT, 10, yanchor="bottom", xanchor="left")
        for at, step in zip(starts(record), record.steps, strict=True)
    ]
    return {
        **TIME_LINE,
        "uniformtext": {"minsize": 8, "mode": "hide"},
        "height": 760,
        "margin": {"l": 76, "r": 18, "t": 60, "b": 44},
        "shapes": lines,
        "annotations": versions if len(record.steps) > 1 else [],
        "legend": TIME_LINE["legend"] | {"y": 1.03},  # Above the versions.
        "xaxis": TIME_LINE_AXIS | look.axis("seconds", range=[0, record.duration_s], anchor="y3"),
        "yaxis": look.axis("GPU", range=[record.num_gpus - 0.5, -0.5], tick0=0, tickformat="d", showgrid=False)
        | {"domain": [0.46, 1], "dtick": max(1, record.num_gpus // 16), "zeroline": False, "fixedrange": True},
        "yaxis2": look.lane(0.22, 0.42, "GPUs", range=[0, record.num_gpus]),
        "yaxis3": look.lane(0, 0.18, "to generate", rangemode="tozero", tickformat="~s"),
    }


def cause_rows(record: RunRecord) -> list[SplitRow]:
    steps = [(f"step {step.number}", step.idle(), step.duration_s) for step in record.steps]
    if len(steps) > 1:
        parts = {cause: sum(one[cause] for _, one, _ in steps) for cause in CAUSES}
        steps.append(("all", parts, record.duration_s))
    rows = []
    for name, parts, duration_s in steps:
        whole = duration_s * record.num_gpus
        words = ", ".join(f"{label} {parts[key] / whole:.1%}" for key, (label, _) in CAUSES.items() if parts[key] > 0)
        rows.append(SplitRow(name, parts, whole, words, " GPU s"))
    return rows


def run_cards(record: RunRecord) -> list[Card]:
    count = len(record.steps)
    size = f"{'one step' if count == 1 else f'mean of {count}'}, {record.num_gpus} GPUs"
    return [
        Card("step", f"{record.step_s:.1f} s", size), Card("tokens/s", f"{record.tokens_s:,.0f}"),
        Card("idle", f"{1 - record.shares()['busy']:.1%}"),
        Card("sequences moved", f"{sum(step.num_moved for step in record.steps):,}"),
        Card("staleness", str(record.staleness)), Card("training MFU", f"{record.mfu:.0%}"),
        Card("cost", f"${record.dollars_per_step:,.2f}", "per step"),
    ]  # fmt: skip


ROW_PX, CAPTION_PX, ABOVE_PX, BELOW_PX = 88, 30, 34, 44


def policies_height(count: int) -> int:
    """Pixels that `policies_figure` takes for so many policies."""
    return ROW_PX * count + ABOVE_PX + BELOW_PX


def policies_figure(outcomes: list[Outcome]) -> Figure:
    """GPUs by owner over the whole run, policy under policy on one clock."""
    traces: list[Figure] = []
    axes: Figure = {}
    notes: list[Figure] = []
    inside = ROW_PX * len(outcomes)
    named: set[str] = set()
    for row, one in enumerate(outcomes):
        suffix = str(row + 1) if row else ""
        bottom, top = 1 - (row + 1) * ROW_PX / inside, 1 - (row * ROW_PX + CAPTION_PX) / inside
        moments, series = counts(one.record)
        for owner, values in series.items():
            if any(values):
                trace = _count_trace(moments, values, owner, COLOURS[owner])
                trace |= {"yaxis": f"y{suffix}", "stackgroup": f"gpus{row}", "customdata": [one.policy] * len(moments)}
                traces.append(trace | {"name": owner, "legendgroup": owner, "showlegend": owner not in named})
                named.add(owner)
        axes[f"yaxis{suffix}"] = {
            "domain": [max(bottom, 0.0), top], "range": [0, one.record.num_gpus], "fixedrange": True,
            "nticks": 3, "showgrid": False, "zeroline": False, "linecolor": "#C5CCD6",
        }  # fmt: skip
        hover = f"<b>{one.policy}</b>  step {one.record.step_s:,.1f} s, {one.speedup:.2f}x the tokens/s"
        notes.append(look.note(0, top, hover, "#2B3440", 12, xref="paper", xanchor="left", yanchor="bottom"))
    end_s, anchor = max(one.record.duration_s for one in outcomes), f"y{len(outcomes) if len(outcomes) > 1 else ''}"
    seconds = look.axis("seconds", range=[0, end_s], anchor=anchor, fixedrange=True)
    layout = look.LOOK | {
        "height": policies_height(len(outcomes)), "margin": {"l": 40, "r": 12, "t": ABOVE_PX, "b": BELOW_PX},
        "font": TIME_LINE["font"], "hovermode": "closest", "legend": TIME_LINE["legend"], "annotations": notes,
        "xaxis": TIME_LINE_AXIS | seconds, **axes,
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def policy_rows(outcomes: list[Outcome], *, with_oracle: bool) -> list[dict[str, Any]]:
    return [
        {
            "policy": one.policy, "step s": one.record.step_s, "tokens/s": one.record.tokens_s, "ratio": one.speedup,
            **({"regret": one.regret} if with_oracle else {}), **one.record.shares(),
            "staleness": one.record.staleness,
        }
        for one in outcomes
    ]  # fmt: skip


OWNER, WORK = 0, 1


def write_trace(record: RunRecord, path: str | Path) -> Path:
    """Write the trace events: per GPU a track of owners and one of work, and counters of GPUs by owner."""
    events: list[Event] = []
    for step, start in zip(record.steps, starts(record), strict=True):
        for span in step.spans:
            events.append(slice_event(span.owner, span.gpu, OWNER, start + span.start_s, start + span.end_s))
        for one in step.work:
            name = f"mini-batch {one.number}" if one.component == "actor" else "log-probabilities"
            for gpu in one.gpus:
                events.append(slice_event(name, gpu, WORK, start + one.start_s, start + one.end_s))
    for gpu in range(record.num_gpus):
        events.append(process_name(gpu, f"GPU {gpu}"))
        events += [thread_name(gpu, OWNER, "owner"), thread_name(gpu, WORK, "work")]
    moments, series = counts(record)
    for i, moment in enumerate(moments):
        values = {owner: numbers[i] for owner, numbers in series.items()}
        events.append(counter_event("GPUs", 0, moment, values))
    return write_events(events, path)
