"""Recorded requests: read, checked, cut to a window."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.workload.clients import is_client_pool, read_client_pool
from gnomon.workload.config import TraceConfig
from gnomon.workload.formats import FORMATS, TimeUnit, TraceFormat, guessed
from gnomon.workload.requests import Requests
from gnomon.workload.table import Table, read_table

T = TypeVar("T")

SECONDS_PER: dict[TimeUnit, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def first_of(trace: Requests, count: int) -> Requests:
    """The first so many requests of a trace; where calls wait for others, whole sessions, and at least one."""
    if not len(trace.parents):
        return trace.take(np.arange(count))
    start = starts_of(trace.parent_offsets, trace.parents)
    calls = np.cumsum(np.bincount(start, minlength=trace.num_starts))
    sessions = max(1, int(np.searchsorted(calls, count, side="right")))
    return trace.take(np.flatnonzero(start < sessions), whole_sessions=True)


def read_trace(config: TraceConfig, seed: int = 0) -> Requests:
    """The part of a trace that a workload uses, in order of arrival; the window's start becomes time 0. What a file
    says of clients is drawn."""
    if is_client_pool(config.file):
        trace = read_client_pool(config.file, config.start_s, config.end_s, seed)
    else:
        own = None if config.columns is None else config.columns.as_format()
        trace = read_requests(config.file, config.format, own)
    if config.think_s is not None and len(trace.parents):
        trace = replace(trace, think_s=np.where(np.diff(trace.parent_offsets) > 0, config.think_s, 0.0))
    if not len(trace.arrival_s):
        return trace
    ends_s = np.inf if config.end_s is None else config.end_s
    is_inside = (trace.arrival_s >= config.start_s) & (trace.arrival_s < ends_s)
    if len(trace.parents):  # A session counts by its start.
        is_inside = is_inside[starts_of(trace.parent_offsets, trace.parents)]
    inside = np.flatnonzero(is_inside)
    if not len(inside):
        fix = f"The trace covers 0 s to {trace.arrival_s[-1]:g} s."
        raise DataError(f"no request arrives from {config.start_s:g} s to {ends_s:g} s.", where=config.file, fix=fix)
    trace = trace if len(inside) == len(trace) else trace.take(inside, whole_sessions=True)
    return replace(
        trace,
        arrival_s=(trace.arrival_s - config.start_s) * config.time_scale,
        think_s=trace.think_s * config.time_scale,
    )


def read_requests(path: str, format: str = "auto", own: TraceFormat | None = None) -> Requests:
    """A whole file of requests: in the named format, one told by its columns, or the user's `own`."""
    table = read_table(path)
    notes: tuple[str, ...] = ()
    if own is not None:
        known = own
    elif format == "auto":
        known, notes = _detected(table)
    else:
        known = FORMATS[format]
    if known.reader is not None:
        table = known.reader(table)
    needed = [name for role, name in known.columns.items() if own is not None or role in ("prompt", "output")]
    if missing := [name for name in needed if name not in table.names]:
        fix = f"The file has: {', '.join(table.names)}."
        raise DataError(f"there is no column {missing[0]!r}.", where=f"{table.path}:1", fix=fix)
    known, more = _plausible(table, known)
    trace = _read(table, known)
    whole = (trace.prompt_tokens > 0) & (trace.output_tokens > 0)
    if not len(trace.parents) and not whole.all():  # Failed ones, in most traces.
        if not whole.any():
            raise DataError("no request has both prompt and output tokens.", where=str(table.path))
        some = f"{int((~whole).sum()):,} of {len(trace):,} requests of {table.path.name}"
        what = f"{some} without prompt or output tokens"
        trace = replace(trace.take(np.flatnonzero(whole)), notes=(f"{what}: dropped.",))
    trace = replace(trace, notes=(*notes, *((known.note,) if known.note else ()), *more, *trace.notes))
    if len(trace.parents):
        return _starts_first(trace, known)
    if not len(trace.arrival_s):
        return trace
    order = np.argsort(trace.arrival_s, kind="stable")
    trace = trace if (order[1:] > order[:-1]).all() else trace.take(order)
    return trace if known.from_start else replace(trace, arrival_s=trace.arrival_s - trace.arrival_s[0])


def _detected(table: Table) -> tuple[TraceFormat, tuple[str, ...]]:
    """The format that a file's columns tell, and what must be said about it."""
    fitting = [name for name in FORMATS if FORMATS[name].fits(table.names)]
    fitting.sort(key=lambda name: not FORMATS[name].needs)  # Those that are told by more than lengths go first.
    if fitting:
        known = FORMATS[fitting[0]]
        is_surprising = fitting[0] == "mooncake" and table.path.suffix != ".jsonl" and "timestamp" in table.names
        note = f"{table.path.name} has the columns of Mooncake's traces: its timestamps are read as milliseconds."
        return _with_arrivals(table, known, (note,) if is_surprising else ())
    known_by_words = guessed(table.names)
    if known_by_words is None:
        raise DataError(
            f"no known trace format has the columns {', '.join(table.names)}.",
            where=str(table.path),
            fix=f"Known formats: {', '.join(FORMATS)}. Or name your columns: --workload.trace.columns.prompt NAME, "
            "--workload.trace.columns.output NAME, --workload.trace.columns.arrival NAME.",
        )
    pairs = ", ".join(f"{role} = {name}" for role, name in known_by_words.columns.items())
    return known_by_words, (f"Columns of {table.path.name} guessed by their names: {pairs}.",)


def _with_arrivals(table: Table, known: TraceFormat, notes: tuple[str, ...]) -> tuple[TraceFormat, tuple[str, ...]]:
    """The format, with the column of arrival times by its name where the file has not the format's own."""
    by_words = guessed(table.names)
    name = by_words.columns.get("arrival") if by_words is not None else None
    if known.needs or by_words is None or name is None or known.columns.get("arrival") in table.names:
        return known, notes
    found = replace(known, columns={**known.columns, "arrival": name}, time_unit=by_words.time_unit, from_start=False)
    return found, (*notes, f"Arrival times of {table.path.name} guessed by the column's name: {name}.")


EPOCH_UNITS: tuple[tuple[float, TimeUnit], ...] = ((1e14, "us"), (1e11, "ms"))
"""Since 1970 it is 1.8e9 s: a larger number counts smaller units."""
LONG_GAP_S = 60.0


def _plausible(table: Table, known: TraceFormat) -> tuple[TraceFormat, tuple[str, ...]]:
    """The format with the unit that the times can only have, and what must be said about them."""
    name = known.columns.get("arrival")
    if name is None or name not in table.names:
        return known, ()
    if table.has_dates(name):
        return replace(known, time_unit="datetime", from_start=False), ()
    if known.time_unit != "s":
        return known, ()
    values = table.numbers(name, least=-np.inf)
    for least, unit in EPOCH_UNITS:
        if values.size and float(values.min()) > least:
            words = {"us": "microseconds", "ms": "milliseconds"}[unit]
            note = f"{name} of {table.path.name} is read as {words} since 1970"
            note += ": as seconds it would lie far in the future."
            return replace(known, time_unit=unit, from_start=False), (note,)
    gap_s = (float(values.max()) - float(values.min())) / max(values.size - 1, 1) if values.size else 0.0
    if gap_s > LONG_GAP_S and values.size > 20:
        note = f"Requests of {table.path.name} arrive {gap_s:,.0f} s apart in the mean. If {name} counts milliseconds, "
        return known, (note + "name the columns, with --workload.trace.columns.time-unit ms.",)
    return known, ()


def _read(table: Table, known: TraceFormat) -> Requests:
    count = len(table.frame)

    def column(role: str, read: Callable[[str], T], otherwise: T) -> T:
        name = known.columns.get(role)
        return read(name) if name in table.names and name is not None else otherwise

    no_prefixes = np.zeros(count + 1, dtype=np.int64), np.empty(0, dtype=np.int64)
    offsets, hashes = column("prefix", table.lists, no_prefixes)
    block_tokens = int(column("prefix_block_tokens", table.counts, np.full(1, known.block_tokens))[0])
    prompt = table.counts(known.columns["prompt"]).astype(np.int32)
    output = table.counts(known.columns["output"]).astype(np.int32)
    if len(hashes):
        table.refuse(
            known.columns["prefix"],
            np.diff(offsets) > np.maximum(-(-prompt // block_tokens), (prompt + output) // block_tokens),
            f"has more blocks than prompt and answer have, of {block_tokens} tokens each",
        )
    arrival_s = np.empty(0)
    if (name := known.columns.get("arrival")) in table.names and name is not None:
        if known.time_unit == "datetime":
            arrival_s = table.moments_s(name)
        else:
            arrival_s = table.numbers(name, 0 if known.from_start else -np.inf) * SECONDS_PER[known.time_unit]
    return Requests(
        **_waiting(table, known, arrival_s),
        arrival_s=arrival_s,
        adapter=column("adapter", lambda name: _sessions(table, name), np.empty(0, np.int32)),
        prompt_tokens=prompt,
        output_tokens=output,
        session=column("session", lambda name: _sessions(table, name), np.full(count, -1, np.int32)),
        priority=column(
            "priority", lambda name: table.counts(name, most=127).astype(np.int8), np.zeros(count, np.int8)
        ),
        prefix_offsets=offsets,
        prefix_hashes=hashes,
        prefix_block_tokens=block_tokens,
    )


def starts_of(offsets: NDArray[np.int64], parents: NDArray[np.int64]) -> NDArray[np.int64]:
    """[request]: the request that its session starts with, by the first of those that it waits for."""
    start = np.arange(len(offsets) - 1)
    waits = np.diff(offsets) > 0
    start[waits] = parents[offsets[:-1][waits]]
    while (start[start] != start).any():
        start = start[start]
    return start


def _starts_first(trace: Requests, known: TraceFormat) -> Requests:
    """Requests that wait for no other in order of arrival, then all others."""
    waits = np.diff(trace.parent_offsets) > 0
    at_s = trace.arrival_s if len(trace.arrival_s) else np.zeros(len(trace))
    trace = trace.take(np.lexsort((np.arange(len(trace)), at_s, waits)), whole_sessions=True)
    if not len(trace.arrival_s) or known.from_start:
        return trace
    return replace(trace, arrival_s=trace.arrival_s - trace.arrival_s[0])


def _waiting(table: Table, known: TraceFormat, arrival_s: Floats) -> dict[str, Any]:
    """Who waits for whom, and how long after; nothing where the file does not say."""
    names = {role: name for role, name in known.columns.items() if name in table.names}
    count = len(table.frame)
    if "parents" in names:
        offsets, wanted = table.lists(names["parents"])
        call = table.numbers(names["call"]).astype(np.int64)
        owner = np.repeat(np.arange(count), np.diff(offsets))
        order = np.argsort(call, kind="stable")
        place = np.searchsorted(call[order], wanted).clip(max=count - 1)
        is_known = (wanted >= 0) & (call[order[place]] == wanted)  # Parents before the trace began are not waited for.
        owner, parents = owner[is_known], order[place][is_known]
    elif "turn" in names:
        session = _sessions(table, names["session"])
        order = np.lexsort((table.numbers(names["turn"]), session))
        follows = session[order][1:] == session[order][:-1]
        owner, parents = order[1:][follows], order[:-1][follows]
    else:
        return {}
    is_bad = _is_before_itself(owner, parents, count)
    table.refuse(names.get("parents", names.get("turn", "")), is_bad, "waits for itself")
    sorted_ = np.argsort(owner, kind="stable")
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=count))))
    think_s = np.zeros(count)
    if "think" in names:
        think_s = table.numbers(names["think"], least=0)
    elif len(arrival_s):
        duration_s = table.numbers(names["duration"], least=0) if "duration" in names else np.zeros(count)
        np.maximum.at(ended := np.zeros(count), owner, arrival_s[parents] + duration_s[parents])
        think_s = np.where(np.diff(offsets) > 0, np.maximum(arrival_s - ended, 0.0), 0.0)
    return {"parent_offsets": offsets, "parents": parents[sorted_], "think_s": think_s}


def _is_before_itself(owner: NDArray[np.int64], parents: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """[request]: whether it can never be sent, because it waits for itself, directly or not."""
    left = np.bincount(owner, minlength=count)
    ready = np.flatnonzero(left == 0)
    sent = np.zeros(count, np.bool_)
    while ready.size:
        sent[ready] = True
        np.subtract.at(left, owner[np.isin(parents, ready)], 1)
        ready = np.flatnonzero((left == 0) & ~sent)
    return ~sent


def _sessions(table: Table, name: str) -> NDArray[np.int32]:
    """Whole numbers stay as they are; other session names are numbered in order of appearance; empty ones are -1."""
    import polars as pl

    values = table.frame[name]
    numbers = values.cast(pl.Int32, strict=False)
    if numbers.null_count() == values.null_count():
        return numbers.fill_null(-1).to_numpy()
    firsts = {value: index for index, value in enumerate(values.unique(maintain_order=True).drop_nulls())}
    return np.array([-1 if value is None else firsts[value] for value in values], dtype=np.int32)
