"""The folder of a search: report, ranking, the winner's scenario and the command that deploys it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.core.config import save
from gnomon.core.files import write_text
from gnomon.report.search.html import write_search_report
from gnomon.report.search.matrix import write_matrix_report
from gnomon.report.search.text import question_words
from gnomon.search.answers import winning_scenario
from gnomon.search.matrix import Matrix
from gnomon.search.objective import shown
from gnomon.search.study import Found
from gnomon.serving.results.intervals import Interval

if TYPE_CHECKING:
    import polars as pl


def write_search(
    found: Found, folder: str | Path, commands: Mapping[str, str] | None = None, capacity: Interval | None = None
) -> Path:
    """Write report.html, ranking.csv, search.yaml, and where there is a winner best.yaml and best.ENGINE.sh."""
    commands = commands or {}
    folder = Path(folder)
    save(found.search, folder / "search.yaml")
    write_text(folder / "ranking.csv", ranking_frame(found).write_csv())
    if found.best is not None:
        save(winning_scenario(found.search, found.best), folder / "best.yaml")
        for name, command in commands.items():
            write_text(folder / f"best.{name}.sh", command + "\n")
    write_search_report(found, folder / "report.html", commands, capacity)
    return folder


def answer(found: Found, commands: Mapping[str, str], capacity: Interval | None = None) -> dict[str, Any]:
    """The answer as plain data, as `--json` prints it."""
    best = found.best
    return {
        "question": question_words(found.search),
        "strategy": found.search.strategy,
        "best": best.to_dict() if best else None,
        "best_scenario": winning_scenario(found.search, best).model_dump(mode="json") if best else None,
        "commands": dict(commands),
        "margins_per_s": found.margins,
        "capacity_interval": {"low": capacity.low, "high": capacity.high} if capacity else None,
        "runs": found.runs,
        "requests_simulated": found.simulated,
        "ranked": [one.to_dict() for one in found.ranked],
        "others": [one.to_dict() for one in found.others],
    }


def write_matrix(matrix: Matrix, folder: str | Path) -> Path:
    """Write report.html and matrix.json: the best of every cell, and what each choice is worth elsewhere."""
    write_matrix_report(matrix, Path(folder) / "report.html")
    return write_text(Path(folder) / "matrix.json", json.dumps(matrix_answer(matrix), indent=1))


def matrix_answer(matrix: Matrix) -> dict[str, Any]:
    """The matrix as plain data."""
    cells = [
        {"model": model, "workload": workload, "best": found.best.to_dict() if found.best else None}
        for (model, workload), found in matrix.cells.items()
    ]
    worth = [
        {"model": model, "chosen_for": chosen, "used_for": used, "share_of_best": share}
        for (model, chosen, used), share in matrix.worth.items()
    ]
    return {"cells": cells, "worth_elsewhere": worth}


def ranking_frame(found: Found) -> pl.DataFrame:
    """Every configuration, also those without a place."""
    import polars as pl

    objective = found.search.objective
    names = sorted({name for one in found.ranked for name in one.figures})
    rows = [
        {
            "configuration": one.label,
            "status": one.status,
            "capacity_per_s": one.capacity_per_s,
            objective: None if one.score is None else shown(objective, one.score),
            "num_gpus": one.num_gpus,
            "cost_per_hour": one.cost_per_hour,
            "limited_by": one.binding,
            "reason": one.reason,
            **{name.replace(" ", "_"): one.figures.get(name) for name in names},
        }
        for one in (*found.ranked, *found.others)
    ]
    return pl.DataFrame(rows, infer_schema_length=None)
