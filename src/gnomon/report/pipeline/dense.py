"""Lanes with more bars than a screen has pixels: what is too narrow to be seen is drawn together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from gnomon.report.pipeline.timeline import COLOURS, NAMES, Bar, Timeline

BINS = 1200
"""Pixels of a wide screen, about: a lane with more bars has its narrow ones drawn together."""


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
