"""The folder of a run: the scenario to run it again, the summary, the tables, the report, the trace."""

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gnomon import catalog
from gnomon.core.config import save
from gnomon.core.errors import GnomonError, MissingExtraError
from gnomon.core.files import folder_written_whole, write_frame, write_text
from gnomon.report.blocks import Block, Facts, View
from gnomon.report.serving import figures
from gnomon.report.serving import text as words
from gnomon.report.serving.exports import EXPORTS
from gnomon.report.serving.figures import levels, rates
from gnomon.report.serving.fleet import day_tables, fleet_frame
from gnomon.report.serving.intervals import as_data
from gnomon.report.serving.operators import operator_frame, operators_over_time
from gnomon.report.serving.page import write_report
from gnomon.report.serving.text import summary_blocks
from gnomon.report.serving.trace import write_events, write_trace
from gnomon.search.load_curve import Headroom
from gnomon.serving.engine import state
from gnomon.serving.results.intervals import Intervals
from gnomon.serving.results.latency import request_times
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import Run
from gnomon.serving.scenario import Scenario

STATUS = {
    state.NOT_ARRIVED: "not_arrived", state.WAITING: "waiting", state.PARKED: "waiting", state.RUNNING: "running",
    state.IN_FLIGHT: "running", state.MOVING: "moving", state.FINISHED: "finished", state.REJECTED: "rejected",
    state.SHED: "shed", state.ABANDONED: "abandoned",
}  # fmt: skip


def request_frame(run: Run) -> pl.DataFrame:
    """Every request: lengths, where it ran, stamps and latencies; null where something did not happen."""
    q, times = run.cluster.requests, request_times(run)
    scheduled = (q.scheduled_s >= 0) & ((q.status != state.REJECTED) | (q.num_restarts > 0))
    stamps = ("first_token_s", "finished_s")
    names = np.array([STATUS[code] for code in sorted(STATUS)])
    columns = {
        "request": np.arange(q.size), "status": pl.Series(names[q.status], dtype=pl.Categorical), "replica": q.replica,
        "arrival_s": np.where(np.isfinite(q.arrival_s), q.arrival_s, np.nan), "prompt_tokens": q.prompt_tokens,
        "output_tokens": q.output_tokens, "scheduled_s": np.where(scheduled, q.scheduled_s, np.nan),
        **{stamp: np.where(q[stamp] >= 0, q[stamp], np.nan) for stamp in stamps},
        **{name: getattr(times, name) for name in ("scheduling_delay_s", "ttft_s", "tpot_s", "e2e_s", "normalized_s")},
        **{name: q[name] for name in ("preempted_s", "num_restarts", "cached_tokens", "session")},
    }  # fmt: skip
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


EXTRAS = ("csv", "events", "operators")
"""What is written only on request: the tables as CSV, every request's events as JSON, operator-level times."""

FRAMES: dict[str, Callable[[Run], pl.DataFrame]] = {
    "requests": request_frame, "iterations": iteration_frame, "operators": operator_frame,
    "operators_over_time": operators_over_time, "fleet": fleet_frame,
}  # fmt: skip
FILES = (
    "scenario.yaml", "summary.json", *(f"{table}.{suffix}" for table in FRAMES for suffix in ("parquet", "csv")),
    "events.json", "trace.json.gz", "report.html", *(file for files in EXPORTS.values() for file in files),
)  # fmt: skip
"""What the folder of a run holds: nothing else."""


def view(result: Any) -> View:
    run: Run = result.run
    frames = {name: make for name, make in FRAMES.items() if name != "fleet" or run.fleet}
    return View(
        words.title(run.scenario), partial(_text, result), partial(_data, result),
        {name: partial(make, run) for name, make in frames.items()},
        lambda: figures.drawers(run, result.summary),
    )  # fmt: skip


def _text(result: Any) -> list[Block]:
    """The summary as tables, then warnings and notes."""
    spread = None if result.scenario.calibration else result.run.spread
    blocks = summary_blocks(result.scenario, result.summary, result.headroom, result.intervals, spread)
    day = day_tables(result.run) if result.run.fleet is not None else []
    place = next((i for i, one in enumerate(blocks) if isinstance(one, Facts)), 0) + 1
    return [*blocks[:place], *day, *blocks[place:]]


def _data(result: Any) -> dict[str, Any]:
    """The summary, its intervals and the scenario as nested plain data."""
    known = {"capacity": result.headroom.to_dict(), "intervals": as_data(result.intervals)}
    return dict(result.summary.to_dict() | known | {"scenario": result.scenario.model_dump(mode="json")})


def write_run(
    run: Run, summary: Summary, folder: str | Path, extras: tuple[str, ...] = (), room: Headroom | None = None,
    intervals: Intervals | None = None,
) -> Path:  # fmt: skip
    """Write everything about a run into `folder`, made if missing; a run that was there before is replaced whole."""
    intervals = intervals or {}
    wanted = {"requests", "iterations", *(("operators", "operators_over_time") if "operators" in extras else ())}
    wanted |= {"fleet"} if run.fleet is not None else set()
    frames = {name: make(run) for name, make in FRAMES.items() if name in wanted}
    trace = "trace.json.gz"
    with folder_written_whole(folder, FILES) as made, ThreadPoolExecutor(1) as beside:
        written = beside.submit(write_trace, run, made / trace)  # By Polars and zlib for the most part, not by Python.
        save(spelled_out(run.scenario), made / "scenario.yaml")
        write_text(made / "summary.json", json.dumps(summary.to_dict() | {"intervals": as_data(intervals)}, indent=1))
        for name, frame in frames.items():
            write_frame(made / f"{name}.parquet", frame)
            if "csv" in extras:
                write_frame(made / f"{name}.csv", frame)
        if "events" in extras:
            write_events(run, made / "events.json")
        files = [name for name in FILES if name == trace or (made / name).is_file()]
        write_report(run, summary, made / "report.html", room, files, intervals)
        written.result()
    return Path(folder)


def spelled_out(scenario: Scenario) -> Scenario:
    """The scenario with the policy's defaults and the usual node written into it: it runs the same when they change."""
    pools = tuple(
        pool.model_copy(update={"batching": pool.batching.resolved()}) if pool.batching else pool
        for pool in scenario.pools
    )
    node = scenario.node
    if node is None and not pools:
        node = catalog.default_node(catalog.device(scenario.device)).name
    return scenario.model_copy(update={"batching": scenario.batching.resolved(), "pools": pools, "node": node})


_RATES = ("arrivals_per_s", "finished_per_s", "prompt_tokens_per_s", "output_tokens_per_s")
_LEVELS = ("waiting", "running", "kv_mean", "kv_max")


def log_run(run: Run, summary: Summary, project: str) -> str:
    """Log the scenario as the config, every number of the summary, and the time series; returns the run's address."""
    try:
        import wandb
    except ImportError:
        raise MissingExtraError("Logging to Weights & Biases", "wandb") from None
    figures = {key: value for key, value in flat(summary.to_dict()) if not key.startswith("replicas")}
    config = run.scenario.model_dump(mode="json")
    try:
        started = wandb.init(project=project, config=config, notes=words.title(run.scenario))
    except wandb.errors.Error as error:
        fix = "Run `wandb login`, or set WANDB_MODE=offline."
        raise GnomonError(f"Weights & Biases does not take the run: {error}.", where="--wandb", fix=fix) from None
    with started as logged:
        logged.define_metric("*", step_metric="time_s")
        for row in series_rows(run, summary):
            logged.log(row)
        logged.summary.update(figures)
        return str(logged.url or logged.dir)


def series_rows(run: Run, summary: Summary) -> list[dict[str, float]]:
    """The time series, one row per bin of its rates."""
    start = float(run.cluster.requests.arrival_s.min())
    span = (start, start + summary.duration_s)
    series = asdict(levels(run, *span)) | asdict(rates(run, *span))
    at = series["middle_s"]
    columns = {name: series[name] for name in _RATES}
    columns |= {name: np.interp(at, series["at_s"], series[name]) for name in _LEVELS}
    return pl.DataFrame({"time_s": at, **columns}).to_dicts()


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", value
