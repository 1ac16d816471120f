"""A serving run as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: a lane per replica and stage."""

import gzip
import json
from collections import defaultdict
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError
from gnomon.core.files import write_text, written_whole
from gnomon.report.perfetto import Event, Lanes, microseconds, process_name, slice_event, thread_name
from gnomon.serving.engine.state import ABANDONED, FINISHED, NOT_ARRIVED, REJECTED, SHED
from gnomon.serving.features import breakdown
from gnomon.serving.features.tiers import SOURCES
from gnomon.serving.results.latency_breakdown import NAMES, accounts
from gnomon.serving.run.simulate import Run

EVENTS = (
    "arrival", "queued", "shed", "rejected", "abandoned", "prefilled", "transfer", "transferred", "first_token",
    "finished", "preempted", "restarted", "scheduled", "resumed", "chunk",
)  # fmt: skip
"""In the order in which those of one moment are listed: what an iteration brought, then what the next one needs."""
MOST_CHUNKS = 4_000_000  # Parts of prompts that a log of events can hold.
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
    # Where a request's count of restarts grows from one chunk to the next, it was pre-empted, for as long as its
    # record says, or it started over: elsewhere, or on a replica that was away meanwhile.
    before = pl.col("restarts", "preempted_s", "replica").shift(1).over("request").name.suffix("_before")
    begun = chunks.with_columns(before).filter(pl.col("restarts") > pl.col("restarts_before").fill_null(0))
    begun = begun.with_columns(away_s=pl.col("preempted_s") - pl.col("preempted_s_before").fill_null(0.0))
    stayed = pl.col("replica") == pl.col("replica_before").fill_null(pl.col("replica"))
    is_preempted = stayed & ((pl.col("away_s") > 0) | pl.lit(run.fleet is None))
    resumed, moved = begun.filter(is_preempted), begun.filter(~is_preempted)
    parts += [
        _rows("preempted", resumed["request"], resumed["start_s"] - resumed["away_s"], resumed["replica"]),
        _rows("resumed", resumed["request"], resumed["start_s"], resumed["replica"]),
        _rows("restarted", moved["request"], moved["start_s"], moved["replica"]),
        _given_up(run, chunks),
    ]
    return pl.concat(parts).sort("time_s", "request", "event", maintain_order=True)


def _chunks(run: Run) -> pl.DataFrame:
    """What the engine wrote down of prompts, by request and time."""
    count, room = int(run.log.used[5]), run.log.chunks.size
    if count > room:
        raise ConfigError(
            f"prompts were computed in {count:,} parts; a log of events can hold {room:,}.", where="--events",
            fix="Simulate fewer requests (workload.num_requests).",
        )  # fmt: skip
    return frame_of(run.log.chunks[:count]).sort("request", "start_s", maintain_order=True)


def frame_of(records: Any) -> pl.DataFrame:
    """A column for each field of the engine's records."""
    return pl.DataFrame({name: np.ascontiguousarray(records[name]) for name in records.dtype.names})


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
        ("abandoned", q.status == ABANDONED, q.finished_s, q.replica),
        ("preempted", q.preempted_at_s >= 0, q.preempted_at_s, q.replica),  # and not scheduled again until the end
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
    known = {name: np.ascontiguousarray(one) if isinstance(one, np.ndarray) else one for name, one in columns.items()}
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


MAX_ROWS = 100_000  # Iterations (times stages) in a trace: about as many as a browser shows without effort.
MAX_COUNTERS = 20_000  # Points of each counter.
MAX_REQUESTS = 2000  # Requests in a trace: those that arrive first in the stretch shown.
PHASES = ("waiting", "prefill", "decode")
FIRST_LANE, FIRST_LOAD_LANE = 1000, 2000
"""Lanes of transfers come below those of pipeline stages, those of loads below them."""


def write_trace(run: Run, path: str | Path, max_rows: int = MAX_ROWS) -> Path:
    """Write a trace, compressed if the name ends in .gz; a stretch from the middle of the run if it is too long.

    A process is a replica, a thread a pipeline stage; beside them the KV blocks in use and the requests that wait.
    Further processes hold the requests of each replica: slices of waiting, prefill and decode.
    What is left out is said in the trace's metadata and in the names of its processes.
    """
    rows = shown_rows(run, max_rows)
    shown = _shown(run, len(rows))
    events = _names(run, shown) + _slow_requests(run, rows)
    frames = [_slices(rows), *_counters(rows)]
    if len(rows):
        stretch = (float(rows["start_s"].min() or 0.0), float(rows["end_s"].max() or 0.0))  # type: ignore[arg-type]
        events += transfer_events(run, *stretch, max_rows)
        # After the replicas and the process of the slowest requests.
        slices, names = request_slices(run, *stretch, int(run.cluster.replicas.size) + 1)
        events += names
        frames.append(slices)
    head = json.dumps({"displayTimeUnit": "ms", "otherData": {"what": shown}})[:-1] + ', "traceEvents": [\n'
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
        first = (len(log) - max_rows) // 2
        log = log[np.sort(np.argsort(log["start_s"], kind="stable")[first : first + max_rows])]
    return frame_of(log)


def _shown(run: Run, shown: int) -> str:
    """What a reader should know about what is left out."""
    total, one_in = int(run.log.used[0]), int(run.log.used[3])
    rate = "every iteration" if one_in == 1 else f"one in {one_in} iterations"
    return rate if shown == total else f"{rate}, {shown:,} of {total:,} rows from the middle of the run"


def _names(run: Run, shown: str) -> list[Event]:
    pool_of = run.pool_of_replica
    events: list[Event] = []
    for r, stages in enumerate(run.cluster.replicas.num_stages.tolist()):
        pool = run.pools[pool_of[r]]
        role = "" if pool.role == "both" else f"{pool.role} "
        name = f"{role}replica {r} ({pool.device.name}; {shown})"
        events.append(process_name(r, name))
        events += [thread_name(r, stage, f"stage {stage}") for stage in range(stages)]
    return events


_NUM_SLOW = 20  # Requests that are told of one by one.


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
        at = [float(request[name]) for name in ("arrival_s", "scheduled_s", "first_token_s", "finished_s")]
        booked = (_milliseconds(parts[row, 0, : breakdown.PREFILL_ALONE], 0),
                  _milliseconds(parts[row, 0, breakdown.PREFILL_ALONE :], breakdown.PREFILL_ALONE),
                  _milliseconds(parts[row, 1], 0))  # fmt: skip
        about = {"prompt_tokens": int(request.prompt_tokens), "output_tokens": int(request.output_tokens)}
        for name, start, end, where in zip(PHASES, at[:-1], at[1:], booked, strict=True):
            one = slice_event(name, pid, lane, start, end, args=about | where)
            events += [one] if one["dur"] > 0 else []
    return events


def _milliseconds(parts: Any, first: int) -> dict[str, float]:
    """Parts by name, in milliseconds; those that are not zero."""
    return {f"{NAMES[first + i]}_ms": float(value) / 1e6 for i, value in enumerate(parts) if value}


def _slices(rows: pl.DataFrame) -> pl.DataFrame:
    """One complete event per iteration and stage, named by what it holds (Perfetto colours by name)."""
    has_prefill, has_decodes = pl.col("prefill_tokens") > 0, pl.col("decodes") > 0
    name = pl.when(has_prefill & has_decodes).then(pl.lit("mixed"))
    return rows.select(
        ph=pl.lit("X"), name=name.when(has_prefill).then(pl.lit("prefill")).otherwise(pl.lit("decode")),
        ts=_microseconds("start_s"), dur=_microseconds("end_s") - _microseconds("start_s"), pid="replica", tid="stage",
        args=pl.struct(requests="size", prefill_tokens="prefill_tokens", decodes="decodes", iteration="number"),
    )  # fmt: skip


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
    each = {name: np.repeat(column, len(PHASES)) for name, column in columns.items()}
    span = {"ts": at[:-1].T.ravel(), "dur": np.diff(at, axis=0).T.ravel()}
    slices = pl.DataFrame({"name": PHASES * shown.size, **span, **each})
    slices = slices.filter(pl.col("dur") > 0)
    return slices.select("name", pl.lit("X").alias("ph"), "ts", "dur", "pid", "tid", args=pl.struct(*about)), names


def transfer_events(run: Run, start_s: float, end_s: float, max_rows: int) -> list[Event]:
    """KV that begins to move in a stretch of the run, on as many lanes as things run side by side. Transfers are slices
    in the process of the replica that sends, with arrows to the one that takes them in; loads from other tiers in that
    of the replica that waits for them."""
    q = run.cluster.requests
    events: list[Event] = []
    if run.transfers is not None:
        sizes, lanes = run.transfers.flows.bytes[-q.size :], defaultdict[int, Lanes](Lanes)
        for i in _first(q.landed_s >= 0, q.moving_s, start_s, end_s, max_rows):
            sender, receiver = int(q.prefill_replica[i]), int(q.replica[i])
            begin, end = float(q.moving_s[i]), float(q.landed_s[i])
            lane = FIRST_LANE + lanes[sender].take(begin, end)
            args = {"request": i, "MB": round(float(sizes[i]) / 1e6, 3), "waited_s": begin - float(q.prefilled_s[i])}
            events.append(slice_event(f"KV to replica {receiver}", sender, lane, begin, end, args=args))
            arrow = {"name": "KV", "cat": "transfer", "id": i}
            events.append({**arrow, "ph": "s", "ts": microseconds(begin), "pid": sender, "tid": lane})
            events.append({**arrow, "ph": "f", "bp": "e", "ts": microseconds(end), "pid": receiver, "tid": 0})
        events = _lane_names(lanes, FIRST_LANE, "KV transfers") + events
    if run.tiers is not None:
        sources, lanes, begin_s = run.tiers.source[-q.size :], defaultdict[int, Lanes](Lanes), q.arrival_s + q.front_s
        loads: list[Event] = []
        for i in _first(q.loaded_s >= 0, begin_s, start_s, end_s, max_rows):
            replica = int(q.replica[i] if q.landed_s[i] < 0 else q.prefill_replica[i])
            begin, end = float(begin_s[i]), float(q.loaded_s[i])
            lane, name = FIRST_LOAD_LANE + lanes[replica].take(begin, end), f"KV from {SOURCES[sources[i]]}"
            loads.append(slice_event(name, replica, lane, begin, end, args={"request": i}))
        events += _lane_names(lanes, FIRST_LOAD_LANE, "KV loads") + loads
    return events


def _first(moves: NDArray[np.bool_], begin_s: Floats, start_s: float, end_s: float, max_rows: int) -> list[int]:
    """The requests whose KV moves from a moment of the stretch on, in that order."""
    shown = np.flatnonzero(moves & (begin_s >= start_s) & (begin_s <= end_s))
    return shown[np.argsort(begin_s[shown], kind="stable")][:max_rows].tolist()


def _lane_names(lanes: dict[int, Lanes], first: int, words: str) -> list[Event]:
    return [
        thread_name(replica, first + lane, f"{words} {lane + 1}")
        for replica, taken in lanes.items()
        for lane in range(taken.count)
    ]
