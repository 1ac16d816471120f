"""How the best choice changes with the model and the workload, and the capacities of a few schedulers as a table."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnomon.core.parallel import Map, map_ordered, shared_workers
from gnomon.search.config import BenchConfig, SearchConfig
from gnomon.search.evaluate import Record, Task, bound_of, evaluate
from gnomon.search.results import ResultsFile
from gnomon.search.space import candidates, compile_for
from gnomon.search.study import Found, Progress, check, search_with
from gnomon.workload import WorkloadConfig


@dataclass(frozen=True)
class Matrix:
    """One answer per model and workload, and what each choice is worth elsewhere."""

    cells: dict[tuple[str, str], Found]
    """By (model, workload)."""
    worth: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """(model, chosen for, used for): the score of the choice there, as a share of the best; 0 where the SLO fails."""

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(model for model, _ in self.cells))

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(workload for _, workload in self.cells))


def search_matrix(
    question: SearchConfig, *, folder: str | Path | None = None, jobs: int | None = None, ray: str | None = None,
    on_progress: Progress | None = None,
) -> Matrix:  # fmt: skip
    """Search every model with every workload, then use every workload's winner for the others."""
    asked = questions(question)
    for one in asked.values():
        check(one)
    files = {cell: ResultsFile(_path(folder, *cell), one) for cell, one in asked.items()}
    report = on_progress or (lambda done, total: None)
    compile_for(question)
    with shared_workers(jobs=jobs, ray=ray) as workers:
        cells = {}
        for number, (cell, one) in enumerate(asked.items()):
            cells[cell] = search_with(one, files[cell], workers, _part(report, number, len(asked)))
        return Matrix(cells, _worth_elsewhere(cells, files, workers))


def questions(question: SearchConfig) -> dict[tuple[str, str], SearchConfig]:
    """The single searches of a matrix, by model and workload."""
    workloads = question.workloads or {question.workload.preset or "workload": question.workload}
    alone: dict[str, Any] = {"models": (), "workloads": {}}
    return {
        (model, name): question.model_copy(update=alone | {"model": model, "workload": workload})
        for model in question.models or (question.model,)
        for name, workload in workloads.items()
    }


def cell_folder(folder: str | Path, model: str, workload: str) -> Path:
    """Where the results of one cell are kept."""
    return Path(folder) / f"{Path(model).name}--{workload}"


def _path(folder: str | Path | None, model: str, workload: str) -> Path | None:
    return None if folder is None else cell_folder(folder, model, workload) / "results.jsonl"


def _part(report: Progress, number: int, count: int) -> Progress:
    """Progress of one of `count` searches of the same size."""
    return lambda done, total: report(number * total + done, count * total)


def _worth_elsewhere(
    cells: dict[tuple[str, str], Found], files: dict[tuple[str, str], ResultsFile], workers: Map
) -> dict[tuple[str, str, str], float]:
    asked = [
        (model, chosen_for, used_for, found.best)
        for (model, chosen_for), found in cells.items()
        for other, used_for in cells
        if other == model and found.best is not None and cells[model, used_for].best is not None
    ]
    keys = [f"{best.candidate.key} as chosen" for _, _, _, best in asked]
    open_ones = [(one, key) for one, key in zip(asked, keys, strict=True) if files[one[0], one[2]].get(key) is None]
    tasks = [Task(cells[model, used_for].search, best.candidate) for (model, _, used_for, best), _ in open_ones]
    for ((model, _, used_for, best), key), outcome in zip(open_ones, workers(evaluate, tasks), strict=True):
        record = outcome.value or Record.of(best.candidate, "failed", outcome.error)
        files[model, used_for].put(key, record.to_dict())
    return {
        (model, chosen_for, used_for): _share(files[model, used_for].known[key], cells[model, used_for])
        for (model, chosen_for, used_for, _), key in zip(asked, keys, strict=True)
    }


def _share(line: dict[str, Any], found: Found) -> float:
    score = Record(**line).score
    assert found.best is not None and found.best.score is not None
    if score is None:
        return 0.0
    # Costs are negative scores: the cheapest over the dearer.
    return found.best.score / score if score < 0 else score / found.best.score


TENSOR_DEGREES = (1, 2, 4, 8)


def bench(
    config: BenchConfig, *, jobs: int | None = None, ray: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[tuple[str, str, str, Record]]:  # fmt: skip
    """(model, workload, policy, record) of every combination, in order."""
    asked = [
        (model, workload, policy, _task(config, model, workload, policy))
        for model in config.models
        for workload in config.workloads
        for policy in config.policies
    ]
    compile_for(_question(config, config.models[0], config.workloads[0], config.policies, (1,)))
    rows = []
    outcomes = map_ordered(evaluate, [task for *_, task in asked], jobs=jobs, ray=ray)
    for (model, workload, policy, task), outcome in zip(asked, outcomes, strict=True):
        rows.append((model, workload, policy, outcome.value or Record.of(task.candidate, "failed", outcome.error)))
        if on_progress is not None:
            on_progress(len(rows), len(asked))
    return rows


def _task(config: BenchConfig, model: str, workload: str, policy: str) -> Task:
    """The policy on the smallest tensor-parallel degree on which the model fits (else the largest, which explains)."""
    question = _question(config, model, workload, (policy,), TENSOR_DEGREES)
    tasks = [Task(question, one) for one in candidates(question)]
    return next((task for task in tasks if not isinstance(bound_of(task), Record)), tasks[-1])


def _question(
    config: BenchConfig, model: str, workload: str, policies: tuple[str, ...], degrees: tuple[int, ...]
) -> SearchConfig:
    return SearchConfig(
        model=model, workload=WorkloadConfig(preset=workload), slo=config.slo,
        space={"device": config.device, "tensor_parallel": degrees, "batching": list(policies)},
        settings=config.settings, effort=config.effort, seed=config.seed,
    )  # fmt: skip
