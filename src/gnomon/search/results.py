"""The results file: one JSON line per configuration, appended as they come, so that a search can be resumed.

A line is on disk before the search goes on. What an interrupted write left behind is cut off when the file is opened
again. The first line says which search it belongs to.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gnomon import __version__
from gnomon.core.errors import ConfigError, DataError
from gnomon.core.text import parse_json
from gnomon.search.config import SearchConfig
from gnomon.search.evaluate import Record
from gnomon.search.space import scenario_of
from gnomon.search.study import Found
from gnomon.serving.results.intervals import Interval
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.calibration import read_calibration
from gnomon.workload.slo import SloConfig


class ResultsFile:
    """Records by the key of their question. `path=None` keeps them in memory only."""

    def __init__(self, path: Path | None, search: SearchConfig) -> None:
        self.path = path
        self.known: dict[str, dict[str, Any]] = {}
        if path is None:
            return
        header = {"gnomon": __version__, "search": fingerprint(search)}
        if path.exists():
            self._read(path, header)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append(header)

    def get(self, key: str) -> dict[str, Any] | None:
        """The record under `key`, if there is one that holds: failures are tried again."""
        found = self.known.get(key)
        return None if found is None or found.get("status") == "failed" else found

    def put(self, key: str, record: dict[str, Any]) -> None:
        """Keep a record, on disk before this returns."""
        self.known[key] = record
        if self.path is not None:
            self._append({"key": key, "record": record})

    def _append(self, line: dict[str, Any]) -> None:
        assert self.path is not None
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self, path: Path, header: dict[str, Any]) -> None:
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            with path.open("r+b") as file:
                file.truncate(len(whole))
        lines = list(_parsed(whole.decode("utf-8", errors="replace").split("\n")[:-1], path))
        if not lines:
            self._append(header)
            return
        if lines[0] != header:
            raise ConfigError(
                "holds the results of another search (or of another version).",
                where=str(path),
                fix="Choose another folder with --out, or start again with --fresh.",
            )
        self.known = {line["key"]: line["record"] for line in lines[1:]}


def record_from(line: dict[str, Any]) -> Record:
    """A record as it was before it was written."""
    return Record(**line)


def fingerprint(search: SearchConfig) -> str:
    """A hash of everything that decides the results."""
    return hashlib.sha256(search.model_dump_json().encode()).hexdigest()[:16]


def _parsed(lines: Iterable[str], path: Path) -> Iterable[dict[str, Any]]:
    for number, line in enumerate(lines, start=1):
        with suppress(DataError):
            found = parse_json(line)
            if isinstance(found, dict) and (number == 1 or {"key", "record"} <= found.keys()):
                yield found
                continue
        raise ConfigError("is not a line of results.", where=f"{path}:{number}", fix="Start again with --fresh.")


def is_on_front(points: Sequence[tuple[float, ...]]) -> list[bool]:
    """For each point (smaller is better in every coordinate): whether no other is at least as good and once better."""
    return [
        not any(all(a <= b for a, b in zip(other, point, strict=True)) and other != point for other in points)
        for point in points
    ]


def latency_axes(search: SearchConfig) -> tuple[str, str]:
    """The figures of interest of the first token and of those after it: those of the SLO (TBT, or else TPOT), or else
    TTFT P90 and TBT P99."""
    slo = search.slo
    after = (
        f"tpot_s {next(iter(slo.tpot_s))}" if slo.tpot_s and not slo.tbt_s else f"tbt_s {next(iter(slo.tbt_s), 'p99')}"
    )
    return f"ttft_s {next(iter(slo.ttft_s), 'p90')}", after


def front(search: SearchConfig, ranked: Sequence[Record]) -> list[bool]:
    """Which of the ranked are on the front of score (high) against both latencies at capacity (low)."""
    axes = latency_axes(search)
    points = [(-(one.score or 0.0), *(_latency(one, axis) for axis in axes)) for one in ranked]
    return is_on_front(points)


def _latency(record: Record, axis: str) -> float:
    value = record.figures.get(axis)
    return float("inf") if value is None else value


def winning_scenario(search: SearchConfig, record: Record) -> Scenario:
    """The configuration at its capacity, on the very requests on which it was measured."""
    scenario = scenario_of(search, record.candidate)
    load = {"rate": record.capacity_per_s}
    if search.workload.trace is None:
        load["num_requests"] = record.num_requests
    return scenario.model_copy(
        update={"workload": scenario.workload.model_copy(update=load), "slo": _per_request(search)}
    )


def _per_request(search: SearchConfig) -> SloConfig:
    """The limits that a single request can meet or miss, so that the run counts who does."""
    good = search.slo.goodput
    limits = {}
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        given = getattr(good, name) if good is not None else next(iter(getattr(search.slo, name).values()), None)
        limits[name] = given
    return SloConfig(**limits)


_NORMAL_95, _NORMAL_975 = 1.645, 1.960
_FEW = 20


def capacity_interval(found: Found, record: Record) -> Interval | None:
    """90 % interval of a capacity: the timing source's error (or a calibration's) and other sequences of requests.

    A server whose iterations all take so much longer carries as much less.
    """
    if not record.capacity_per_s or found.search.objective == "cost":
        return None
    scenario = winning_scenario(found.search, record)
    if scenario.calibration is not None:
        spread = read_calibration(scenario.calibration).error
    else:
        load = scenario.workload.model_copy(update={"num_requests": _FEW})
        few = scenario if scenario.workload.trace is not None else scenario.model_copy(update={"workload": load})
        spread = run(few).spread
    margin = found.margins.get(record.label, 0.0) / record.capacity_per_s
    half = math.hypot(_NORMAL_95 * spread, margin * _NORMAL_95 / _NORMAL_975)
    value = record.capacity_per_s
    return Interval(value, value * math.exp(-half), value * math.exp(half))
