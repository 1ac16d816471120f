"""Logging a serving run to Weights & Biases. Only on request; `WANDB_MODE=offline` keeps it on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from gnomon.core.errors import GnomonError, MissingExtraError
from gnomon.report.serving import text as words
from gnomon.report.serving.series import levels, rates
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import Run

_RATES = ("arrivals_per_s", "finished_per_s", "prompt_tokens_per_s", "output_tokens_per_s")
_LEVELS = ("waiting", "running", "kv_mean", "kv_max")


def log_run(run: Run, summary: Summary, project: str) -> str:
    """Log the scenario as the config, every number of the summary, and the time series; returns the run's address."""
    try:
        import wandb
    except ImportError:
        raise MissingExtraError("Logging to Weights & Biases", "wandb") from None
    figures = {key: value for key, value in flat(summary.to_dict()) if not key.startswith("replicas")}
    config = run.scenario.model_dump(mode="json")
    try:
        started = wandb.init(project=project, config=config, notes=words.title(run.scenario))
    except wandb.errors.Error as error:
        fix = "Run `wandb login`, or set WANDB_MODE=offline."
        raise GnomonError(f"Weights & Biases does not take the run: {error}.", where="--wandb", fix=fix) from None
    with started as logged:
        logged.define_metric("*", step_metric="time_s")
        for row in series_rows(run, summary):
            logged.log(row)
        logged.summary.update(figures)
        return str(logged.url or logged.dir)


def series_rows(run: Run, summary: Summary) -> list[dict[str, float]]:
    """The time series, one row per bin of its rates."""
    start = float(run.cluster.requests.arrival_s.min())
    span = (start, start + summary.duration_s)
    series = asdict(levels(run, *span)) | asdict(rates(run, *span))
    at = series["middle_s"]
    columns = {name: series[name] for name in _RATES}
    columns |= {name: np.interp(at, series["at_s"], series[name]) for name in _LEVELS}
    return [
        {"time_s": float(moment)} | {name: float(values[i]) for name, values in columns.items()}
        for i, moment in enumerate(at)
    ]


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of nested data, by its dotted name."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", value
