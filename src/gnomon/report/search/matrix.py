"""A matrix of searches, models and workloads: one page, and what a choice is worth elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gnomon.core.config import dump
from gnomon.core.files import write_text
from gnomon.report.blocks import Block, Figure, Section, Table, plots
from gnomon.report.look import figure
from gnomon.report.page import write_page
from gnomon.report.search import text as words
from gnomon.search.matrix import Matrix, cell_folder


def write_matrix(result: Any, folder: str | Path) -> Path:
    """Write report.html and matrix.json: the best of every cell, and what each choice is worth elsewhere."""
    _write_report(result.matrix, Path(folder) / "report.html")
    return write_text(Path(folder) / "matrix.json", json.dumps(data(result), indent=1))


def text(result: Any) -> list[Block]:
    """The best of every cell, then what each choice is worth elsewhere."""
    return words.matrix_blocks(result.matrix)


def tables(result: Any) -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """What each choice is worth elsewhere."""
    return {"worth": lambda: data(result)["worth_elsewhere"]}


def drawers(result: Any) -> dict[str, Callable[[], Figure]]:
    """A heat map per model."""
    return {model: partial(heat_map, result.matrix, model) for model in result.matrix.models}


def data(result: Any) -> dict[str, Any]:
    """The best of every cell, and what each choice is worth elsewhere."""
    matrix: Matrix = result.matrix
    cells = [
        {"model": model, "workload": workload, "best": found.best.to_dict() if found.best else None}
        for (model, workload), found in matrix.cells.items()
    ]
    worth = [
        {"model": model, "chosen_for": chosen, "used_for": used, "share_of_best": share}
        for (model, chosen, used), share in matrix.worth.items()
    ]
    return {"cells": cells, "worth_elsewhere": worth}


def _write_report(matrix: Matrix, path: Path) -> None:
    """Write the page: the best per cell, what each choice is worth elsewhere, and the way to every cell's report."""
    drawn = {f"worth{number}": partial(heat_map, matrix, model) for number, model in enumerate(matrix.models)}
    rows = words.cell_rows(matrix)
    first = next(iter(matrix.cells.values())).search
    chosen = {found.best.label for found in matrix.cells.values() if found.best is not None}
    blocks = [
        Section("A choice's worth elsewhere", plots(drawn)),
        Section("Best per model and workload", [Table(rows)]),
    ]
    links = {f"{cell_folder('', *cell)}/report.html": ", ".join(cell) for cell in matrix.cells}
    lede = f"{words.slo_words(first)}; {len(chosen)} different winners in {len(rows)} searches."
    title = "How the best deployment changes with the workload"
    write_page(path, title, blocks, lede=lede, links=links, scenario=dump(first))


def heat_map(matrix: Matrix, model: str) -> Figure:
    """Every choice on every workload, as a share of the best there."""
    names = matrix.workloads
    shares = [[matrix.worth.get((model, chosen, used)) for used in names] for chosen in names]
    told = [["–" if share is None else f"{share:.0%}" for share in row] for row in shares]
    data = {
        "type": "heatmap", "x": names, "y": names, "z": shares, "text": told, "texttemplate": "%{text}",
        "zmin": 0, "zmax": 1, "colorscale": [[0, "#F6E3E1"], [0.5, "#F4EFDD"], [1, "#CFE5D8"]], "showscale": False,
        "hovertemplate": "chosen for %{y}, used for %{x}: %{text} of the best there<extra></extra>",
        "xgap": 2, "ygap": 2,
    }  # fmt: skip
    axes = {
        "xaxis": {"title": {"text": "used for"}},
        "yaxis": {"title": {"text": "chosen for"}, "autorange": "reversed"},
    }
    return figure([data], model, 340, {"l": 90, "b": 50}, **axes)
