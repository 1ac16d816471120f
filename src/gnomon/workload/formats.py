"""Trace formats: which column means what. Adding one is an entry in formats.yaml, or `FORMATS.add` in your own file."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from gnomon.core.errors import DataError
from gnomon.core.registry import Registry
from gnomon.core.text import own_yaml, parse_json
from gnomon.workload.table import LINE, Table

CALLS = {
    "call": "call", "parents": "parents", "session": "session", "arrival": "arrival_s", "think": "think_s",
    "prompt": "prompt_tokens", "output": "output_tokens", "prefix": "prefix_hashes",
    "prefix_block_tokens": "prefix_block_tokens",
}  # fmt: skip
"""What each role is called in the rows that readers give."""
CHARACTERS_PER_TOKEN = 4  # Of messages, which no tokenizer has seen: an estimate for English and code.
BLOCK_TOKENS = 16
LARGEST = (1 << 62) - 1
LOCAL_HASHES = 1 << 20  # Hash ids that count within one session are numbered through with as many to each.

Row = dict[str, Any]


def _table(table: Table, rows: list[Row]) -> Table:
    import polars as pl

    if not rows:
        raise DataError("there are no calls in the file.", where=str(table.path))
    return Table(table.path, pl.DataFrame(rows, infer_schema_length=None))


def _lines(table: Table) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines of the file as they were, with their numbers."""
    for row in table.frame.iter_rows(named=True):
        where = f"{table.path}:{row[LINE]}"
        yield row[LINE], {key: _plain(one, where) for key, one in row.items() if key != LINE and one is not None}


def _plain(value: Any, where: str) -> Any:
    """A list or an object as itself, where it stands as text."""
    return parse_json(value, where) if isinstance(value, str) and value[:1] in "[{" else value


def _number(one: Any, key: str, where: str) -> float:
    value = one.get(key) if isinstance(one, dict) else None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number < math.inf:
        raise DataError(f"a call's {key!r} is {value!r}, not a number from 0 on.", where=where)
    return number


# Weka's traces of coding agents: a line is a session.
def sessions_of_requests(table: Table) -> Table:
    """Calls in `requests`, in order; an entry with `requests` of its own is a sub-agent, which the next call waits
    for."""
    rows: list[Row] = []
    for number, (line, one) in enumerate(_lines(table)):
        where = f"{table.path}:{line}"
        calls = one.get("requests")
        if not isinstance(calls, list):
            raise DataError("'requests' is no list of calls.", where=where)
        block = int(_number({"block_size": 64, **one}, "block_size", where))
        _add_calls(rows, calls, [], 0.0, number, block, line, where, is_local=one.get("hash_id_scope") == "local")
    return _table(table, rows)


def _add_calls(
    rows: list[Row], calls: list[Any], parents: list[int], ended_s: float, session: int, block: int, line: int,
    where: str, *, is_local: bool,
) -> tuple[list[int], float]:  # fmt: skip
    """Append calls that follow one another; returns those that what comes next waits for, and when they ended."""
    waits, free_s = list(parents), ended_s
    beside: list[int] = []
    for one in calls:
        if isinstance(one, dict) and isinstance(one.get("requests"), list):
            last, _ = _add_calls(rows, one["requests"], waits, free_s, session, block, line, where, is_local=is_local)
            beside += [call for call in last if call not in waits]
            continue
        start_s = _number({"t": free_s, **one} if isinstance(one, dict) else one, "t", where)
        pause = one.get("think_time")
        hashes = one.get("hash_ids") or []
        if is_local:
            hashes = [session * LOCAL_HASHES + int(key) for key in hashes]
        output = int(_number(one, "out", where))
        rows.append(
            {
                LINE: line, "call": len(rows), "parents": json.dumps([*waits, *beside]), "session": session,
                "arrival_s": start_s,
                "think_s": max(0.0, start_s - free_s) if not isinstance(pause, int | float) else float(pause),
                "prompt_tokens": int(_number(one, "in", where)), "output_tokens": output,
                "prefix_hashes": json.dumps(hashes), "prefix_block_tokens": block,
            }
        )  # fmt: skip
        waits, beside = [len(rows) - 1], []
        free_s = start_s + (_number(one, "api_time", where) if "api_time" in one else 0.0)
    return [*waits, *beside], free_s


# Dynamo's request traces: a line is an event.
def dynamo_requests(table: Table) -> Table:
    """Requests that ended (`request_end`), with the hashes of their prompts. Those of one session follow one another,
    and the first of a session's child follows what its parent had done by then; other events are left out."""
    found: list[tuple[float, float, int, dict[str, Any], Any]] = []
    for line, one in _lines(table):
        if one.get("event_type") != "request_end":
            continue
        where, request = f"{table.path}:{line}", one.get("request")
        replay = request.get("replay") if isinstance(request, dict) else None
        if not isinstance(request, dict) or not isinstance(replay, dict):
            raise DataError("a request_end has no 'request' with a 'replay'.", where=where)
        end_s = _number(one, "event_time_unix_ms", where) * 1e-3
        start_s = _number({"request_received_ms": 1e3 * end_s, **request}, "request_received_ms", where) * 1e-3
        found.append((start_s, end_s, line, {**request, **replay}, one.get("agent_context") or {}))
    rows: list[Row] = []
    last: dict[str, int] = {}
    ends: list[float] = []
    first_s = min((item[0] for item in found), default=0.0)
    for start_s, end_s, line, request, context in sorted(found, key=lambda item: item[:3]):
        where, name = f"{table.path}:{line}", str(context.get("session_id") or f"alone {line}")
        before = last.get(name, last.get(str(context.get("parent_session_id"))))
        is_after = before is not None and ends[before] <= start_s
        rows.append(
            {
                LINE: line, "call": len(rows), "parents": json.dumps([before] if is_after else []),
                "session": rows[last[name]]["session"] if name in last else len(last), "arrival_s": start_s - first_s,
                "think_s": start_s - ends[before] if is_after and before is not None else 0.0,
                "prompt_tokens": int(_number(request, "input_length", where)),
                "output_tokens": max(1, int(_number(request, "output_tokens", where))),
                "prefix_hashes": json.dumps([int(key) & LARGEST for key in request.get("input_sequence_hashes") or []]),
                "prefix_block_tokens": int(_number(request, "trace_block_size", where)),
            }
        )  # fmt: skip
        ends.append(end_s)
        last[name] = len(rows) - 1
    return _table(table, rows)


def calls_with_messages(table: Table) -> Table:
    """A line is one call of a session with all messages so far (`input`), and the tokens of its answer."""
    rows: list[Row] = []
    last: dict[str, int] = {}
    for line, one in _lines(table):
        where = f"{table.path}:{line}"
        name = str(one.get("session_id"))
        messages = _messages(one.get("input", one.get("messages")), where)
        text = "".join(_message(some, where)[1] for some in messages)
        start_s = _number({"session_timestamp": 0.0, **one}, "session_timestamp", where)
        output = int(_number({"output_length": one.get("output_tokens"), **one}, "output_length", where))
        before = last.get(name)
        session = rows[before]["session"] if before is not None else len(last)
        row = _call(line, rows, text, output, [before] if before is not None else [], session)
        pause_s = max(0.0, start_s - rows[before]["arrival_s"]) if before is not None else 0.0
        rows.append(row | {"arrival_s": start_s, "think_s": pause_s})
        last[name] = len(rows) - 1
    return _table(table, rows)


def conversations(table: Table) -> Table:
    """A line is a whole conversation: every answer of the model is a call, whose prompt is all that was said before."""
    rows: list[Row] = []
    for number, (line, one) in enumerate(_lines(table)):
        where = f"{table.path}:{line}"
        before = ""
        parents: list[int] = []
        for message in _messages(one.get("conversations", one.get("before")), where):
            speaker, text = _message(message, where)
            if speaker in ("assistant", "gpt", "model") and before:
                rows.append(_call(line, rows, before, max(1, len(text) // CHARACTERS_PER_TOKEN), parents, number))
                parents = [len(rows) - 1]
            before += text
    return _table(table, rows)


def _call(line: int, rows: list[Row], text: str, output: int, parents: list[int], session: int) -> Row:
    return {
        LINE: line, "call": len(rows), "parents": json.dumps(parents), "session": session,
        "prompt_tokens": max(1, len(text) // CHARACTERS_PER_TOKEN), "output_tokens": output,
        "prefix_hashes": json.dumps(hashed(text)), "prefix_block_tokens": BLOCK_TOKENS,
    }  # fmt: skip


def hashed(text: str) -> list[int]:
    """A number for each full block of a text: equal ones where all up to the end of the block is equal."""
    running, size, found = hashlib.blake2b(digest_size=8), BLOCK_TOKENS * CHARACTERS_PER_TOKEN, []
    for end in range(size, len(text) + 1, size):
        running.update(text[end - size : end].encode("utf-8", "surrogatepass"))
        found.append(int.from_bytes(running.digest(), "big") >> 1)
    return found


def _messages(messages: Any, where: str) -> list[Any]:
    if not isinstance(messages, list) or not messages:
        raise DataError("there is no list of messages.", where=where, fix="Write [{role: ..., content: ...}, ...].")
    return messages


def _message(one: Any, where: str) -> tuple[str, str]:
    """Who speaks, and what: text, parts of text, and calls of tools."""
    if not isinstance(one, dict):
        raise DataError(f"a message is {one!r}, not an object with a role and content.", where=where)
    speaker = str(one.get("role", one.get("from", "")))
    content = one.get("content", one.get("value"))
    if isinstance(content, list):
        content = "".join(part if isinstance(part, str) else json.dumps(part, sort_keys=True) for part in content)
    tools = json.dumps(one["tool_calls"], sort_keys=True) if one.get("tool_calls") else ""
    return speaker, f"{speaker}\n{content or ''}{tools}\n"


TimeUnit = Literal["s", "ms", "us", "ns", "datetime"]


@dataclass(frozen=True)
class TraceFormat:
    """Columns (or JSON keys) of one kind of trace.

    Roles: `prompt` and `output` (tokens, needed), `arrival`, `session`, `priority`, `adapter` (LoRA), `prefix` (block
    hashes of the prompt: a JSON list, or numbers with spaces between) and `prefix_block_tokens`, each optional. Where
    calls wait for others: `call` (a number), `parents` (those it waits for, -1 for none), and `think` (seconds from
    their end until it is sent) or `duration` (recorded seconds of a call).
    """

    description: str
    columns: Mapping[str, str]
    time_unit: TimeUnit = "s"
    block_tokens: int = 16
    """Tokens per hashed block, where no column says it."""

    from_start: bool = False
    """Times count from the start of the run; else from an epoch, and the first request is moved to 0."""

    needs: tuple[str, ...] = ()
    """Columns by which a file of this format is told; else by those of prompt and output."""
    reader: Callable[[Table], Table] | None = None
    """Makes one row of each call, where lines of the file are something else."""
    note: str = ""
    """What must be said about what is read."""

    def fits(self, names: Collection[str]) -> bool:
        """Whether a file with these column names is of this format."""
        if self.needs:
            return all(name in names for name in self.needs)
        return self.columns["prompt"] in names and self.columns["output"] in names


def guessed(names: Collection[str]) -> TraceFormat | None:
    """A format for these columns by what they seem to mean; None where prompt or output tokens are not among them."""
    words = ((re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower(), name) for name in reversed(list(names)))
    plain = {re.sub(r"[^a-z0-9]+", "_", word).strip("_"): name for word, name in words}
    columns = {
        role: plain[word]
        for role, known in SYNONYMS.items()
        if (word := next((one for one in known if one in plain), None)) is not None
    }
    if "prompt" not in columns or "output" not in columns:
        return None
    is_ms = columns.get("arrival", "").lower().endswith("ms")
    return TraceFormat("Guessed from the names of its columns.", columns, time_unit="ms" if is_ms else "s")


FORMATS: Registry[TraceFormat] = Registry("trace format")
_DATA = own_yaml(files("gnomon.workload") / "formats.yaml")
SYNONYMS: Mapping[str, list[str]] = _DATA["synonyms"]
for _name, _given in _DATA["formats"].items():
    _without = _given.pop("without", ())
    _given.setdefault("columns", {role: name for role, name in CALLS.items() if role not in _without})
    _reader = globals().get(_given.pop("reader", ""))
    FORMATS.add(_name, TraceFormat(**_given | {"needs": tuple(_given.get("needs", ())), "reader": _reader}))
