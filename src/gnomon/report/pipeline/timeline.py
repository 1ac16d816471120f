"""A finished training step as bars and curves, for every kind of picture."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from gnomon.core.text import own_yaml
from gnomon.pipeline.explain import critical_path
from gnomon.pipeline.fluid import FREE, LINK
from gnomon.pipeline.memory import Curve, curve_of
from gnomon.pipeline.run import Run

View = Literal["single_channel", "dual_channel"]

COMPLETION = "#D7263D"
"""Of the dashed line where a step ends."""
WORDS: dict[str, Any] = own_yaml(files("gnomon.report.pipeline") / "words.yaml")
COLOURS = {kind: colour for kind, (colour, _) in WORDS["kinds"].items()}
NAMES = {kind: name for kind, (_, name) in WORDS["kinds"].items()}
LANES: dict[View, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "single_channel": (("link", ("fwd_prop", "grad_prop", "grad_sync", "gather", "latency")),),
    "dual_channel": (("down", ("fwd_prop",)), ("up", ("grad_prop", "grad_sync", "gather"))),
}


@dataclass(frozen=True)
class Bar:
    """One rectangle: on lane number `lane`, between `low` and `high` of its height."""

    task: int
    kind: str
    lane: int
    start: float
    end: float
    low: float
    high: float
    text: str
    hover: str
    throttled: bool
    critical: bool


@dataclass(frozen=True)
class Lane:
    """One row of the picture; GPUs are counted from 0, as ranks are."""

    gpu: int
    name: str


@dataclass(frozen=True)
class Timeline:
    """Lanes from the top down, and what is on them."""

    lanes: list[Lane]
    bars: list[Bar]

    @property
    def kinds(self) -> list[str]:
        present = {bar.kind for bar in self.bars}
        return [kind for kind in COLOURS if kind in present]


def timeline(run: Run, view: View = "single_channel") -> Timeline:
    """The bars of a run: passes on compute lanes, transfers as high as their share on link lanes."""
    has_links = bool(len(run.trace.segments)) or bool((run.trace.tasks.channel == FREE).any())
    kinds = LANES[view] if has_links else ()
    lanes = []
    for rank in range(run.num_ranks):
        lanes += [Lane(rank, "compute"), *(Lane(rank, name) for name, _ in kinds)]
    on_path = {step.task for step in critical_path(run)}
    per_rank = 1 + len(kinds)
    bars = [_pass(run, task, rank * per_rank, on_path) for rank, row in enumerate(run.computes) for task in row]
    for offset, (_, members) in enumerate(kinds, start=1):
        for rank in range(run.num_ranks):
            bars += _link(run, rank, members, rank * per_rank + offset, on_path)
    return Timeline(lanes, bars)


def link_use(run: Run) -> list[Curve]:
    """For every rank how much of its egress link is in use over time."""
    changes: list[list[tuple[float, float]]] = [[] for _ in range(run.num_ranks)]
    for task, start, end, share in run.trace.segments:
        rank = int(run.trace.tasks.rank[int(task)])
        changes[rank] += [(start, share), (end, -share)]
    return [curve_of(row) for row in changes]


def bandwidth(run: Run) -> dict[str, Curve]:
    """How much of all egress links each kind of transfer uses over time, on common times."""
    segments = run.trace.segments
    times = np.unique(np.concatenate([[0.0], segments[:, 1], segments[:, 2]]))
    kinds = np.array([run.labels[int(task)].kind for task in segments[:, 0]])
    curves = {}
    for kind in (kind for kind in COLOURS if (kinds == kind).any()):
        change = np.zeros(times.size)
        mine = segments[kinds == kind]
        np.add.at(change, np.searchsorted(times, mine[:, 1]), mine[:, 3])
        np.subtract.at(change, np.searchsorted(times, mine[:, 2]), mine[:, 3])
        curves[kind] = Curve(times, np.clip(np.round(np.cumsum(change), 9), 0.0, None) / run.num_ranks)
    return curves


def _pass(run: Run, task: int, lane: int, on_path: set[int]) -> Bar:
    label, row = run.labels[task], run.trace.tasks[task]
    text = str(label.microbatch) if label.other is None else f"{label.microbatch}|{label.other.microbatch}"
    hover = f"{_sentence(run, task)}<br>{row.start:.6g} to {row.end:.6g} ({row.end - row.start:.6g})"
    slowed = row.end - row.start - row.work
    if slowed > 1e-6 * max(row.work, 1e-12):
        hover += f"<br>slowed by synchronisation: {slowed:.4g}"
    return Bar(task, label.kind, lane, row.start, row.end, 0.0, 1.0, text, hover, False, task in on_path)


def _link(run: Run, rank: int, kinds: tuple[str, ...], lane: int, on_path: set[int]) -> Iterator[Bar]:
    """Transfers of one lane, stacked by share at every moment; latencies as a thin line at the bottom."""
    tasks = run.trace.tasks
    types, orders = tasks.type, tasks.order
    pieces: dict[tuple[float, float], list[tuple[int, float]]] = defaultdict(list)
    rows = run.trace.segments
    mine = rows[(rows[:, 3] > 0.0) & (tasks.rank[rows[:, 0].astype(np.int64)] == rank)]
    segments = [
        (int(task), start, end, share)
        for task, start, end, share in mine.tolist()
        if run.labels[int(task)].kind in kinds
    ]
    cuts = np.unique([at for _, start, end, _ in segments for at in (start, end)])
    for task, start, end, share in segments:
        inside = cuts[np.searchsorted(cuts, start) : np.searchsorted(cuts, end) + 1]
        for a, b in pairwise(inside):
            pieces[float(a), float(b)].append((task, share))
    stretched: dict[int, tuple[float, float, float, float]] = {}
    for (start, end), members in sorted(pieces.items()):
        low = 0.0
        for task, share in sorted(members, key=lambda member: (types[member[0]], orders[member[0]])):
            before = stretched.get(task)
            if before and before[1:] == (start, low, share):
                stretched[task] = (before[0], end, low, share)
            else:
                if before:
                    yield _transfer(run, task, lane, *before, on_path)
                stretched[task] = (start, end, low, share)
            low += share
    for task, piece in stretched.items():
        yield _transfer(run, task, lane, *piece, on_path)
    for task in np.flatnonzero((tasks.channel == FREE) & (tasks.rank == rank)).tolist():
        if run.labels[task].kind in kinds:
            yield _transfer(run, task, lane, float(tasks.start[task]), float(tasks.end[task]), 0.0, 0.25, on_path)


def _transfer(
    run: Run, task: int, lane: int, start: float, end: float, low: float, share: float, on_path: set[int]
) -> Bar:
    row, label = run.trace.tasks[task], run.labels[task]
    hover = f"{_sentence(run, task)}<br>ready {row.ready:.6g}, done {row.end:.6g}"
    if row.channel == LINK:
        hover += f"<br>{share:.3g} of the link from {start:.6g} to {end:.6g}"
    if row.throttled:
        hover += "<br>slowed by its receiver"
    high = min(low + share, 1.0)
    throttled = bool(row.throttled)
    return Bar(task, label.kind, lane, start, end, low, high, str(label.microbatch), hover, throttled, task in on_path)


def _sentence(run: Run, task: int) -> str:
    label = run.labels[task]
    text = f"<b>{NAMES[label.kind]}</b> of micro-batch {label.microbatch}, stage {label.stage}"
    if label.other:
        text += f" and {label.other.microbatch}, stage {label.other.stage}"
    return text


BINS = 1200  # Pixels of a wide screen, about: a lane with more bars has its narrow ones drawn together.


def drawn_together(lanes: Timeline, end: float, bins: int = BINS) -> Timeline:
    """In lanes of more than `bins` bars, those narrower than a bin become one bar per bin and kind, whose height is
    its kind's share of the bin. Wide bars, and lanes that a screen can show, stay as they are."""
    by_lane: dict[int, list[Bar]] = defaultdict(list)
    for bar in lanes.bars:
        by_lane[bar.lane].append(bar)
    shown = [
        one for bars in by_lane.values() for one in (bars if len(bars) <= bins else _one_lane(bars, end / bins))
    ]  # fmt: skip
    return Timeline(lanes.lanes, shown)


def _one_lane(bars: list[Bar], width: float) -> list[Bar]:
    """Every narrow bar goes where its middle is."""
    shown = [bar for bar in bars if bar.end - bar.start >= width]
    cells: dict[int, dict[str, list[Bar]]] = defaultdict(lambda: defaultdict(list))
    for bar in bars:
        if bar.end - bar.start < width:
            cells[int((bar.start + bar.end) / 2 / width)][bar.kind].append(bar)
    for number, kinds in sorted(cells.items()):
        low = 0.0
        for kind in sorted(kinds, key=list(COLOURS).index):
            members = kinds[kind]
            share = sum((bar.end - bar.start) * (bar.high - bar.low) for bar in members) / width
            high = min(low + share, 1.0)
            shown.append(_cell(members, number * width, width, low, high))
            low = high
    return shown


def _cell(members: list[Bar], start: float, width: float, low: float, high: float) -> Bar:
    first, kind = members[0], NAMES[members[0].kind]
    if len(members) == 1:
        return replace(first, text="")
    hover = f"<b>{len(members)} x {kind}</b>, drawn together<br>{start:.6g} to {start + width:.6g}"
    return replace(
        first, start=start, end=start + width, low=low, high=high, text="", hover=hover,
        throttled=any(bar.throttled for bar in members), critical=any(bar.critical for bar in members),
    )  # fmt: skip
