"""Files that a user gives to the page: limited in size, read as data, the newest kept until the server ends."""

import base64
import binascii
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gnomon.api.serving import Scenario
from gnomon.core.config import build, load
from gnomon.core.errors import ConfigError, DataError, GnomonError
from gnomon.core.text import parse_yaml
from gnomon.workload.config import ColumnsConfig
from gnomon.workload.table import packing
from gnomon.workload.traces import read_requests

MAX_BYTES = 16 * 2**20
TRACE = "trace:"
KEPT = 16  # Traces that are kept; the oldest go first.
SUFFIXES = (".csv", ".jsonl")  # Nothing that is packed: a small file may unpack to more than this machine has.


@dataclass(frozen=True)
class UploadedTrace:
    """A trace that has been read once and found good."""

    path: Path
    name: str
    num_requests: int
    has_arrivals: bool
    columns: Mapping[str, str] = field(default_factory=dict)
    """Which column means what, where the user said it."""


_traces: dict[str, UploadedTrace] = {}

PREFIX = "gnomon-ui-"


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """This server's folder; those that killed servers have left are removed."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}[0-9]*-*"):
        number = left.name.removeprefix(PREFIX).partition("-")[0]
        if number.isdigit() and not _is_running(int(number)):
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-")


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (OSError, OverflowError) as error:  # Others than this one: it is somebody else's.
        return not isinstance(error, ProcessLookupError)
    return True


def content(upload: str) -> bytes:
    """The bytes of what the browser sent (`data:...;base64,...`)."""
    try:
        data = base64.b64decode(upload.partition(",")[2], validate=True)
    except binascii.Error:
        raise DataError("the upload is damaged.", fix="Try again.") from None
    if len(data) > MAX_BYTES:
        raise DataError(f"the file is larger than {MAX_BYTES // 2**20} MiB.", fix="Use `gnomon simulate` for it.")
    return data


def columns_of(text: str) -> dict[str, str]:
    """`prompt=NAME, output=NAME, arrival=NAME, time_unit=ms` as the scenario's section `workload.trace.columns`."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if not all(equals and role.strip() and name.strip() for role, equals, name in pairs):
        fix = "Write prompt=NAME, output=NAME, arrival=NAME."
        raise DataError("it is not said which column of the trace is which.", fix=fix)
    return {role.strip(): name.strip() for role, _, name in pairs}


def keep_trace(name: str, data: bytes, columns: str = "") -> str:
    """Read a trace and keep it; returns the name under which the Serve page knows it. `columns` name its columns."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(name).name)[-60:].lstrip(".")
    if not safe.endswith(SUFFIXES):
        raise DataError(f"{name} is not a trace.", fix=f"Traces end in {', '.join(SUFFIXES)}.")
    if packing(data):
        raise DataError(f"{name} is packed.", fix="Unpack it first.")
    key = f"{TRACE}{hashlib.sha256(data).hexdigest()[:8]}-{safe}"
    path = Path(_folder().name) / key.removeprefix(TRACE)
    path.write_bytes(data)
    try:
        own = build(ColumnsConfig, given).as_format() if (given := columns_of(columns)) else None
        trace = read_requests(str(path), own=own)
    except GnomonError as error:
        path.unlink()
        where = error.where.replace(str(path), safe) if error.where else None
        raise type(error)(error.what, where=where, fix=_fix(error)) if type(error) is DataError else error from None
    _traces.pop(key, None)  # One that is loaded again is the newest again.
    _traces[key] = UploadedTrace(path, safe, len(trace), bool(len(trace.arrival_s)), columns_of(columns))
    for old in list(_traces)[:-KEPT]:
        _traces.pop(old).path.unlink()
    return key


def _fix(error: GnomonError) -> str | None:
    """Advice without what only a command line can do."""
    advice, is_of_columns, _ = (error.fix or "").partition(" Or name your columns")
    more = " Or name its columns below, under Trace columns, and load it again." if is_of_columns else ""
    return f"{advice}{more}" or None


@contextmanager
def passing_file(data: bytes) -> Iterator[Path]:
    """A file with this content, of a name that no other question has, while it is read."""
    with tempfile.NamedTemporaryFile(dir=_folder().name, suffix=".yaml") as file:
        file.write(data)
        file.flush()
        yield Path(file.name)


def traces() -> dict[str, str]:
    return {key: f"{one.name} ({one.num_requests:,} requests)" for key, one in list(_traces.items())}


def is_trace(name: str) -> bool:
    return name.startswith(TRACE)


def trace(name: str) -> UploadedTrace:
    """An uploaded trace; traces are gone when newer ones have come or the server ends."""
    if name not in _traces:
        fix = "Load it again."
        raise ConfigError("the trace is not on this server any more.", where="workload.trace.file", fix=fix)
    return _traces[name]


def name_of(path: str | None) -> str | None:
    """The name of the uploaded trace at `path`; None for any other file."""
    return next((key for key, one in list(_traces.items()) if str(one.path) == path), None)


def shown_name(path: str) -> str:
    """A path as the user knows it: the name of what was uploaded."""
    return next((one.name for one in list(_traces.values()) if str(one.path) == path), path)


MAX_REQUESTS = 200_000  # Requests of one simulation: what the page answers within a second or two.
MAX_RANKS = 512  # Replicas times their data parallelism: each has arrays of its own.
MAX_KV_BLOCKS = 2**25  # KV blocks of all replicas, where a scenario says how many: some 80 bytes each.
MAX_DRAFT_TOKENS = 32  # Of speculative decoding: the tables of iterations grow with every one.
MOST = {"pipeline_parallel": 64, "tensor_parallel": 64, "max_sequences": 2**14, "block_size": 2**12,
        "max_batch_tokens": 2**18}  # fmt: skip
"""Other fields that arrays are sized by, wherever they stand in a scenario."""
DATA_FILES = ("trace.file", "lengths.file")
"""Fields named `file` that are read as data. Every other one names Python to run (routers, policies, ...)."""


def check_is_data(given: Any, key: str = "") -> None:
    """Refuse what asks to run Python files or to read files outside the folder in which the page was started.

    `given` is what will be read as a configuration. It is looked at before that, because reading opens files.
    """
    if key.rpartition(".")[2] == "file" and not key.endswith(DATA_FILES) and given is not None:
        raise ConfigError("a page runs no Python files.", where=key, fix="Use gnomon simulate.")
    match given:
        case dict():
            for name, value in given.items():
                check_is_data(value, f"{key}.{name}".lstrip(".").replace("-", "_"))
        case list() | tuple():
            for value in given:
                check_is_data(value, key)
        case str():
            _check_text(given, key)
        case bytes() | set():
            raise ConfigError("only texts, numbers, lists and mappings are read from elsewhere.", where=key)


def _check_text(text: str, key: str) -> None:
    """A text may be a path; and an override is read as YAML once more, so it may hold further texts."""
    if not _is_near(text):
        fix = "Load it, or start there."
        raise ConfigError(f"{text} is outside the folder in which gnomon ui runs.", where=key, fix=fix)
    try:
        inner = parse_yaml(text)
    except DataError:
        return
    if inner != text:
        check_is_data(inner, key)


def _is_near(text: str) -> bool:
    """Whether a text, if it is a path, stays below the current folder or is that of an uploaded file."""
    here = Path.cwd()
    try:
        return name_of(text) is not None or (here / text).resolve().is_relative_to(here)
    except (OSError, ValueError):  # It has a zero in it, or leads around in a circle.
        return False


def read_scenario(name: str, data: bytes) -> Scenario:
    with passing_file(data) as path:
        try:
            with suppress(DataError):  # `load` says the line.
                check_is_data(parse_yaml(data.decode("utf-8", errors="replace")))
            scenario = load(Scenario, path)
            check_size(scenario)
        except GnomonError as error:
            where = error.where.replace(str(path), name) if error.where else name
            raise ConfigError(error.what, where=where, fix=error.fix) from None
    return scenario


def check_size(scenario: Scenario) -> None:
    """Refuse more than a page can wait for, or than this machine may have memory for."""
    check_count(scenario.workload.num_requests or 0)
    ranks = blocks = 0
    for pool in scenario.all_pools():
        ranks += pool.num_ranks
        blocks += pool.num_ranks * (pool.replica.num_kv_blocks or 0)
        drafted = pool.replica.speculative.num_tokens if pool.replica.speculative else 0
        _refuse_more(drafted, MAX_DRAFT_TOKENS, "drafted tokens", "replica.speculative.num_tokens")
        for section in (pool.replica, pool.given_batching):
            for name, most in MOST.items():
                _refuse_more(getattr(section, name, None) or 0, most, name, name)
    _refuse_more(ranks, MAX_RANKS, "replicas", "num_replicas")
    _refuse_more(blocks, MAX_KV_BLOCKS, "KV blocks", "replica.num_kv_blocks")


def check_count(num_requests: int) -> None:
    """Refuse more requests than a page can wait for."""
    _refuse_more(num_requests, MAX_REQUESTS, "requests", "workload.num_requests")


def _refuse_more(count: int, most: int, what: str, where: str) -> None:
    if count > most:
        raise ConfigError(f"a page takes at most {most:,} {what}, not {count:,}.", where=where, fix="Use fewer.")
