"""The folder of a run: the scenario to run it again, the summary, the tables, the report, the trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from gnomon import catalog
from gnomon.core.config import save
from gnomon.core.files import folder_written_whole, write_frame, write_text
from gnomon.report.blocks import Block, Figure
from gnomon.report.serving import figures
from gnomon.report.serving.exports import EXPORTS
from gnomon.report.serving.fleet import fleet_frame
from gnomon.report.serving.frames import iteration_frame, request_frame
from gnomon.report.serving.intervals import as_data
from gnomon.report.serving.operators import operator_frame, operators_over_time
from gnomon.report.serving.page import write_report
from gnomon.report.serving.text import summary_blocks
from gnomon.report.serving.trace import write_trace
from gnomon.search.headroom import Headroom
from gnomon.serving.results.intervals import Intervals
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import Run
from gnomon.serving.scenario import Scenario

EXTRAS = ("csv", "events", "operators")
"""What is written only on request: the tables as CSV, every request's events as JSON, operator-level times."""


FILES = (
    "scenario.yaml",
    "summary.json",
    *(
        f"{table}.{suffix}"
        for table in ("requests", "iterations", "operators", "operators_over_time", "fleet")
        for suffix in ("parquet", "csv")
    ),
    "events.json",
    "trace.json.gz",
    "report.html",
    *(file for file, _ in EXPORTS.values()),
)
"""What the folder of a run holds: nothing else."""


def text(result: Any) -> list[Block]:
    """The summary as tables, then warnings and notes."""
    spread = None if result.scenario.calibration else result.run.spread
    return summary_blocks(result.scenario, result.summary, result.headroom, result.intervals, spread)


def data(result: Any) -> dict[str, Any]:
    """The summary, its intervals and the scenario as nested plain data."""
    known = {
        "capacity": None if result.headroom is None else result.headroom.to_dict(),
        "intervals": as_data(result.intervals),
        "scenario": result.scenario.model_dump(mode="json"),
    }
    return dict(result.summary.to_dict() | known)


def tables(result: Any) -> dict[str, Callable[[], pl.DataFrame]]:
    """Requests, iterations, operators, and the fleet where there is one."""
    made = {
        "requests": request_frame,
        "iterations": iteration_frame,
        "operators": operator_frame,
        "operators_over_time": operators_over_time,
        **({"fleet": fleet_frame} if result.run.fleet is not None else {}),
    }
    return {name: partial(make, result.run) for name, make in made.items()}


def drawers(result: Any) -> dict[str, Callable[[], Figure]]:
    """Every figure of the report but those that say why."""
    return figures.drawers(result.run, result.summary)


def write_run(
    run: Run,
    summary: Summary,
    folder: str | Path,
    extras: tuple[str, ...] = (),
    room: Headroom | None = None,
    intervals: Intervals | None = None,
) -> Path:
    """Write everything about a run into `folder`, made if missing; a run that was there before is replaced whole."""
    with folder_written_whole(folder, FILES) as temporary:
        _write_files(run, summary, temporary, extras, room, intervals or {})
    return Path(folder)


def _write_files(
    run: Run, summary: Summary, folder: Path, extras: tuple[str, ...], room: Headroom | None, intervals: Intervals
) -> None:
    from gnomon.report.serving.events import write_events

    requests, iterations = request_frame(run), iteration_frame(run)
    save(spelled_out(run.scenario), folder / "scenario.yaml")
    write_text(folder / "summary.json", json.dumps(summary.to_dict() | {"intervals": as_data(intervals)}, indent=1))
    frames: dict[str, pl.DataFrame] = {"requests": requests, "iterations": iterations}
    if "operators" in extras:
        frames |= {"operators": operator_frame(run), "operators_over_time": operators_over_time(run)}
    if run.fleet is not None:
        frames["fleet"] = fleet_frame(run)
    for name, frame in frames.items():
        write_frame(folder / f"{name}.parquet", frame)
        if "csv" in extras:
            write_frame(folder / f"{name}.csv", frame)
    if "events" in extras:
        write_events(run, folder / "events.json")
    write_trace(run, folder / "trace.json.gz")
    files = [name for name in FILES if (folder / name).is_file()]
    write_report(run, summary, folder / "report.html", room, files, intervals)


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
