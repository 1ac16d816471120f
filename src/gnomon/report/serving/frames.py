"""The tables of a serving run as data frames: one row per request, one per iteration and stage."""

from __future__ import annotations

import numpy as np
import polars as pl

from gnomon.serving.engine.state import (
    FINISHED,
    IN_FLIGHT,
    MOVING,
    NOT_ARRIVED,
    PARKED,
    REJECTED,
    RUNNING,
    SHED,
    WAITING,
)
from gnomon.serving.results.latency import request_times
from gnomon.serving.run.simulate import Run

STATUS = {
    NOT_ARRIVED: "not_arrived",
    WAITING: "waiting",
    RUNNING: "running",
    IN_FLIGHT: "running",
    FINISHED: "finished",
    REJECTED: "rejected",
    SHED: "shed",
    PARKED: "waiting",
    MOVING: "moving",
}


def request_frame(run: Run) -> pl.DataFrame:
    """Every request: lengths, where it ran, stamps and latencies; null where something did not happen."""
    q, times = run.cluster.requests, request_times(run)
    scheduled = (q.scheduled_s >= 0) & ((q.status != REJECTED) | (q.num_restarts > 0))
    stamps = ("first_token_s", "finished_s")
    names = np.array([STATUS[code] for code in sorted(STATUS)])
    columns = {
        "request": np.arange(q.size),
        "status": pl.Series(names[q.status], dtype=pl.Categorical),
        "replica": q.replica,
        "arrival_s": np.where(np.isfinite(q.arrival_s), q.arrival_s, np.nan),
        "prompt_tokens": q.prompt_tokens,
        "output_tokens": q.output_tokens,
        "scheduled_s": np.where(scheduled, q.scheduled_s, np.nan),
        **{stamp: np.where(q[stamp] >= 0, q[stamp], np.nan) for stamp in stamps},
        "scheduling_delay_s": times.scheduling_delay_s,
        "ttft_s": times.ttft_s,
        "tpot_s": times.tpot_s,
        "e2e_s": times.e2e_s,
        "normalized_s": times.normalized_s,
        "preempted_s": q.preempted_s,
        "num_restarts": q.num_restarts,
        "cached_tokens": q.cached_tokens,
        "session": q.session,
    }
    if run.requests.classes:
        names = np.array([one.name for one in run.requests.classes])
        columns["class"] = pl.Series(names[q.user_class], dtype=pl.Categorical)
    frame = pl.DataFrame({name: _contiguous(values) for name, values in columns.items()}, nan_to_null=True)
    return frame.with_columns(pl.col("replica", "session").replace(-1, None))


def iteration_frame(run: Run) -> pl.DataFrame:
    """Every iteration that was kept, one row per pipeline stage."""
    rows = run.log.iterations[: run.log.used[0]]
    names = [name for name in rows.dtype.names or () if name != "first_member"]
    frame = pl.DataFrame({name: _contiguous(rows[name]) for name in names})
    return frame.rename({"number": "iteration"}).with_columns(duration_s=pl.col("end_s") - pl.col("start_s"))


def _contiguous(values: object) -> object:
    if not isinstance(values, np.ndarray):
        return values
    return np.ascontiguousarray(values, np.int64 if values.dtype.kind == "i" else None)  # As users know them.
