"""A post-training run as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gnomon.core.files import write_text
from gnomon.posttrain.record import RunRecord
from gnomon.report.posttrain_timeline import NAMES, counts, starts

MICROSECONDS = 1e6
OWNER, WORK = 0, 1


def write_trace(record: RunRecord, path: str | Path) -> Path:
    """Write the trace events: per GPU a track of owners and one of work, and counters of GPUs by owner."""
    events: list[dict[str, Any]] = []
    for step, start in zip(record.steps, starts(record), strict=True):
        for span in step.spans:
            events.append(_slice(NAMES[span.owner], span.gpu, OWNER, start + span.start_s, start + span.end_s))
        for one in step.work:
            name = f"mini-batch {one.number}" if one.component == "actor" else "log-probabilities"
            for gpu in one.gpus:
                events.append(_slice(name, gpu, WORK, start + one.start_s, start + one.end_s))
    for gpu in range(record.num_gpus):
        events.append(_name("process_name", gpu, 0, f"GPU {gpu}"))
        events += [_name("thread_name", gpu, OWNER, "owner"), _name("thread_name", gpu, WORK, "work")]
    moments, series = counts(record)
    for i, moment in enumerate(moments):
        values = {NAMES[owner]: numbers[i] for owner, numbers in series.items()}
        events.append({"name": "GPUs", "ph": "C", "ts": moment * MICROSECONDS, "pid": 0, "args": values})
    return write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _slice(name: str, gpu: int, track: int, start_s: float, end_s: float) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "X",
        "ts": start_s * MICROSECONDS,
        "dur": (end_s - start_s) * MICROSECONDS,
        "pid": gpu,
        "tid": track,
    }


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
