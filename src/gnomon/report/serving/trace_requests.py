"""Requests in a trace for Perfetto: each waits, is prefilled and decodes on a lane of its replica that is free."""

from __future__ import annotations

import numpy as np

from gnomon.report.perfetto import Event, free_lane, process_name, slice_event, thread_name
from gnomon.serving.simulate import Run

MAX_REQUESTS = 2000
"""Requests in a trace: those that arrive first in the stretch shown."""
PHASES = ("waiting", "prefill", "decode")


def request_events(run: Run, start_s: float, end_s: float, first_process: int) -> list[Event]:
    """Three slices per finished request that was there between two moments; a process per replica."""
    q = run.cluster.requests
    stamps = np.stack([q.arrival_s, q.scheduled_s, q.first_token_s, q.finished_s])
    there = np.isfinite(stamps).all(axis=0) & (stamps[3] > start_s) & (stamps[0] < end_s)
    found = np.flatnonzero(there)
    found = found[np.argsort(stamps[0, found], kind="stable")]
    lanes: dict[int, list[float]] = {}
    events: list[Event] = []
    for request in found[:MAX_REQUESTS].tolist():
        replica, at = int(q.replica[request]), stamps[:, request].tolist()
        lane = free_lane(lanes.setdefault(replica, []), at[0], at[3])
        about = {"request": request, "prompt_tokens": int(q.prompt_tokens[request]),
                 "output_tokens": int(q.output_tokens[request])}  # fmt: skip
        for name, begin, end in zip(PHASES, at[:-1], at[1:], strict=True):
            if round(end * 1e6) > round(begin * 1e6):
                events.append(slice_event(name, first_process + replica, lane, begin, end, args=about))
    some = f"; the first {MAX_REQUESTS:,} of {found.size:,}" if found.size > MAX_REQUESTS else ""
    for replica, busy in lanes.items():
        events.append(process_name(first_process + replica, f"requests of replica {replica}{some}"))
        events += [thread_name(first_process + replica, lane, f"lane {lane}") for lane in range(len(busy))]
    return events
