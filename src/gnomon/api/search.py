"""Planning: the best deployment for a model, a workload and an SLO."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.api.result import Progress, Result, read
from gnomon.core.errors import ConfigError
from gnomon.core.files import write_text
from gnomon.report.blocks import Block, Table, View
from gnomon.search.config import UNITS, BenchConfig, SearchConfig

if TYPE_CHECKING:
    from gnomon.search.evaluate import Record
    from gnomon.search.matrix import Matrix
    from gnomon.search.study import Found
    from gnomon.serving.results.intervals import Interval
    from gnomon.serving.scenario import Scenario

__all__ = [
    "OBJECTIVES", "Bench", "BenchConfig", "Search", "SearchConfig", "SearchMatrix", "bench", "check", "fingerprint",
    "finished_search", "search",
]  # fmt: skip

OBJECTIVES: dict[str, str] = {str(name): unit for name, unit in UNITS.items()}  # What can be best, and its unit.
TOP = 15  # Rows of the ranking that are printed.


def search(
    given: SearchConfig | Mapping[str, Any] | str | Path | None = None, *, folder: str | Path | None = None,
    fresh: bool = False, jobs: int | None = None, ray: str | None = None, on_progress: Progress | None = None,
    **overrides: Any,
) -> Search | SearchMatrix:  # fmt: skip
    """Search the space of a YAML file, a mapping or a `SearchConfig`, with overrides on top.

    In `folder` every result is kept as it comes: a search that was interrupted goes on from there, unless `fresh`.
    `jobs` local processes (all cores unless given), or the Ray cluster at `ray`. With several models or workloads each
    is searched, and the answer is a `SearchMatrix`.
    """
    from gnomon.search import matrix, study

    question = read(SearchConfig, given, overrides)
    place = None if folder is None else Path(folder)
    if fresh and place is not None:
        for results in (place / "results.jsonl", *place.glob("*/results.jsonl")):
            results.unlink(missing_ok=True)
    if question.models or question.workloads:
        return SearchMatrix(matrix.search_matrix(question, folder=place, jobs=jobs, ray=ray, on_progress=on_progress))
    file = None if place is None else place / "results.jsonl"
    return Search(study.search(question, results=file, jobs=jobs, ray=ray, on_progress=on_progress))


def check(question: SearchConfig) -> None:
    """Say what is wrong with a question before anything runs."""
    from gnomon.search.study import check as wrong

    wrong(question)


def fingerprint(question: SearchConfig) -> str:
    """Differs where the results may differ."""
    from gnomon.search.results import fingerprint as known

    return known(question)


def finished_search(folder: str | Path) -> Search:
    """The answer that a search has left in its folder, without running anything again."""
    from gnomon.search.study import finished_search as finished

    return Search(finished(folder))


@dataclass(frozen=True, eq=False)
class Search(Result):
    """The ranking, the winner, and why the others are not in it."""

    view = "search.files"
    found: Found = field(repr=False)

    def __repr__(self) -> str:
        best = self.best.label if self.best else "nothing meets the SLO"
        return f"Search({self.question.model}: {best})"

    @property
    def question(self) -> SearchConfig:
        """What was asked."""
        return self.found.search

    @property
    def best(self) -> Record | None:
        """The winner, if anything meets the SLO."""
        return self.found.best

    @property
    def summary(self) -> Record | None:
        """The winner's figures."""
        return self.best

    def scenario(self, place: int = 0) -> Scenario:
        """The configuration at a place of the ranking, at its capacity: `gnomon.simulate` runs it."""
        from gnomon.search.study import winning_scenario

        ranked = self.found.ranked
        if not 0 <= place < len(ranked):
            fix = f"The ranking has {len(ranked)} places, counted from 0." if ranked else "Nothing meets the SLO."
            raise ConfigError(f"there is no place {place} in the ranking.", fix=fix)
        return winning_scenario(self.question, ranked[place])

    @cached_property
    def capacity_interval(self) -> Interval | None:
        """Where a real server's capacity lies with 90 % probability, for the winner."""
        from gnomon.search.study import capacity_interval

        return capacity_interval(self.found, self.best) if self.best else None

    @cached_property
    def commands(self) -> dict[str, str]:
        """A command for each engine, the winner's first: the best configuration of every engine that was searched, and
        for the others the winner's layout under a comment that it was not simulated. Empty: `no_command` says why."""
        from gnomon.convert.commands import winning_commands

        return winning_commands(self.found)

    @property
    def no_command(self) -> str:
        """Why no command starts the winner; empty where one does, or where there is no winner."""
        from gnomon.convert import server_command

        if not self.best:
            return ""
        try:
            server_command(self.scenario())
        except ConfigError as error:
            return str(error)
        return ""

    def text(self, top: int = TOP, to: Callable[[int], str] | None = None) -> list[Block]:
        """The ranking, the reasons, the winner; `to` says where a place of the ranking leads."""
        from gnomon.report.search.files import text

        return text(self, top, to)

    def save(self, folder: str | Path) -> Path:
        """Write the report, the ranking, the question, and the winner's scenario and command."""
        from gnomon.report.search.files import write_search

        return write_search(self, folder)


@dataclass(frozen=True, eq=False)
class SearchMatrix(Result):
    """One search per model and workload, and what each choice is worth elsewhere."""

    view = "search.files:matrix_view"
    matrix: Matrix = field(repr=False)

    def __repr__(self) -> str:
        return f"SearchMatrix({len(self.matrix.models)} models, {len(self.matrix.workloads)} workloads)"

    @property
    def summary(self) -> dict[tuple[str, str], Record | None]:
        """The winner of every (model, workload)."""
        return {cell: found.best for cell, found in self.matrix.cells.items()}

    def search(self, model: str, workload: str) -> Search:
        """One of the searches."""
        return Search(self.matrix.cells[model, workload])

    def save(self, folder: str | Path) -> Path:
        """Write one report of all, and every search into a folder of its own."""
        from gnomon.search.matrix import cell_folder

        links = {f"{cell_folder('', *cell)}/report.html": ", ".join(cell) for cell in self.matrix.cells}
        for cell in self.matrix.cells:
            self.search(*cell).save(cell_folder(folder, *cell))
        write_text(Path(folder) / "matrix.json", json.dumps(self.to_dict(), indent=1))
        return self.write_page(Path(folder) / "report.html", links=links).parent


def bench(
    given: BenchConfig | Mapping[str, Any] | str | Path | None = None, *, jobs: int | None = None,
    ray: str | None = None, on_progress: Progress | None = None, **overrides: Any,
) -> Bench:  # fmt: skip
    """Capacity of every scheduler on every workload of the suite, for several models."""
    from gnomon.search.matrix import bench as measure

    config = read(BenchConfig, given, overrides)
    return Bench(config, measure(config, jobs=jobs, ray=ray, on_progress=on_progress))


@dataclass(frozen=True, eq=False)
class Bench(Result):
    """The suite's table."""

    config: BenchConfig
    rows: list[tuple[str, str, str, Record]] = field(repr=False)
    """Model, workload, policy, and what was measured."""

    @property
    def summary(self) -> list[dict[str, Any]]:
        """One row per model, workload and policy."""
        return [
            {"model": model, "workload": workload, "policy": policy, **record.to_dict()}
            for model, workload, policy, record in self.rows
        ]

    @property
    def shown(self) -> View:
        """The table."""
        from gnomon.report.search.text import bench_row

        names, scalars = ("model", "workload", "policy"), (str, int, float, bool, type(None))
        rows = [dict(zip(names, row, strict=False)) | bench_row(row[-1]) for row in self.rows]
        plain = [{key: value for key, value in row.items() if isinstance(value, scalars)} for row in self.summary]
        data = {"suite": self.config.model_dump(mode="json"), "rows": self.summary}
        return View("bench", lambda: [Table(rows)], lambda: data, {"capacities": lambda: plain})
