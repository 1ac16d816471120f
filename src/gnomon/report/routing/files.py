"""The folder of a comparison of routers: report.html, comparison.csv, comparison.parquet, comparison.json."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from gnomon.core.files import folder_written_whole, write_frame, write_text
from gnomon.report.routing.html import write_route_report
from gnomon.report.routing.text import goal_rows
from gnomon.routing.compare import RouteComparison
from gnomon.routing.goals import Verdict


def write_comparison(comparison: RouteComparison, verdicts: list[Verdict], folder: str | Path) -> Path:
    """Write everything; returns the report."""
    with folder_written_whole(folder, ("comparison.*", "report.html")) as temporary:
        _write_files(comparison, verdicts, temporary)
    return Path(folder) / "report.html"


def _write_files(comparison: RouteComparison, verdicts: list[Verdict], folder: Path) -> None:
    import polars as pl

    frame = pl.DataFrame([asdict(row) for row in comparison.rows])
    write_frame(folder / "comparison.csv", frame)
    write_frame(folder / "comparison.parquet", frame)
    everything = comparison.to_dict() | {"goals": goal_rows(verdicts)}
    write_text(folder / "comparison.json", json.dumps(everything, indent=1))
    write_route_report(comparison, verdicts, folder / "report.html")
