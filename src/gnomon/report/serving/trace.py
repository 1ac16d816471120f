"""A serving run as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: a lane per replica and stage."""

from __future__ import annotations

import gzip
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gnomon.core.files import written_whole
from gnomon.report.perfetto import Event, process_name, thread_name
from gnomon.report.serving.trace_requests import request_slices
from gnomon.report.serving.transfers import transfer_events
from gnomon.serving.features import breakdown
from gnomon.serving.results.latency_breakdown import NAMES, accounts
from gnomon.serving.run.simulate import Run

MAX_ROWS = 100_000
"""Iterations (times stages) in a trace: about as many as a browser shows without effort."""
MAX_COUNTERS = 20_000
"""Points of each counter."""


def write_trace(run: Run, path: str | Path, max_rows: int = MAX_ROWS) -> Path:
    """Write a trace, compressed if the name ends in .gz; a stretch from the middle of the run if it is too long.

    A process is a replica, a thread a pipeline stage; beside them the KV blocks in use and the requests that wait.
    Further processes hold the requests of each replica: slices of waiting, prefill and decode.
    What is left out is said in the trace's metadata and in the names of its processes.
    """
    rows = shown_rows(run, max_rows)
    said = _said(run, len(rows))
    events = _names(run, said) + _slow_requests(run, rows)
    frames = [_slices(rows), *_counters(rows)]
    if len(rows):
        stretch = (float(rows["start_s"].min() or 0.0), float(rows["end_s"].max() or 0.0))  # type: ignore[arg-type]
        events += transfer_events(run, *stretch, max_rows)
        # After the replicas and the process of the slowest requests.
        slices, names = request_slices(run, *stretch, int(run.cluster.replicas.size) + 1)
        events += names
        frames.append(slices)
    head = json.dumps({"displayTimeUnit": "ms", "otherData": {"what": said}})[:-1] + ', "traceEvents": [\n'
    tail = json.dumps(events)[1:] + "}\n"
    text = b"".join([head.encode(), *map(_lines, frames), tail.encode()])
    with written_whole(path) as temporary:
        is_compressed = Path(path).suffix == ".gz"
        temporary.write_bytes(gzip.compress(text, compresslevel=1, mtime=0) if is_compressed else text)
    return Path(path)


def _lines(frame: pl.DataFrame) -> bytes:
    """An event for each row, as elements of a JSON list with others after them."""
    buffer = BytesIO()
    frame.write_ndjson(buffer)
    return buffer.getvalue().replace(b"\n", b",\n")


def shown_rows(run: Run, max_rows: int = MAX_ROWS) -> pl.DataFrame:
    """The iterations that go into the trace: all, or an unbroken stretch from the middle of the run."""
    log = run.log.iterations[: run.log.used[0]]
    if len(log) > max_rows:
        # Cut by time, so that every lane covers the same stretch.
        starts = np.sort(log["start_s"])
        first = (len(log) - max_rows) // 2
        log = log[(log["start_s"] >= starts[first]) & (log["start_s"] < starts[first + max_rows])]
    names = (
        "replica",
        "stage",
        "number",
        "start_s",
        "end_s",
        "size",
        "prefill_tokens",
        "decodes",
        "used_blocks",
        "waiting",
    )
    return pl.DataFrame({name: np.ascontiguousarray(log[name]) for name in names})


def _said(run: Run, shown: int) -> str:
    """What a reader should know about what is left out."""
    total, one_in = int(run.log.used[0]), int(run.log.used[3])
    said = "every iteration" if one_in == 1 else f"one in {one_in} iterations"
    return said if shown == total else f"{said}, {shown:,} of {total:,} rows from the middle of the run"


def _names(run: Run, said: str) -> list[Event]:
    pool_of = run.pool_of_replica
    events: list[Event] = []
    for r, stages in enumerate(run.cluster.replicas.num_stages.tolist()):
        pool = run.pools[pool_of[r]]
        role = "" if pool.role == "both" else f"{pool.role} "
        name = f"{role}replica {r} ({pool.device.name}; {said})"
        events.append(process_name(r, name))
        events += [thread_name(r, stage, f"stage {stage}") for stage in range(stages)]
    return events


_NUM_SLOW = 20
"""Requests that are told of one by one."""


def _slow_requests(run: Run, rows: pl.DataFrame) -> list[Event]:
    """The slowest requests of the stretch shown, a lane each: waiting, prefill, decode, with where the time went.
    Nothing where accounts were not kept."""
    if not run.cluster.breakdown.size or not len(rows):
        return []
    found, q = accounts(run), run.cluster.requests
    seconds, parts = found.values_s("e2e"), found.parts_ns
    shown = (found.requests.finished_s > rows["start_s"].min()) & (found.requests.arrival_s < rows["end_s"].max())
    chosen = np.flatnonzero(shown)
    chosen = chosen[np.argsort(-seconds[chosen], kind="stable")][:_NUM_SLOW]
    pid = int(run.cluster.replicas.size)
    events: list[Event] = [process_name(pid, "slowest requests")]
    for lane, row in enumerate(chosen):
        request = q[found.ids[row]]
        events.append(thread_name(pid, lane, f"request {found.ids[row]} on replica {request.replica}"))
        stamps = [request.arrival_s, request.scheduled_s, request.first_token_s, request.finished_s]
        at = [round(float(stamp) * 1e6) for stamp in stamps]
        booked = (_milliseconds(parts[row, 0, : breakdown.PREFILL_ALONE], 0),
                  _milliseconds(parts[row, 0, breakdown.PREFILL_ALONE :], breakdown.PREFILL_ALONE),
                  _milliseconds(parts[row, 1], 0))  # fmt: skip
        for name, start, end, where in zip(("waiting", "prefill", "decode"), at[:-1], at[1:], booked, strict=True):
            if end > start:
                args = {"prompt_tokens": int(request.prompt_tokens), "output_tokens": int(request.output_tokens)}
                events.append(
                    {"ph": "X", "name": name, "ts": start, "dur": end - start, "pid": pid, "tid": lane,
                     "args": args | where}
                )  # fmt: skip
    return events


def _milliseconds(parts: Any, first: int) -> dict[str, float]:
    """Parts by name, in milliseconds; those that are not zero."""
    return {f"{NAMES[first + i]}_ms": float(value) / 1e6 for i, value in enumerate(parts) if value}


def _slices(rows: pl.DataFrame) -> pl.DataFrame:
    """One complete event per iteration and stage, named by what it holds (Perfetto colours by name)."""
    has_prefill, has_decodes = pl.col("prefill_tokens") > 0, pl.col("decodes") > 0
    name = pl.when(has_prefill & has_decodes).then(pl.lit("mixed"))
    return rows.select(
        ph=pl.lit("X"),
        name=name.when(has_prefill).then(pl.lit("prefill")).otherwise(pl.lit("decode")),
        ts=_microseconds("start_s"),
        dur=_microseconds("end_s") - _microseconds("start_s"),
        pid="replica",
        tid="stage",
        args=pl.struct(requests="size", prefill_tokens="prefill_tokens", decodes="decodes", iteration="number"),
    )


def _counters(rows: pl.DataFrame) -> list[pl.DataFrame]:
    first = rows.filter(pl.col("stage") == 0)
    some = first.gather_every(max(1, len(first) // MAX_COUNTERS))
    return [
        some.select(ph=pl.lit("C"), name=pl.lit(name), ts=_microseconds("end_s"), pid="replica", args=pl.struct(value))
        for name, value in (("KV blocks", "used_blocks"), ("waiting requests", "waiting"))
    ]


def _microseconds(column: str) -> pl.Expr:
    """`report.perfetto.microseconds` of a whole column."""
    return (pl.col(column) * 1e6).round().cast(pl.Int64)
