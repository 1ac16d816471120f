"""KV transfers as slices of a trace: between pools, each with an arrow to where it lands, and from other tiers."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats
from gnomon.report.perfetto import Event, Lanes, microseconds, slice_event, thread_name
from gnomon.serving.features.tiers import SOURCES
from gnomon.serving.run.simulate import Run

FIRST_LANE, FIRST_LOAD_LANE = 1000, 2000
"""Lanes of transfers come below those of pipeline stages, those of loads below them."""


def transfer_events(run: Run, start_s: float, end_s: float, max_rows: int) -> list[Event]:
    """All KV that begins to move in a stretch of the run."""
    return _between_pools(run, start_s, end_s, max_rows) + _from_tiers(run, start_s, end_s, max_rows)


def _from_tiers(run: Run, start_s: float, end_s: float, max_rows: int) -> list[Event]:
    """Loads from other tiers: slices in the process of the replica that waits for them."""
    if run.tiers is None:
        return []
    q = run.cluster.requests
    sources = run.tiers.source[-q.size :]
    begin_s = q.arrival_s + q.front_s
    events: list[Event] = []
    lanes: defaultdict[int, Lanes] = defaultdict(Lanes)
    for i in _first(q.loaded_s >= 0, begin_s, start_s, end_s, max_rows):
        replica = int(q.replica[i] if q.landed_s[i] < 0 else q.prefill_replica[i])
        begin, end = float(begin_s[i]), float(q.loaded_s[i])
        lane = FIRST_LOAD_LANE + lanes[replica].take(begin, end)
        events.append(slice_event(f"KV from {SOURCES[sources[i]]}", replica, lane, begin, end, args={"request": i}))
    return _names(lanes, FIRST_LOAD_LANE, "KV loads") + events


def _between_pools(run: Run, start_s: float, end_s: float, max_rows: int) -> list[Event]:
    """Transfers that begin in a stretch of the run: slices in the process of the replica that sends, on as many lanes
    as run side by side, and arrows to the replica that takes them in."""
    if run.transfers is None:
        return []
    q = run.cluster.requests
    sizes = run.transfers.flows.bytes[-q.size :]
    events: list[Event] = []
    lanes: defaultdict[int, Lanes] = defaultdict(Lanes)
    for i in _first(q.landed_s >= 0, q.moving_s, start_s, end_s, max_rows):
        sender, receiver = int(q.prefill_replica[i]), int(q.replica[i])
        begin, end = float(q.moving_s[i]), float(q.landed_s[i])
        lane = FIRST_LANE + lanes[sender].take(begin, end)
        args = {"request": i, "MB": round(float(sizes[i]) / 1e6, 3), "waited_s": begin - float(q.prefilled_s[i])}
        events.append(slice_event(f"KV to replica {receiver}", sender, lane, begin, end, args=args))
        arrow = {"name": "KV", "cat": "transfer", "id": i}
        events.append({**arrow, "ph": "s", "ts": microseconds(begin), "pid": sender, "tid": lane})
        events.append({**arrow, "ph": "f", "bp": "e", "ts": microseconds(end), "pid": receiver, "tid": 0})
    return _names(lanes, FIRST_LANE, "KV transfers") + events


def _first(moves: NDArray[np.bool_], begin_s: Floats, start_s: float, end_s: float, max_rows: int) -> list[int]:
    """The requests whose KV moves from a moment of the stretch on, in that order."""
    shown = np.flatnonzero(moves & (begin_s >= start_s) & (begin_s <= end_s))
    return shown[np.argsort(begin_s[shown], kind="stable")][:max_rows].tolist()


def _names(lanes: dict[int, Lanes], first: int, words: str) -> list[Event]:
    return [
        thread_name(replica, first + lane, f"{words} {lane + 1}")
        for replica, taken in lanes.items()
        for lane in range(taken.count)
    ]
