"""Sweeps of the communication-priority study: compiled, over all cores, resumable, in bounded memory."""

import hashlib
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.core.files import written_whole
from gnomon.core.parallel import default_jobs, map_ordered
from gnomon.core.text import read_text
from gnomon.pipeline import fluid
from gnomon.pipeline.costs import priorities
from gnomon.pipeline.fluid import TaskGraph
from gnomon.pipeline.study import Study, study_graph
from gnomon.pipeline.sweep_config import KEYS, Priorities, SweepConfig, priority_grid

COLUMNS = (*KEYS, "p_fwd_prop", "p_grad_prop", "p_grad_sync", "total_time")
RUNS_PER_CHUNK = 20_000
"""About a second of work: what is lost at most when a sweep is interrupted."""
DECIMALS = 4


@dataclass(frozen=True)
class Chunk:
    """A run of configurations that one worker takes."""

    studies: tuple[Study, ...]
    grid: tuple[Priorities, ...]


def run_chunk(chunk: Chunk) -> Floats:
    """The total time of every configuration (rows) under every priority (columns)."""
    return np.array([total_times(study_graph(study)[0], study.stages, chunk.grid) for study in chunk.studies])


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
    config: SweepConfig,
    *,
    step: float = 0.1,
    jobs: int | None = None,
    ray: str | None = None,
    workspace: str | Path | None = None,
    progress: Callable[[float], None] = lambda runs: None,
) -> Sweep:
    """Run every configuration under every priority.

    In `workspace` finished chunks are kept until the sweep is done, so that the same sweep goes on where it was
    stopped. `progress` is told the number of runs that each chunk adds.
    """
    grid = priority_grid(step)
    studies = config.studies()
    size = max(RUNS_PER_CHUNK // len(grid), 1)
    chunks = [Chunk(tuple(studies[at : at + size]), tuple(grid)) for at in range(0, len(studies), size)]
    kept = _Kept(Path(workspace) if workspace else None, config, step, size)
    totals = np.empty((len(studies), len(grid)))
    missing = []
    for number, chunk in enumerate(chunks):
        before = kept.load(number, (len(chunk.studies), len(grid)))
        if before is None:
            missing.append(number)
        else:
            totals[number * size : number * size + len(chunk.studies)] = before
            progress(before.size)
    jobs = min(jobs or default_jobs(), max(len(missing), 1))
    outcomes = map_ordered(run_chunk, (chunks[number] for number in missing), jobs=jobs, ray=ray)
    for number, outcome in zip(missing, outcomes, strict=True):
        values = outcome.unwrap()
        kept.save(number, values)
        totals[number * size : number * size + len(values)] = values
        progress(values.size)
    kept.forget()
    return Sweep(studies, grid, totals)


class _Kept:
    """Finished chunks on disk, in a folder named after exactly this sweep."""

    def __init__(self, workspace: Path | None, config: SweepConfig, step: float, size: int) -> None:
        text = f"{config.model_dump_json()} {step!r} {size}"
        self.folder = workspace / f".sweep-{hashlib.sha256(text.encode()).hexdigest()[:12]}" if workspace else None

    def load(self, number: int, shape: tuple[int, int]) -> Floats | None:
        path = self.folder / f"{number}.npy" if self.folder else None
        if path is None or not path.exists():
            return None
        values: Floats = np.load(path)
        return values if values.shape == shape else None

    def save(self, number: int, values: Floats) -> None:
        if self.folder:
            with written_whole(self.folder / f"{number}.npy") as temporary:
                np.save(temporary, values)

    def forget(self) -> None:
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


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
