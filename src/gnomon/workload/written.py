"""Files of requests that read back as traces: Gnomon's own, and those of other tools in their formats.

What another tool's format cannot say is refused: every file is read again and held against what was written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import ConfigError
from gnomon.core.files import write_frame, write_text
from gnomon.workload.formats import FORMATS
from gnomon.workload.requests import Requests
from gnomon.workload.traces import SECONDS_PER, read_requests

if TYPE_CHECKING:
    import polars as pl

WINDOW_S = 600.0  # ServeGen's clients change from window to window.
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)  # Dates need one.


def export(requests: Requests, path: str | Path) -> Path:
    """Write requests to a .csv or .parquet file that `trace.file` reads back to equal arrays.

    Columns that say nothing (no sessions, no priorities, no prefixes) are left out; so are the arrivals of a closed
    loop, which the server decides.
    """
    import polars as pl

    path = Path(path)
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"cannot tell the format of {path.name!r}.", where="--out", fix="End it in .csv or .parquet.")
    as_text = path.suffix == ".csv"
    columns: dict[str, pl.Series | np.ndarray] = {}
    if not requests.concurrency:
        columns["arrival_s"] = requests.arrival_s
    columns["prompt_tokens"] = requests.prompt_tokens
    columns["output_tokens"] = requests.output_tokens
    if (requests.session >= 0).any():
        columns["session"] = requests.session
    if requests.priority.any():
        columns["priority"] = requests.priority
    if len(requests.adapter):
        columns["adapter"] = requests.adapter
    if len(requests.parents):  # Those that wait are sent when the others have ended.
        columns["arrival_s"] = np.where(np.isfinite(requests.arrival_s), requests.arrival_s, 0.0)
        columns["call"], columns["think_s"] = np.arange(len(requests)), requests.think_s
        columns["parents"] = _lists(np.split(requests.parents, requests.parent_offsets[1:-1]), as_text)
    if len(requests.prefix_hashes):
        columns["prefix_hashes"] = _lists([requests.prefix(i) for i in range(len(requests))], as_text)
        columns["prefix_block_tokens"] = np.full(len(requests), requests.prefix_block_tokens)
    return write_frame(path, pl.DataFrame(columns))


def _lists(lists: list[Ints], as_text: bool) -> pl.Series:
    import polars as pl

    if as_text:
        return pl.Series([" ".join(map(str, one)) for one in lists])
    return pl.Series([one.tolist() for one in lists], dtype=pl.List(pl.Int64))


def export_as(requests: Requests, format: str, path: Path) -> Path:
    """Write requests as another tool's trace (a .csv or .jsonl file; for ServeGen a new folder)."""
    known = FORMATS[format]
    if requests.concurrency:
        raise ConfigError("arrivals of a closed loop are the server's: a trace cannot say them.", where="--as")
    if format == "servegen":
        return _write_client_pool(requests, path)
    if known.reader is not None and format not in _LINES:
        raise ConfigError(f"{format} holds the text of messages, which is not known.", where="--as")
    block_tokens = known.block_tokens if "prefix_block_tokens" not in known.columns else requests.prefix_block_tokens
    if len(requests.prefix_hashes) and block_tokens != requests.prefix_block_tokens:
        own = requests.prefix_block_tokens
        raise ConfigError(f"{format} has prefixes in blocks of {block_tokens} tokens, not of {own}.", where="workload")
    requests, sent_s = _in_order(requests)
    rows = _LINES.get(format, _flat)(requests, sent_s, format)
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    elif path.suffix == ".csv" and known.reader is None:
        cells = [[_cell(value) for value in row.values()] for row in rows]
        text = "".join(",".join(row) + "\n" for row in [list(rows[0]), *cells])
    else:
        fix = "End it in .jsonl." if known.reader is not None else "End it in .csv or .jsonl."
        raise ConfigError(f"{format} is not written to {path.name!r}.", where="--out", fix=fix)
    write_text(path, text)
    lost = _differences(requests, read_requests(str(path), format), SECONDS_PER.get(known.time_unit, 1e-6))
    if lost:
        path.unlink()
        raise ConfigError(f"{format} cannot say {' and '.join(lost)} as given.", where="workload")
    return path


def _differences(one: Requests, other: Requests, unit_s: float) -> list[str]:
    """What was lost on the way; names and times go by the first of them."""
    same = ("prompt_tokens", "output_tokens", "priority")
    lost = [name for name in same if not np.array_equal(getattr(one, name), getattr(other, name))]
    starts = [some.arrival_s[: some.num_starts] for some in (one, other)]
    if len(starts[0]) != len(starts[1]) or not np.allclose(np.diff(starts[0]), np.diff(starts[1]), 0.0, 1.01 * unit_s):
        lost.append("arrivals")
    if [sorted(some) for some in _parents(one)] != [sorted(some) for some in _parents(other)]:
        lost.append("which calls wait for which")
    elif len(one.parents) and not np.allclose(one.think_s, other.think_s, 0.0, 3 * unit_s):
        lost.append("think_s")
    if (one.session >= 0).any() and not len(one.parents) and _numbered(one.session) != _numbered(other.session):
        lost.append("sessions")
    if len(one.adapter):
        lost.append("adapters")
    blocks = [(some.prefix_block_tokens, some.prefix_offsets.tolist(), _numbered(some.prefix_hashes))
              for some in (one, other)]  # fmt: skip
    if len(one.prefix_hashes) and blocks[0] != blocks[1]:
        lost.append(f"prefixes in blocks of {one.prefix_block_tokens} tokens")
    return lost


def _cell(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _numbered(values: Any) -> list[int]:
    """By order of appearance."""
    places: dict[int, int] = {}
    return [places.setdefault(value, len(places)) for value in values.tolist()]


def _in_order(requests: Requests) -> tuple[Requests, Floats]:
    """Requests as they would be sent if answers took no time, those that wait for none first; and when that is."""
    sent_s = np.where(np.isfinite(requests.arrival_s), requests.arrival_s, 0.0)
    if not len(requests.parents):
        return requests, sent_s
    owner = np.repeat(np.arange(len(requests)), np.diff(requests.parent_offsets))
    for _ in range(len(requests)):
        ended_s = np.full(len(requests), -np.inf)
        np.maximum.at(ended_s, owner, sent_s[requests.parents])
        later_s = np.where(np.isfinite(ended_s), ended_s + requests.think_s, sent_s)
        if (later_s == sent_s).all():
            break
        sent_s = later_s
    first, turn = _threads(requests)
    order = np.lexsort((np.array(turn), np.array(first), sent_s, np.diff(requests.parent_offsets) > 0))
    return requests.take(order, whole_sessions=True), sent_s[order]


def _parents(requests: Requests) -> list[list[int]]:
    if not len(requests.parents):
        return [[] for _ in range(len(requests))]
    return [some.tolist() for some in np.split(requests.parents, requests.parent_offsets[1:-1])]


def _threads(requests: Requests) -> tuple[list[int], list[int]]:
    """Of each call the one that its session starts with, and how many come before it."""
    parents, found = _parents(requests), []
    for i in range(len(requests)):
        turn = 0
        while parents[i]:
            i, turn = parents[i][0], turn + 1
        found.append((i, turn))
    return [first for first, _ in found], [turn for _, turn in found]


def _flat(requests: Requests, sent_s: Floats, format: str) -> list[dict[str, Any]]:
    known, parents = FORMATS[format], _parents(requests)
    session, turn = _threads(requests)
    by_date = known.time_unit == "datetime"
    unit_s = SECONDS_PER.get(known.time_unit, 1.0)
    values: dict[str, Callable[[int], Any]] = {
        "arrival": lambda i: (EPOCH + timedelta(seconds=float(sent_s[i]))).isoformat(" ", "microseconds") if by_date
        else round(float(sent_s[i]) / unit_s) if unit_s < 1.0 else float(sent_s[i]),
        "prompt": lambda i: int(requests.prompt_tokens[i]),
        "output": lambda i: int(requests.output_tokens[i]),
        "session": lambda i: session[i] if "turn" in known.columns else int(requests.session[i]),
        "turn": lambda i: turn[i],
        "call": lambda i: i,
        "parents": lambda i: parents[i][0] if parents[i] else -1,
        "prefix": lambda i: requests.prefix(i).tolist(),
    }  # fmt: skip
    roles = [role for role in known.columns if role in values and (role != "prefix" or len(requests.prefix_hashes))]
    if "turn" not in known.columns and not (requests.session >= 0).any():
        roles = [role for role in roles if role != "session"]
    return [{known.columns[role]: values[role](i) for role in roles} for i in range(len(requests))]


def _sessions(requests: Requests, sent_s: Floats, format: str) -> list[dict[str, Any]]:
    """Weka's lines: a session with its calls; calls that wait for the same one, before another waits for all of them,
    are sub-agents."""
    parents = _parents(requests)
    waiting: dict[tuple[int, ...], list[int]] = {}
    for i, before in enumerate(parents):
        waiting.setdefault(tuple(before), []).append(i)

    def entry(i: int) -> dict[str, Any]:
        think_s = float(requests.think_s[i]) if parents[i] else 0.0
        return {"t": float(sent_s[i]), "type": "n", "model": "", "in": int(requests.prompt_tokens[i]),
                "out": int(requests.output_tokens[i]), "hash_ids": requests.prefix(i).tolist(),
                "think_time": think_s}  # fmt: skip

    def calls(first: int) -> list[dict[str, Any]]:
        found, last = [entry(first)], first
        while True:
            beside = waiting.get((last,), [])
            joined = [some for key, some in waiting.items() if key[0:1] == (last,) and len(key) > 1]
            if not joined and len(beside) != 1:
                return found + [{"type": "subagent", "requests": calls(i)} for i in beside]
            if joined:
                found += [{"type": "subagent", "requests": calls(i)} for i in beside]
            last = joined[0][0] if joined else beside[0]
            found.append(entry(last))

    about = {"models": [], "block_size": requests.prefix_block_tokens, "hash_id_scope": "global", "tool_tokens": 0,
             "system_tokens": 0}  # fmt: skip
    return [{"id": str(first), **about, "requests": calls(first)} for first in waiting.get((), [])]


def _dynamo(requests: Requests, sent_s: Floats, format: str) -> list[dict[str, Any]]:
    """Dynamo's events: a request that ended at once."""
    session, _ = _threads(requests)
    found = []
    for i, at_s in enumerate(sent_s.tolist()):
        replay = {"trace_block_size": requests.prefix_block_tokens, "input_length": int(requests.prompt_tokens[i]),
                  "input_sequence_hashes": requests.prefix(i).tolist()}  # fmt: skip
        request = {"request_id": str(i), "request_received_ms": 1e3 * at_s, "replay": replay,
                   "output_tokens": int(requests.output_tokens[i])}  # fmt: skip
        found.append({"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request,
                      "event_time_unix_ms": 1e3 * at_s, "agent_context": {"session_id": str(session[i])}})  # fmt: skip
    return found


_LINES = {"agent-sessions": _sessions, "dynamo": _dynamo}


def _write_client_pool(requests: Requests, folder: Path) -> Path:
    """One of ServeGen's clients: by window of ten minutes the rate, how much gaps vary, and the lengths. Requests are
    drawn from it anew, so lengths of a prompt and of its answer do not go together any more."""
    if (requests.session >= 0).any() or len(requests.parents) or len(requests.prefix_hashes) or len(requests.adapter):
        raise ConfigError("servegen cannot say sessions, prefixes or adapters.", where="workload")
    at = (requests.arrival_s // WINDOW_S).astype(int)
    trace, lengths = [], {}
    for window in range(int(at.max()) + 1):
        mine = np.flatnonzero(at == window)
        start, gaps = f"{window * WINDOW_S:g}", np.diff(requests.arrival_s[mine])
        if len(gaps) < 2 or gaps.sum() == 0.0:
            trace.append(f"{start},0,0,,0,0\n")
            continue
        mean, cv = float(gaps.mean()), max(float(gaps.std() / gaps.mean()), 1e-3)
        trace.append(f"{start},{1.0 / mean!r},{cv!r},Gamma,{cv**-2!r},{mean * cv**2!r}\n")
        lengths[start] = {"input_tokens": _shares(requests.prompt_tokens[mine]),
                          "output_tokens": _shares(requests.output_tokens[mine])}  # fmt: skip
    if not lengths:
        raise ConfigError("no ten minutes have requests one after another.", where="workload.arrivals")
    folder.mkdir(parents=True)
    write_text(folder / "chunk-0-trace.csv", "".join(trace))
    write_text(folder / "chunk-0-dataset.json", json.dumps(lengths))
    return folder


def _shares(tokens: Any) -> str:
    values, counts = np.unique(tokens, return_counts=True)
    return str({int(value): float(count / len(tokens)) for value, count in zip(values, counts, strict=True)})
