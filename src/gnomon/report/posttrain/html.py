"""A post-training run as one self-contained HTML page: the allocation over time, and where the GPU time goes."""

from __future__ import annotations

from pathlib import Path

from gnomon.posttrain.record import RunRecord
from gnomon.report.page import write_time_line
from gnomon.report.posttrain.figures import allocation_figure, cause_rows, run_cards
from gnomon.report.posttrain.timeline import CAUSES
from gnomon.report.splits import split_table


def write_html(record: RunRecord, path: str | Path) -> Path:
    """Write the page; it needs no network and no other file."""
    return write_time_line(
        path,
        title=f"RL post-training: {record.policy} on {record.num_gpus} GPUs",
        cards=run_cards(record),
        figure=allocation_figure(record),
        heading="Where the GPU time goes",
        causes=split_table(CAUSES, cause_rows(record), "words"),
    )
