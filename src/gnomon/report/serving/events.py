"""The event log: what happened to every request, in order of time."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

from gnomon.core.files import write_text

EVENTS = {"arrival_s": "arrival", "scheduled_s": "scheduled", "first_token_s": "first_token", "finished_s": "end"}


def event_frame(requests: pl.DataFrame) -> pl.DataFrame:
    """One row per event: time, event, request, replica. A rejected request ends as "rejected"."""
    happened = requests.with_columns(pl.col("status").cast(pl.String))
    ends = pl.when(pl.col("status") == "rejected").then(pl.lit("rejected")).otherwise(pl.lit("finished"))
    rows = happened.unpivot(
        list(EVENTS), index=["request", "replica", "status"], variable_name="event", value_name="time_s"
    ).drop_nulls("time_s")
    rows = rows.with_columns(event=pl.col("event").replace(EVENTS))
    rows = rows.with_columns(event=pl.when(pl.col("event") == "end").then(ends).otherwise(pl.col("event")))
    return rows.select("time_s", "event", "request", "replica").sort("time_s", "request", maintain_order=True)


def write_events(requests: pl.DataFrame, path: str | Path) -> Path:
    """Write the log as a JSON list, one event per line."""
    lines = ",\n".join(json.dumps(row) for row in event_frame(requests).iter_rows(named=True))
    return write_text(path, f"[\n{lines}\n]\n")
