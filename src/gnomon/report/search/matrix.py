"""The matrix of models and workloads as one self-contained HTML page."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from gnomon.core.config import dump
from gnomon.report.page import table, write_whole_page
from gnomon.report.search import text as words
from gnomon.search.matrix import Matrix, cell_folder


def write_matrix_report(matrix: Matrix, path: str | Path) -> Path:
    """Write the page: the best per cell, what each choice is worth elsewhere, and the way to every cell's report."""
    drawn = {f"worth{number}": heat_map(matrix, model) for number, model in enumerate(matrix.models)}
    plots = "".join(f"<div id={name} class=plot></div>" for name in drawn)
    rows = [{"model": m, "workload": w, **words.cell_row(found)} for (m, w), found in matrix.cells.items()]
    first = next(iter(matrix.cells.values())).search
    chosen = {found.best.label for found in matrix.cells.values() if found.best is not None}
    parts = {
        "@TITLE@": "How the best deployment changes with the workload",
        "@LEDE@": html.escape(f"{words.slo_words(first)}; {len(chosen)} different winners in {len(rows)} searches."),
        "@PLOTS@": f"<section><h2>A choice's worth elsewhere</h2><div class=plots>{plots}</div></section>",
        "@REPLICAS@": f"<section><h2>Best per model and workload</h2>{table(rows)}</section>",
        "@FIGURES@": "<ul>" + "".join(_link(*cell) for cell in matrix.cells) + "</ul>",
        "@SCENARIO@": html.escape(dump(first)),
    }
    return write_whole_page(path, parts, drawn)


def _link(model: str, workload: str) -> str:
    there = html.escape(f"{cell_folder('', model, workload)}/report.html")
    return f"<li><a href='{there}'>{html.escape(f'{model}, {workload}')}</a></li>"


def heat_map(matrix: Matrix, model: str) -> dict[str, Any]:
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
    layout = {
        "title": {"text": model, "x": 0, "xref": "container", "xanchor": "left", "pad": {"l": 8}},
        "xaxis": {"title": {"text": "used for"}}, "yaxis": {"title": {"text": "chosen for"}, "autorange": "reversed"},
        "margin": {"l": 90, "r": 16, "t": 44, "b": 50}, "height": 340,
        "font": {"family": "Inter, system-ui, sans-serif", "size": 13, "color": "#4A5565"},
        "plot_bgcolor": "#FFFFFF", "paper_bgcolor": "#FFFFFF",
    }  # fmt: skip
    return {"data": [data], "layout": layout}
