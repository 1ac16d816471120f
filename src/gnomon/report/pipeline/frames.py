"""The tables of a training step and of a sweep as data frames."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import polars as pl

from gnomon.pipeline.explain import idle_time
from gnomon.pipeline.run import Run
from gnomon.pipeline.step import StepRecord
from gnomon.pipeline.sweep_config import KEYS
from gnomon.pipeline.sweeps import Sweep


def task_frame(run: Run) -> pl.DataFrame:
    """One row per pass and transfer, by the time at which it could begin."""
    tasks = run.trace.tasks
    frame = pl.DataFrame(
        {
            "kind": [label.kind for label in run.labels],
            "micro_batch": [label.microbatch for label in run.labels],
            "stage": [label.stage for label in run.labels],
            "rank": np.asarray(tasks.rank),
            "ready": np.asarray(tasks.ready),
            "start": np.asarray(tasks.start),
            "end": np.asarray(tasks.end),
            "work": np.asarray(tasks.work),
            "throttled": np.asarray(tasks.throttled).astype(bool),
        }
    )
    return frame.sort("ready", "rank", maintain_order=True)


def rank_frame(step: StepRecord) -> pl.DataFrame:
    """Every rank's time by cause, and its peak of memory."""
    times = zip(idle_time(step.run), step.memory, strict=True)
    rows = [{"rank": rank, **asdict(time), "peak_memory": curve.peak} for rank, (time, curve) in enumerate(times)]
    return pl.DataFrame(rows)


def sweep_frame(sweep: Sweep) -> pl.DataFrame:
    """One row per configuration and priority."""
    rows = [
        {**{key: getattr(study, key) for key in KEYS}, **{f"p_{k}": str(v) for k, v in cell._asdict().items()}}
        for study in sweep.studies
        for cell in sweep.grid
    ]
    return pl.DataFrame(rows).with_columns(pl.Series("total_time", sweep.totals.ravel()))
