"""A run as Vidur writes it: `request_metrics.csv`, `batch_metrics.csv` and `chrome_trace.json`, under its names.

Vidur books a request's time by the batches that it was in: execution is the time inside them, stage by stage, and
pre-emption the time between them, whatever the reason. So the run must have kept who was in which batch.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import ConfigError
from gnomon.report.perfetto import microseconds
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.results.latency_breakdown import NAMES, accounts
from gnomon.serving.run.simulate import Run

_HOST = NAMES.index("host")


def num_members(run: Run) -> int:
    """How many entries the batches of a run have; an error where it kept some of its iterations only."""
    if run.log.used[3] > 1:
        raise ConfigError(
            "the run has more iterations than a log can hold.", where="--export vidur",
            fix="Simulate fewer requests (workload.num_requests).",
        )  # fmt: skip
    rows = run.log.iterations[: run.log.used[0]]
    return int(rows["size"][rows["stage"] == 0].sum())


def request_metrics(run: Run) -> str:
    """One row per finished request, of a run that was explained and kept the members of its batches."""
    q = run.cluster.requests
    done = np.flatnonzero(q.status == FINISHED)
    execution_s = _executed(run)
    prompt, output = q.prompt_tokens[done].astype(np.int64), q.output_tokens[done].astype(np.int64)
    arrival_s, scheduled_s = q.arrival_s[done], q.scheduled_s[done]
    e2e_s, execution = q.finished_s[done] - arrival_s, execution_s[done]
    told = accounts(run)
    host_s = np.zeros(q.size)
    host_s[told.ids] = told.parts_ns[:, :, _HOST].sum(axis=1) / 1e9
    model = execution - host_s[done]
    in_engine = q.finished_s[done] - scheduled_s
    prefill_s, decode_s = q.first_token_s[done] - scheduled_s, q.finished_s[done] - q.first_token_s[done]
    columns: dict[str, Any] = {
        "Request Id": done,
        "request_e2e_time": e2e_s, "request_e2e_time_normalized": e2e_s / output,
        "request_execution_time": execution, "request_execution_time_normalized": execution / output,
        "request_model_execution_time": model, "request_model_execution_time_normalized": model / output,
        "request_preemption_time": np.maximum(0.0, in_engine - execution),
        "request_scheduling_delay": scheduled_s - arrival_s,
        "request_execution_plus_preemption_time": in_engine,
        "request_execution_plus_preemption_time_normalized": in_engine / output,
        "prefill_e2e_time": q.first_token_s[done] - arrival_s,
        "prefill_time_execution_plus_preemption": prefill_s,
        "prefill_time_execution_plus_preemption_normalized": prefill_s / prompt,
        "decode_time_execution_plus_preemption_normalized": decode_s / output,
        "request_inter_arrival_delay": np.diff(arrival_s, prepend=arrival_s[:1]),
        "request_num_tokens": prompt + output, "request_num_prefill_tokens": prompt,
        "request_num_decode_tokens": output, "request_pd_ratio": prompt / output,
        "request_num_restarts": q.num_restarts[done],
    }  # fmt: skip
    return pl.DataFrame({name: np.ascontiguousarray(values) for name, values in columns.items()}).write_csv()


def batch_metrics(run: Run) -> str:
    """One row per batch and replica."""
    log = run.log.iterations[: run.log.used[0]]
    frame = pl.DataFrame({name: np.ascontiguousarray(log[name]) for name in log.dtype.names or ()})
    batches = frame.group_by("replica", "number").agg(
        pl.col("start_s").min(), pl.col("end_s").max(), pl.col("size", "tokens", "prefill_tokens", "decodes").first(),
        seconds=(pl.col("end_s") - pl.col("start_s")).sum(),
    )  # fmt: skip
    return (
        batches.sort("start_s", "replica")
        .select(
            pl.int_range(pl.len()).alias("Batch Id"),
            pl.col("replica").alias("replica_id"),
            pl.col("seconds").alias("batch_execution_time"),
            pl.col("size").alias("batch_size"),
            pl.col("tokens").alias("batch_num_tokens"),
            pl.col("prefill_tokens").alias("batch_num_prefill_tokens"),
            pl.col("decodes").alias("batch_num_decode_tokens"),
        )
        .write_csv()
    )


def chrome_trace(run: Run) -> str:
    """One event per batch and stage: a replica is a process, a stage a thread."""
    events = []
    for row, members in _batches(run):
        request_ids, tokens = members[:, 0].tolist(), members[:, 1].tolist()
        args = {
            "batch_id": int(row["number"]), "batch_size": len(request_ids), "request_ids": request_ids,
            "num_tokens": tokens, "num_prefill_tokens": int(row["prefill_tokens"]),
            "num_decode_tokens": int(row["decodes"]),
        }  # fmt: skip
        begin, end = microseconds(float(row["start_s"])), microseconds(float(row["end_s"]))
        where = {"ts": begin, "dur": end - begin, "pid": int(row["replica"]), "tid": int(row["stage"])}
        events.append({"name": str(request_ids), "ph": "X", **where, "args": args})
    return json.dumps({"traceEvents": events})


def _executed(run: Run) -> Floats:
    """Of every request: seconds inside of batches, all stages together."""
    seconds = np.zeros(run.cluster.requests.size)
    for row, members in _batches(run):
        seconds[members[:, 0]] += row["end_s"] - row["start_s"]
    return seconds


def _batches(run: Run) -> Iterator[tuple[Any, Ints]]:
    """Every batch on every stage, with [request, tokens] of its members."""
    rows = run.log.iterations[: run.log.used[0]]
    assert (rows["first_member"] >= 0).all(), "the run did not keep the members of its batches"
    for row in rows:
        yield row, run.log.members[row["first_member"] : row["first_member"] + row["size"]]
