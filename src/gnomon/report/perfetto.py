"""Trace events for Perfetto (ui.perfetto.dev) and chrome://tracing.

Perfetto drops a slice that begins before the one before it on its lane has ended. Stamps are therefore whole
microseconds, from which lengths are taken, so that no reader's rounding makes neighbours overlap; what may run side by
side goes on lanes of its own (`Lanes`).
"""

import json
from collections.abc import Mapping
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from gnomon.core.files import write_text

Event = dict[str, Any]


def microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def slice_event(name: str, process: int, thread: int, start_s: float, end_s: float, **more: Any) -> Event:
    """Something with a beginning and an end, on the lane of a thread of a process."""
    start, end = microseconds(start_s), microseconds(end_s)
    return {"name": name, "ph": "X", "ts": start, "dur": end - start, "pid": process, "tid": thread, **more}


def counter_event(name: str, process: int, at_s: float, values: Mapping[str, float]) -> Event:
    return {"name": name, "ph": "C", "ts": microseconds(at_s), "pid": process, "args": dict(values)}


def process_name(process: int, name: str) -> Event:
    return {"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": name}}


def thread_name(process: int, thread: int, name: str) -> Event:
    return {"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


class Lanes:
    """As many lanes as things run side by side."""

    def __init__(self) -> None:
        self.count = 0
        self._free: list[int] = []
        self._busy: list[tuple[float, int]] = []
        """Until when, and which."""

    def take(self, start_s: float, end_s: float) -> int:
        """The first lane that is free at `start_s`, which is not before that of the last call."""
        while self._busy and self._busy[0][0] <= start_s:
            heappush(self._free, heappop(self._busy)[1])
        if not self._free:
            self._free.append(self.count)
            self.count += 1
        lane = heappop(self._free)
        heappush(self._busy, (end_s, lane))
        return lane


def write_events(events: list[Event], path: str | Path) -> Path:
    return write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
