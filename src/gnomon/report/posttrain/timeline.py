"""From the record of a post-training run to bars: who has which GPU when, and what is done there."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon.posttrain.record import RunRecord, StepRecord

COLOURS = {
    "rollout": "#54A24B",
    "inference": "#F2B134",
    "actor": "#4C78A8",
    "transition": "#9D7CBF",
    "free": "#E8E3DA",
}
NAMES = {
    "rollout": "rollout",
    "inference": "inference",
    "actor": "actor",
    "transition": "transition",
    "free": "free",
}
CAUSES = {
    "busy": ("busy", "#4C78A8"),
    "tail": ("tail", "#B9DDB4"),
    "waiting": ("waiting", "#C7D3E3"),
    "transition": ("transition", "#9D7CBF"),
    "unusable": ("unusable", "#E8E3DA"),
}


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
    """When each step begins."""
    at, found = 0.0, []
    for step in record.steps:
        found.append(at)
        at += step.duration_s
    return found


def bars(record: RunRecord) -> list[Bar]:
    """Neighbouring GPUs with the same owner over the same time are one bar."""
    return [bar for step, start in zip(record.steps, starts(record), strict=True) for bar in _bars_of_step(step, start)]


def _bars_of_step(step: StepRecord, start: float) -> list[Bar]:
    found: list[Bar] = []
    for span in sorted(step.spans, key=lambda one: (one.owner, one.start_s, one.end_s, one.gpu)):
        last = found[-1] if found else None
        begin, end = start + span.start_s, start + span.end_s
        if last and (last.owner, last.start_s, last.end_s, last.last) == (span.owner, begin, end, span.gpu - 1):
            found[-1] = Bar(span.owner, last.first, span.gpu, begin, end, step.number)
        else:
            found.append(Bar(span.owner, span.gpu, span.gpu, begin, end, step.number))
    return found


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
        for i in range(points + 1):
            at = step.duration_s * i / points
            moments.append(start + at)
            values.append(int((step.finished_s > at).sum()) if at < step.rollout_end_s else 0)
    return moments, values
