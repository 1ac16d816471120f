"""A training step as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gnomon.core.files import write_text
from gnomon.pipeline.memory import Curve, micro_batches_held
from gnomon.pipeline.run import Run
from gnomon.report.pipeline_timeline import NAMES, link_use

MICROSECONDS = 1e6


def write_trace(run: Run, path: str | Path, *, memory: list[Curve] | None = None) -> Path:
    """Write the trace events: a process per GPU, threads for compute and each kind of transfer, two counters."""
    threads: dict[str, int] = {"compute": 0}
    events: list[dict[str, Any]] = []
    tasks = run.trace.tasks
    for task, label in enumerate(run.labels):
        is_pass = tasks.channel[task] == 0
        thread = threads.setdefault("compute" if is_pass else NAMES[label.kind], len(threads))
        start = float(tasks.start[task] if is_pass else tasks.ready[task])
        events.append(
            {
                "name": f"{NAMES[label.kind]} {label.microbatch}",
                "cat": label.kind,
                "ph": "X",
                "ts": start * MICROSECONDS,
                "dur": (float(tasks.end[task]) - start) * MICROSECONDS,
                "pid": int(tasks.rank[task]) + 1,
                "tid": thread,
                "args": {
                    "stage": label.stage,
                    "throttled": bool(tasks.throttled[task]),
                    "work": float(tasks.work[task]),
                },
            }
        )
    for rank in range(run.num_ranks):
        events.append(_name("process_name", rank + 1, 0, f"GPU {rank + 1}"))
        events += [_name("thread_name", rank + 1, number, name) for name, number in threads.items()]
    for name, curves in (("memory", memory or micro_batches_held(run)), ("egress", link_use(run))):
        for rank, curve in enumerate(curves):
            for at, value in zip(curve.times, curve.values, strict=True):
                events.append(
                    {"name": name, "ph": "C", "ts": at * MICROSECONDS, "pid": rank + 1, "args": {name: float(value)}}
                )
    return write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
