"""The event log: what happened to every request, in order of time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gnomon.core.errors import ConfigError
from gnomon.core.files import write_text
from gnomon.serving.engine.state import FINISHED, NOT_ARRIVED, REJECTED, SHED
from gnomon.serving.run.simulate import Run

EVENTS = (
    "arrival", "queued", "shed", "rejected", "prefilled", "transfer", "transferred", "first_token", "finished",
    "preempted", "restarted", "scheduled", "resumed", "chunk",
)  # fmt: skip
"""In the order in which those of one moment are listed: what an iteration brought, then what the next one needs."""
MOST_CHUNKS = 4_000_000
"""Parts of prompts that a log of events can hold."""
_SCHEMA: dict[str, Any] = {
    "time_s": pl.Float64, "event": pl.Enum(EVENTS), "request": pl.Int64, "replica": pl.Int64, "tokens": pl.Int64,
    "end_s": pl.Float64,
}  # fmt: skip


def event_frame(run: Run) -> pl.DataFrame:
    """One row per event: time, event, request and replica; of a `chunk`, its tokens and when its iteration ended.

    The run must have kept its chunks (`run(..., keep_chunks=MOST_CHUNKS)`).
    """
    q, chunks = run.cluster.requests, _chunks(run)
    ids = np.arange(q.size)
    parts = [
        _rows(event, ids[happened], time_s[happened], replica[happened])
        for event, happened, time_s, replica in _stamps(run, chunks)
        if happened.any()
    ]
    parts.append(
        _rows("chunk", chunks["request"], chunks["start_s"], chunks["replica"], chunks["tokens"], chunks["end_s"])
    )
    parts += _interruptions(run, chunks)
    return pl.concat(parts).sort("time_s", "request", "event", maintain_order=True)


def _chunks(run: Run) -> pl.DataFrame:
    """What the engine wrote down of prompts, by request and time."""
    count, room = int(run.log.used[5]), run.log.chunks.size
    if count > room:
        raise ConfigError(
            f"prompts were computed in {count:,} parts; a log of events can hold {room:,}.", where="--events",
            fix="Simulate fewer requests (workload.num_requests).",
        )  # fmt: skip
    rows = run.log.chunks[:count]
    frame = pl.DataFrame({name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()})
    return frame.sort("request", "start_s", maintain_order=True)


def _stamps(run: Run, chunks: pl.DataFrame) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """What a request's own record says: (event, of whom, when, where)."""
    q = run.cluster.requests
    has_arrived = (q.status != NOT_ARRIVED) | (q.num_restarts > 0)
    was_queued = has_arrived & (q.status != SHED)
    was_scheduled = (q.scheduled_s >= 0) & ((q.status != REJECTED) | (q.num_restarts > 0))
    first = np.where(q.prefill_replica >= 0, q.prefill_replica, q.replica)
    begun = chunks.unique("request", keep="first", maintain_order=True)
    first[begun["request"].to_numpy()] = begun["replica"].to_numpy()
    nowhere = np.full(q.size, -1)
    return [
        ("arrival", has_arrived, q.arrival_s, nowhere),
        ("queued", was_queued, q.arrival_s + q.front_s, first),
        ("shed", q.status == SHED, q.arrival_s + q.front_s, nowhere),
        ("scheduled", was_scheduled, q.scheduled_s, first),
        ("prefilled", q.prefilled_s >= 0, q.prefilled_s, q.prefill_replica),
        ("transfer", q.moving_s >= 0, q.moving_s, q.prefill_replica),
        ("transferred", q.landed_s >= 0, q.landed_s, q.replica),
        ("first_token", q.first_token_s >= 0, q.first_token_s, q.replica),
        ("finished", (q.status == FINISHED) & (q.finished_s >= 0), q.finished_s, q.replica),
        ("rejected", (q.status == REJECTED) & (q.finished_s >= 0), q.finished_s, q.replica),
        ("preempted", q.preempted_at_s >= 0, q.preempted_at_s, q.replica),  # and not scheduled again until the end
    ]


def _interruptions(run: Run, chunks: pl.DataFrame) -> list[pl.DataFrame]:
    """Where a request's count of restarts grows from one chunk to the next, it was pre-empted, for as long as its
    record says, or it started over: elsewhere, or on a replica that was away meanwhile."""
    before = pl.col("restarts", "preempted_s", "replica").shift(1).over("request").name.suffix("_before")
    begun = chunks.with_columns(before).filter(pl.col("restarts") > pl.col("restarts_before").fill_null(0))
    begun = begun.with_columns(away_s=pl.col("preempted_s") - pl.col("preempted_s_before").fill_null(0.0))
    stayed = pl.col("replica") == pl.col("replica_before").fill_null(pl.col("replica"))
    is_preempted = stayed & ((pl.col("away_s") > 0) | pl.lit(run.fleet is None))
    resumed, moved = begun.filter(is_preempted), begun.filter(~is_preempted)
    return [
        _rows("preempted", resumed["request"], resumed["start_s"] - resumed["away_s"], resumed["replica"]),
        _rows("resumed", resumed["request"], resumed["start_s"], resumed["replica"]),
        _rows("restarted", moved["request"], moved["start_s"], moved["replica"]),
        _given_up(run, chunks),
    ]


def _given_up(run: Run, chunks: pl.DataFrame) -> pl.DataFrame:
    """Pre-emptions of requests that were rejected when their turn came again: memory would never be enough."""
    q, last = run.cluster.requests, chunks.unique("request", keep="last", maintain_order=True)
    ids = last["request"].to_numpy()
    is_over = (q.status[ids] == REJECTED) & (q.num_restarts[ids] > last["restarts"].to_numpy())
    away_s = q.preempted_s[ids] - last["preempted_s"].to_numpy()
    return _rows("preempted", ids[is_over], (q.finished_s[ids] - away_s)[is_over], q.replica[ids][is_over])


def _rows(
    event: str, request: object, time_s: object, replica: object, tokens: object = None, end_s: object = None
) -> pl.DataFrame:
    columns = {"time_s": time_s, "request": request, "replica": replica, "tokens": tokens, "end_s": end_s}
    known = {
        name: np.ascontiguousarray(values) if isinstance(values, np.ndarray) else values
        for name, values in columns.items()
    }
    frame = pl.DataFrame(known).with_columns(event=pl.lit(event))
    return frame.select(pl.col(name).cast(kind) for name, kind in _SCHEMA.items()).with_columns(
        pl.col("replica").replace(-1, None)
    )


def write_events(run: Run, path: str | Path) -> Path:
    """Write the log as a JSON list, one event per line."""
    rows = event_frame(run).iter_rows(named=True)
    known = ({name: value for name, value in row.items() if value is not None} for row in rows)
    lines = ",\n".join(json.dumps(row) for row in known)
    return write_text(path, f"[\n{lines}\n]\n")
