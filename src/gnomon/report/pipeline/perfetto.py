"""A training step as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from gnomon.pipeline.memory import Curve, micro_batches_held
from gnomon.pipeline.run import Run
from gnomon.report.perfetto import (
    Event,
    Lanes,
    counter_event,
    process_name,
    slice_event,
    thread_name,
    write_events,
)
from gnomon.report.pipeline.timeline import NAMES, link_use


def write_trace(run: Run, path: str | Path, *, memory: list[Curve] | None = None) -> Path:
    """Write the trace events: a process per GPU, threads for compute and each kind of transfer, two counters.

    Transfers of one kind that wait or run side by side have lanes of their own.
    """
    threads: dict[str, int] = {"compute": 0}
    busy: defaultdict[tuple[int, str], Lanes] = defaultdict(Lanes)
    events: list[Event] = []
    tasks = run.trace.tasks
    starts = np.where(tasks.channel == 0, tasks.start, tasks.ready)
    for task in np.argsort(starts, kind="stable"):
        label, rank, start, end = run.labels[task], int(tasks.rank[task]), float(starts[task]), float(tasks.end[task])
        lane = "compute"
        if tasks.channel[task] != 0:
            lane = NAMES[label.kind]
            number = busy[rank, lane].take(start, end)
            lane = f"{lane} ({number + 1})" if number else lane
        thread = threads.setdefault(lane, len(threads))
        about = {
            "stage": label.stage,
            "throttled": bool(tasks.throttled[task]),
            "work": float(tasks.work[task]),
        }
        name = f"{NAMES[label.kind]} {label.microbatch}"
        events.append(slice_event(name, rank, thread, start, end, cat=label.kind, args=about))
    for rank in range(run.num_ranks):
        events.append(process_name(rank, f"GPU {rank}"))
        events += [thread_name(rank, number, name) for name, number in threads.items()]
    for name, curves in (("memory", memory or micro_batches_held(run)), ("egress", link_use(run))):
        for rank, curve in enumerate(curves):
            events += [
                counter_event(name, rank, at, {name: float(value)})
                for at, value in zip(curve.times, curve.values, strict=True)
            ]
    return write_events(events, path)
