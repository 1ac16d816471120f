"""Recorded Vidur runs, replayed batch by batch.

The recorded stage times replace the timing tables, so that only scheduling is left to compare: every batch must hold
the same requests with the same tokens, in the same order on the same replica, and every stamp must agree to 1e-9 s.
"""

import gzip
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gnomon.core.arrays import Ints
from gnomon.core.config import build
from gnomon.core.errors import DataError
from gnomon.core.text import read_json
from gnomon.report.blocks import Block, Line, Table
from gnomon.serving.run.build import Recording
from gnomon.serving.run.simulate import Run, run
from gnomon.serving.scenario import Scenario
from gnomon.verify.findings import Findings, Progress, each, proof
from gnomon.workload import Requests

TOLERANCE_S = 1e-9
_ROUTERS = {"round_robin": "round_robin", "lor": "vidur_lor", "random": "round_robin"}
_RUN_KEYS = ("model", "device", "tensor_parallel", "pipeline_parallel", "num_replicas", "router", "scheduler")
_REQUEST_COLUMNS = (
    "request_id", "replica_id", "arrived_at_s", "prompt_tokens", "output_tokens", "first_scheduled_at_s",
    "first_token_at_s", "completed_at_s", "num_restarts",
)  # fmt: skip
_BATCH_COLUMNS = (
    "batch_id", "replica_id", "scheduled_at_s", "completed_at_s", "request_ids", "num_tokens", "allocated_blocks_after",
    "stage_times_s",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    name: str
    scheduler: str
    num_requests: int
    num_batches: int
    """Batches compared."""
    first_difference: str | None
    """The first batch or request that differs, in words; None when all agree."""
    largest_stamp_error_s: float
    num_block_differences: int
    """Batches after which a different number of blocks was in use."""
    blocks_are_compared: bool
    """Vidur's faster_transformer never frees early finishers' blocks, so that column is only reported there."""

    @property
    def agrees(self) -> bool:
        blocks_agree = self.num_block_differences == 0 or not self.blocks_are_compared
        return self.first_difference is None and self.largest_stamp_error_s <= TOLERANCE_S and blocks_agree


@dataclass(frozen=True)
class RecordedRun:
    folder: Path
    setup: dict[str, Any]
    requests: pl.DataFrame
    batches: pl.DataFrame


def read_run(folder: str | Path) -> RecordedRun:
    """Read `run.json`, `requests.csv(.gz)` and `batches.csv(.gz)` of a run directory."""
    folder = Path(folder)
    setup_file = folder / "run.json"
    if not setup_file.is_file():
        raise DataError("is not a recorded run: there is no run.json.", where=str(folder), fix="Give a run directory.")
    setup = read_json(setup_file)
    if not isinstance(setup, dict):
        raise DataError("is not a JSON object.", where=str(setup_file))
    missing = [key for key in _RUN_KEYS if key not in setup]
    if missing:
        raise DataError(f"lacks {', '.join(missing)}.", where=str(setup_file))
    requests = _read_table(folder, "requests", _REQUEST_COLUMNS)
    batches = _read_table(folder, "batches", _BATCH_COLUMNS)
    return RecordedRun(folder, setup, requests.sort("request_id"), batches)


def _read_table(folder: Path, name: str, columns: tuple[str, ...]) -> pl.DataFrame:
    file = next((one for one in (folder / f"{name}.csv.gz", folder / f"{name}.csv") if one.is_file()), None)
    if file is None:
        raise DataError(f"there is no {name}.csv or {name}.csv.gz.", where=str(folder))
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    lists: dict[str, Any] = dict.fromkeys({"request_ids", "num_tokens", "stage_times_s"} & set(columns), pl.String)
    try:
        table = pl.read_csv(text, schema_overrides=lists, infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"cannot be read: {error}.", where=str(file)) from None
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise DataError(f"lacks the columns {', '.join(missing)}.", where=str(file))
    if table.is_empty():
        raise DataError("is empty.", where=str(file))
    return table


def compare(folder: str | Path) -> Comparison:
    recorded = read_run(folder)
    scenario = scenario_of(recorded)
    recording, order = _recording(recorded)
    replay = run(scenario, requests=_requests(recorded), recording=recording, forced_replicas=_forced(recorded))
    difference, stamp_error, blocks_off, count = _compare_batches(recorded, replay, order)
    difference, stamp_error = _compare_requests(recorded, replay, difference, stamp_error)
    name = recorded.setup["scheduler"]["name"]
    return Comparison(
        name=recorded.folder.name, scheduler=name, num_requests=len(recorded.requests), num_batches=count,
        first_difference=difference, largest_stamp_error_s=stamp_error, num_block_differences=blocks_off,
        blocks_are_compared=name != "faster_transformer",
    )  # fmt: skip


def scenario_of(recorded: RecordedRun) -> Scenario:
    setup, scheduler = recorded.setup, recorded.setup["scheduler"]
    router = setup["router"]
    if router not in _ROUTERS:
        what = f"unknown router {router!r}."
        raise DataError(what, where=str(recorded.folder / "run.json"), fix=f"Known: {', '.join(_ROUTERS)}.")
    batching = {
        "policy": scheduler["name"], "max_sequences": scheduler["batch_size_cap"],
        "block_size": scheduler["block_size"], "watermark": scheduler.get("watermark_blocks_fraction"),
        "max_batch_tokens": scheduler.get("chunk_size") or scheduler.get("max_tokens_in_batch"),
        "options": {"max_waiting_iterations": iterations} if (iterations := scheduler.get("max_waiting_iters")) else {},
    }  # fmt: skip
    blocks = setup.get("num_kv_blocks") or scheduler.get("num_blocks")
    replica = {
        "tensor_parallel": setup["tensor_parallel"], "pipeline_parallel": setup["pipeline_parallel"],
        "memory_utilization": 1 - setup.get("memory_margin_fraction", 0.1), "planner": "vidur", "num_kv_blocks": blocks,
        "max_request_tokens": setup.get("max_tokens"),
    }  # fmt: skip
    return build(
        Scenario,
        {
            "model": setup["model"], "engine": "none", "device": setup["device"],
            "num_replicas": setup["num_replicas"],
            "replica": {k: v for k, v in replica.items() if v is not None},
            "batching": {k: v for k, v in batching.items() if v is not None}, "router": _ROUTERS[router],
        },
        where=str(recorded.folder / "run.json"),
    )  # fmt: skip


def _requests(recorded: RecordedRun) -> Requests:
    names = ("arrived_at_s", "prompt_tokens", "output_tokens")
    arrived, prompt, output = (recorded.requests[name].to_numpy() for name in names)
    return Requests(arrived, prompt, output)


def _forced(recorded: RecordedRun) -> Ints | None:
    """Vidur's random router draws from a generator that is not recorded: its choices are taken as they were."""
    if recorded.setup["router"] != "random":
        return None
    return recorded.requests["replica_id"].to_numpy().astype(np.int64)


def _lists(column: pl.Series, dtype: Any) -> list[Any]:
    return [np.array(text.split(), dtype) for text in column.to_list()]


def _recording(recorded: RecordedRun) -> tuple[Recording, Ints]:
    """The stage times of every replica's batches in file order, and that order."""
    replica = recorded.batches["replica_id"].to_numpy()
    order = np.argsort(replica, kind="stable")
    stages = np.stack(_lists(recorded.batches["stage_times_s"], np.float64))[order]
    counts = np.bincount(replica, minlength=recorded.setup["num_replicas"])
    members = int(recorded.batches["request_ids"].str.count_matches(r"\S+").sum())
    first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return Recording(first, np.ascontiguousarray(stages), 2 * members), order


def _compare_batches(recorded: RecordedRun, replay: Run, order: Ints) -> tuple[str | None, float, int, int]:
    """Compare batches by replica: the first difference, the largest stamp error, block counts off, how many."""
    stages = recorded.setup["pipeline_parallel"]
    rows = replay.log.iterations[: replay.log.used[0]]
    first_stage = rows[rows.stage == 0]
    ours = first_stage[np.lexsort((first_stage.number, first_stage.replica))]
    ends = rows[rows.stage == stages - 1]
    end_s = ends[np.lexsort((ends.number, ends.replica))].end_s
    theirs = recorded.batches[order.tolist()]
    ids, tokens = _lists(theirs["request_ids"], np.int64), _lists(theirs["num_tokens"], np.int64)
    members = replay.log.members
    count = min(len(ours), len(theirs))
    for i in range(count):
        here = members[ours.first_member[i] : ours.first_member[i] + ours["size"][i]]
        if not (np.array_equal(here[:, 0], ids[i]) and np.array_equal(here[:, 1], tokens[i])):
            return _batch_difference(theirs, i, here, ids[i], tokens[i]), 0.0, 0, i
    difference = None if len(ours) == len(theirs) else f"{len(theirs)} batches were recorded, {len(ours)} replayed"
    start_error = np.abs(ours.start_s[:count] - theirs["scheduled_at_s"].to_numpy()[:count])
    end_error = np.abs(end_s[:count] - theirs["completed_at_s"].to_numpy()[:count])
    blocks = theirs["allocated_blocks_after"].to_numpy()[:count] != ours.used_blocks[:count]
    # With pipeline stages a batch is formed before its first stage is free: only its end is a stamp of ours.
    errors = end_error if stages > 1 else np.maximum(start_error, end_error)
    return difference, float(errors.max(initial=0.0)), int(blocks.sum()), count


def _batch_difference(theirs: pl.DataFrame, i: int, here: Ints, ids: Ints, tokens: Ints) -> str:
    def shown(requests: Ints, counts: Ints) -> str:
        pairs = [f"{r}:{t}" for r, t in zip(requests.tolist(), counts.tolist(), strict=True)]
        return " ".join(pairs[:12]) + (" ..." if len(pairs) > 12 else "")

    return (
        f"batch {theirs['batch_id'][i]} of replica {theirs['replica_id'][i]} at {theirs['scheduled_at_s'][i]:.6f} s"
        f" was [{shown(ids, tokens)}], is [{shown(here[:, 0], here[:, 1])}] (request:tokens)"
    )


def _compare_requests(
    recorded: RecordedRun, replay: Run, difference: str | None, error: float
) -> tuple[str | None, float]:
    """Compare every request's replica, restarts and stamps."""
    table, ours = recorded.requests, replay.cluster.requests
    if difference is None:
        for column, field in (("replica_id", "replica"), ("num_restarts", "num_restarts")):
            off = np.flatnonzero(table[column].to_numpy() != ours[field])
            if off.size:
                i = int(off[0])
                difference = f"request {i}: {column} was {table[column][i]}, is {ours[field][i]}"
                break
    stamps = {"first_scheduled_at_s": ours.scheduled_s, "first_token_at_s": ours.first_token_s,
              "completed_at_s": ours.finished_s}  # fmt: skip
    if difference is None:
        error = max(error, *(float(np.abs(table[name].to_numpy() - mine).max()) for name, mine in stamps.items()))
    return difference, error


@proof("vidur")
def prove(*runs: str | Path, on_progress: Progress | None = None) -> Findings:
    """Scheduling semantics: recorded Vidur runs, batch by batch."""
    return findings([compare(folder) for folder in each(runs, on_progress)])


def findings(found: list[Comparison]) -> Findings:
    rows = [{**asdict(one), "agrees": one.agrees} for one in found]
    table = [
        {
            "run": one.name, "scheduler": one.scheduler, "requests": one.num_requests,
            "batches compared": one.num_batches, "largest stamp error": f"{one.largest_stamp_error_s:.1e} s",
            "block counts off": ("{:,}" if one.blocks_are_compared else "({})").format(one.num_block_differences),
            "agrees": one.agrees,
        }
        for one in found
    ]  # fmt: skip
    differing = [f"{one.name}: {one.first_difference}" for one in found if one.first_difference]
    blocks: list[Block] = [Table(table), *(Line(text) for text in differing)]
    return Findings(found, rows, {"runs": rows}, blocks, [one.name for one in found if not one.agrees])
