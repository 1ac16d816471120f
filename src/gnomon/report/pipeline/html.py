"""A training step as one self-contained HTML page: Gantt chart, memory and bandwidth below, idle time by cause."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from gnomon.core.errors import MissingExtraError
from gnomon.pipeline.memory import Curve
from gnomon.pipeline.run import Run
from gnomon.pipeline.step import StepRecord
from gnomon.report.page import write_time_line
from gnomon.report.pipeline.figures import CAUSES, cause_rows, step_cards, step_figure
from gnomon.report.pipeline.perfetto import write_trace
from gnomon.report.pipeline.png import write_gantt
from gnomon.report.pipeline.timeline import View
from gnomon.report.splits import split_table


def write_html(
    run: Run,
    path: str | Path,
    *,
    view: View = "single_channel",
    show_throttling: bool = False,
    show_completion_time: bool = False,
    memory: list[Curve] | None = None,
) -> Path:
    """Write the page. `memory` replaces the count of activations."""
    figure = step_figure(
        run,
        view=view,
        show_throttling=show_throttling,
        show_completion_time=show_completion_time,
        memory=memory,
    )
    return write_time_line(
        path,
        title=run.title,
        cards=step_cards(run),
        figure=figure,
        heading="Where the time goes",
        causes=split_table(CAUSES, cause_rows(run), "figure"),
    )


def write_step(step: StepRecord, folder: Path, **look: Any) -> None:
    """Write step.html, step.perfetto.json, and step.png where matplotlib is installed."""
    write_html(step.run, folder / "step.html", **look, memory=step.memory)
    write_trace(step.run, folder / "step.perfetto.json", memory=step.memory)
    with suppress(MissingExtraError):
        write_gantt(step.run, folder / "step.png", **look, memory=step.memory)
