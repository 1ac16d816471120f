"""A training step as one self-contained HTML page: Gantt chart, memory and bandwidth below, idle time by cause."""

from __future__ import annotations

from pathlib import Path

from gnomon.pipeline.memory import Curve
from gnomon.pipeline.run import Run
from gnomon.report.page import write_time_line
from gnomon.report.pipeline.figures import CAUSES, cause_rows, step_cards, step_figure
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
    memory_unit: str = "micro-batches",
    facts: dict[str, str] | None = None,
) -> Path:
    """Write the page. `memory` replaces the count of activations; `facts` are further figures for its head."""
    figure = step_figure(
        run,
        view=view,
        show_throttling=show_throttling,
        show_completion_time=show_completion_time,
        memory=memory,
        memory_unit=memory_unit,
    )
    return write_time_line(
        path,
        title=run.title,
        cards=step_cards(run) | (facts or {}),
        figure=figure,
        heading="Where the time goes",
        causes=split_table(CAUSES, cause_rows(run), "figure"),
    )
