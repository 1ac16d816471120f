"""A post-training run as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

from pathlib import Path

from gnomon.posttrain.record import RunRecord
from gnomon.report.perfetto import Event, counter_event, process_name, slice_event, thread_name, write_events
from gnomon.report.posttrain.timeline import NAMES, counts, starts

OWNER, WORK = 0, 1


def write_trace(record: RunRecord, path: str | Path) -> Path:
    """Write the trace events: per GPU a track of owners and one of work, and counters of GPUs by owner."""
    events: list[Event] = []
    for step, start in zip(record.steps, starts(record), strict=True):
        for span in step.spans:
            events.append(slice_event(NAMES[span.owner], span.gpu, OWNER, start + span.start_s, start + span.end_s))
        for one in step.work:
            name = f"mini-batch {one.number}" if one.component == "actor" else "log-probabilities"
            for gpu in one.gpus:
                events.append(slice_event(name, gpu, WORK, start + one.start_s, start + one.end_s))
    for gpu in range(record.num_gpus):
        events.append(process_name(gpu, f"GPU {gpu}"))
        events += [thread_name(gpu, OWNER, "owner"), thread_name(gpu, WORK, "work")]
    moments, series = counts(record)
    for i, moment in enumerate(moments):
        values = {NAMES[owner]: numbers[i] for owner, numbers in series.items()}
        events.append(counter_event("GPUs", 0, moment, values))
    return write_events(events, path)
