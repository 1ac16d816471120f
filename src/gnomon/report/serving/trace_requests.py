"""Requests in a trace for Perfetto: each waits, is prefilled and decodes on a lane of its replica that is free."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import polars as pl

from gnomon.report.perfetto import Event, Lanes, process_name, thread_name
from gnomon.serving.run.simulate import Run

MAX_REQUESTS = 2000
"""Requests in a trace: those that arrive first in the stretch shown."""
PHASES = ("waiting", "prefill", "decode")


def request_slices(run: Run, start_s: float, end_s: float, first_process: int) -> tuple[pl.DataFrame, list[Event]]:
    """Three slices per finished request that was there between two moments, and the names of their lanes; a process per
    replica."""
    q = run.cluster.requests
    stamps = np.stack([q.arrival_s, q.scheduled_s, q.first_token_s, q.finished_s])
    there = np.isfinite(stamps).all(axis=0) & (stamps[3] > start_s) & (stamps[0] < end_s)
    found = np.flatnonzero(there)
    found = found[np.argsort(stamps[0, found], kind="stable")]
    shown, some = found, ""
    if found.size > MAX_REQUESTS:
        shown, some = found[:MAX_REQUESTS], f"; the first {MAX_REQUESTS:,} of {found.size:,}"
    stamps, replicas = stamps[:, shown], q.replica[shown]
    lanes: defaultdict[int, Lanes] = defaultdict(Lanes)
    stays = zip(replicas.tolist(), stamps[0].tolist(), stamps[-1].tolist(), strict=True)
    taken = np.array([lanes[replica].take(arrival, end) for replica, arrival, end in stays], np.int64)
    names: list[Event] = []
    for replica, used in lanes.items():
        names.append(process_name(first_process + replica, f"requests of replica {replica}{some}"))
        names += [thread_name(first_process + replica, lane, f"lane {lane}") for lane in range(used.count)]
    about = {"request": shown, "prompt_tokens": q.prompt_tokens[shown], "output_tokens": q.output_tokens[shown]}
    columns = {"pid": first_process + replicas, "tid": taken, **about}
    at = np.rint(stamps * 1e6).astype(np.int64)
    slices = pl.DataFrame(
        {
            "name": PHASES * shown.size,
            "ts": at[:-1].T.ravel(),
            "dur": np.diff(at, axis=0).T.ravel(),
            **{name: np.repeat(column, len(PHASES)) for name, column in columns.items()},
        }
    )
    slices = slices.filter(pl.col("dur") > 0)
    return slices.select("name", pl.lit("X").alias("ph"), "ts", "dur", "pid", "tid", args=pl.struct(*about)), names
