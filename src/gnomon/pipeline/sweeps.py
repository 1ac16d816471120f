"""Sweeps of the communication-priority study: compiled, over all cores, resumable, in bounded memory."""

from __future__ import annotations

import hashlib
import itertools
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from gnomon.core.arrays import Floats
from gnomon.core.config import Config, build
from gnomon.core.errors import ConfigError, DataError
from gnomon.core.files import written_whole
from gnomon.core.parallel import map_ordered
from gnomon.core.processes import default_jobs
from gnomon.core.text import read_text
from gnomon.pipeline import fluid
from gnomon.pipeline.costs import Priority, priorities
from gnomon.pipeline.fluid import TaskGraph
from gnomon.pipeline.study import Study, study_graph

KEYS = ("n", "sync_freq", "fwd_len", "bwd_len", "prop_len", "sync_base_len", "fwd_impact", "bwd_impact")
"""The swept parameters, in the order of the CSV's columns."""

MAX_VALUES = 100_000  # Of one range, and of the grid of priorities.
MAX_CONFIGURATIONS = 10_000_000
SECONDS_PER_PASS = 4e-6  # Of a run, for each micro-batch on each stage; measured on one core.


class Range(Config):
    """start, start + step, ..., stop; both ends included."""

    start: float
    """The first value."""
    stop: float
    """The last value."""
    step: float
    """The distance between two."""

    @model_validator(mode="after")
    def _sensible(self) -> Range:
        if not (self.step > 0 and self.stop >= self.start):
            raise ConfigError("a range needs step > 0 and stop >= start.")
        steps = (self.stop - self.start) / self.step
        if steps + 1 > MAX_VALUES:
            count = f"{steps + 1:,.0f}" if steps < 1e15 else f"{steps:.3g}"
            raise ConfigError(f"a range of {count} values; at most {MAX_VALUES:,}.", fix="Use a larger step.")
        if abs(steps - round(steps)) > 1e-6:
            what = f"stop {self.stop:g} is not reached from {self.start:g} in steps of {self.step:g}."
            raise ConfigError(what, fix="Both ends belong to a range: choose a step that divides it.")
        return self

    def values(self) -> list[float]:
        """Every value, free of rounding noise."""
        count = round((self.stop - self.start) / self.step)
        return [round(self.start + k * self.step, 10) for k in range(count + 1)]


Numbers = float | tuple[float, ...] | Range
Integers = int | tuple[int, ...] | Range


class SweepConfig(Config):
    """Every key is one value, a list, or {start, stop, step}; the sweep takes all combinations."""

    n: Integers = 8
    """Micro-batches."""
    sync_freq: Integers = 1
    """Synchronise gradients after every this many micro-batches; combinations beyond n are left out."""
    fwd_len: Numbers = 1.0
    """Time of a forward."""
    bwd_len: Numbers = 2.0
    """Time of a backward."""
    prop_len: Numbers = 1.0
    """Time to send activations, or their gradients, over an idle link."""
    sync_base_len: Numbers = 2.0
    """Time to synchronise one micro-batch's gradients over an idle link."""
    fwd_impact: Numbers = 0.2
    """Share of its rate that a forward loses while grad_sync has the whole link."""
    bwd_impact: Numbers = 0.2
    """Share of its rate that a backward loses while grad_sync has the whole link."""
    stages: int = 4
    """Pipeline stages, one GPU each; the same for the whole sweep."""

    @model_validator(mode="after")
    def _sensible(self) -> SweepConfig:
        for name, values in self._axes.items():
            if not values:
                raise ConfigError(f"{name} is an empty list.")
            is_whole = name in ("n", "sync_freq")
            if is_whole and any(value != int(value) for value in values):
                raise ConfigError(f"{name} must be whole numbers (given: {values}).")
            for value in values:  # Every value alone: a mistake is found before the sweep has begun.
                build(Study, {"n": max(int(value), 1), name: int(value)} if is_whole else {name: value})
        build(Study, {"stages": self.stages})
        if self.num_configurations > MAX_CONFIGURATIONS:
            fix = "Give fewer values, or larger steps."
            raise ConfigError(f"{self.num_configurations:,} configurations; at most {MAX_CONFIGURATIONS:,}.", fix=fix)
        if self.num_configurations == 0:
            fix = "Choose a sync_freq of at most n."
            raise ConfigError("there is nothing to run: sync_freq is more than n in every combination.", fix=fix)
        return self

    @property
    def _axes(self) -> dict[str, list[float]]:
        given = {name: getattr(self, name) for name in KEYS}
        return {
            name: one.values() if isinstance(one, Range) else list(one) if isinstance(one, tuple) else [one]
            for name, one in given.items()
        }

    @property
    def num_configurations(self) -> int:
        n, sync_freq, *others = self._axes.values()
        return sum(b <= a for a, b in itertools.product(n, sync_freq)) * math.prod(map(len, others))

    @property
    def seconds_each(self) -> float:
        """About how long one run takes."""
        return SECONDS_PER_PASS * max(self._axes["n"]) * self.stages

    def studies(self) -> list[Study]:
        """Every configuration, the last key changing fastest; those with sync_freq > n are left out."""
        rows = (dict(zip(KEYS, values, strict=True)) for values in itertools.product(*self._axes.values()))
        return [
            Study(**row | {"n": int(row["n"]), "sync_freq": int(row["sync_freq"]), "stages": self.stages})
            for row in rows
            if row["sync_freq"] <= row["n"]
        ]


class Priorities(NamedTuple):
    """One cell of a heat map: weights, or 'a' for the exclusive tier."""

    fwd_prop: Priority
    grad_prop: Priority
    grad_sync: Priority


def priority_grid(step: float) -> list[Priorities]:
    """All shared; fwd_prop exclusive; grad_prop exclusive; the other weights in steps that sum to 1."""
    count = round(1.0 / step) if step > 1 / MAX_VALUES else 0
    if count < 1 or abs(count * step - 1.0) > 1e-9:
        raise ConfigError(f"a priority step of {step:g} does not divide 1.", fix="Use 0.1, 0.2, 0.25 or 0.5, say.")
    if count**2 > MAX_VALUES:
        fix = "Use 0.01, say."
        raise ConfigError(f"a priority step of {step:g} makes more than {MAX_VALUES:,} priorities.", fix=fix)
    weight = [round(k / count, 10) for k in range(count + 1)]
    shared = [
        Priorities(weight[f], weight[g], weight[count - f - g]) for f in range(count + 1) for g in range(count + 1 - f)
    ]
    forward_first = [Priorities("a", weight[g], weight[count - g]) for g in range(count + 1)]
    gradient_first = [Priorities(weight[f], "a", weight[count - f]) for f in range(count + 1)]
    return shared + forward_first + gradient_first


COLUMNS = (*KEYS, "p_fwd_prop", "p_grad_prop", "p_grad_sync", "total_time")
RUNS_PER_CHUNK = 20_000  # About a second of work: what is lost at most when a sweep is interrupted.
DECIMALS = 4


def run_chunk(grid: Sequence[Priorities], studies: Sequence[Study]) -> Floats:
    """The total time of every configuration (rows) under every priority (columns)."""
    return np.array([total_times(study_graph(study)[0], study.stages, grid) for study in studies])


def total_times(graph: TaskGraph, num_ranks: int, grid: Sequence[Priorities]) -> Floats:
    """The total time of one step under every priority."""
    given = [priorities(*cell) for cell in grid]
    return fluid.run_many(graph, num_ranks, np.array([w for w, _ in given]), np.array([t for _, t in given]))


@dataclass(frozen=True)
class Sweep:
    """A finished sweep: `totals[configuration, priority]`."""

    studies: list[Study]
    grid: list[Priorities]
    totals: Floats

    def rows(self) -> Iterator[str]:
        """The lines of the CSV, by total time; ties in the order they were run."""
        rounded = np.array([round(total, DECIMALS) for total in self.totals.ravel().tolist()])  # np.round is inexact.
        left = [",".join(_text(getattr(study, name)) for name in KEYS) for study in self.studies]
        right = [",".join(_text(value) for value in cell) for cell in self.grid]
        for index in np.argsort(rounded, kind="stable"):
            study, cell = divmod(int(index), len(self.grid))
            yield f"{left[study]},{right[cell]},{rounded[index]:.{DECIMALS}f}\n"

    def write(self, path: str | Path) -> Path:
        """Write the CSV, whole or not at all."""
        with written_whole(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.write(",".join(COLUMNS) + "\n")
            file.writelines(self.rows())
        return Path(path)


def sweep(
    config: SweepConfig, *, step: float = 0.1, jobs: int | None = None, ray: str | None = None,
    workspace: str | Path | None = None, progress: Callable[[float], None] = lambda runs: None,
) -> Sweep:  # fmt: skip
    """Run every configuration under every priority.

    In `workspace` finished chunks are kept until the sweep is done, so that the same sweep goes on where it was
    stopped. `progress` is told the number of runs that each chunk adds.
    """
    grid, studies = priority_grid(step), config.studies()
    size = max(RUNS_PER_CHUNK // len(grid), 1)
    chunks = [studies[at : at + size] for at in range(0, len(studies), size)]
    name = hashlib.sha256(f"{config.model_dump_json()} {step!r} {size}".encode()).hexdigest()[:12]
    folder = Path(workspace) / f".sweep-{name}" if workspace else None  # Of exactly this sweep.
    numbers = range(len(chunks))
    done = {n: np.load(path) for n in numbers if folder and (path := folder / f"{n}.npy").exists()}
    if done:
        progress(sum(totals.size for totals in done.values()))
    missing = [n for n in numbers if n not in done]
    jobs = min(jobs or default_jobs(), max(len(missing), 1))
    outcomes = map_ordered(partial(run_chunk, grid), (chunks[n] for n in missing), jobs=jobs, ray=ray)
    for n, outcome in zip(missing, outcomes, strict=True):
        done[n] = outcome.unwrap()
        if folder:
            with written_whole(folder / f"{n}.npy") as temporary:
                np.save(temporary, done[n])
        progress(done[n].size)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    return Sweep(studies, grid, np.concatenate([done[n] for n in numbers]))


@dataclass(frozen=True)
class SweepTable:
    """One configuration of a sweep CSV: its parameters and the total time of every priority."""

    parameters: dict[str, float]
    priorities: list[tuple[str, str, str]]
    total_time: NDArray[np.float64]


def read_csv(path: str | Path) -> list[SweepTable]:
    """The configurations of a sweep CSV, in the order of their parameters; the error names the line."""
    lines = read_text(path).splitlines()
    if not lines or tuple(lines[0].strip().split(",")) != COLUMNS:
        raise DataError("this is not a sweep CSV.", where=f"{path}:1", fix=f"The columns are {','.join(COLUMNS)}.")
    parsed = [_parse(line, f"{path}:{number}") for number, line in enumerate(lines[1:], start=2) if line.strip()]
    if not parsed:
        raise DataError("there is no row in it.", where=str(path))
    parsed.sort(key=lambda row: row[0])
    tables = []
    for key, rows in itertools.groupby(parsed, key=lambda row: row[0]):
        members = list(rows)
        totals = np.array([total for _, _, total in members])
        tables.append(SweepTable(dict(zip(KEYS, key, strict=True)), [cell for _, cell, _ in members], totals))
    return tables


def _parse(line: str, where: str) -> tuple[tuple[float, ...], tuple[str, str, str], float]:
    cells = line.strip().split(",")
    if len(cells) != len(COLUMNS):
        raise DataError(f"{len(cells)} cells instead of {len(COLUMNS)}.", where=where)
    try:
        for cell in cells[8:11]:
            _ = cell if cell in "abcdefghijklmnopqrstuvwxyz" and cell else float(cell)
        return tuple(float(cell) for cell in cells[:8]), (cells[8], cells[9], cells[10]), float(cells[11])
    except ValueError as error:
        raise DataError(f"{error}.", where=where) from None


def as_priority(cell: str) -> float | str:
    """A cell of a p_ column: a weight, or the letter of a tier."""
    return cell if cell.isalpha() else float(cell)


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else repr(value)
