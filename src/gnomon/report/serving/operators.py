"""Operator-level times of a run: where the seconds of its iterations go, how they vary from batch to batch, and over
time."""

from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl

from gnomon.serving.results.mean_iteration import first_stages, mean_iterations
from gnomon.serving.run.simulate import Run
from gnomon.timing import Batch, Timer, breakdown

NUM_SLICES = 20  # Parts of a run for operators over time.

_SCHEMA = {
    "kind": pl.Int64, "device": pl.String, "iteration": pl.String, "num_iterations": pl.Int64, "operator": pl.String,
    "calls": pl.Int64, "seconds": pl.Float64, "flops": pl.Float64, "bytes": pl.Float64, "mfu": pl.Float64,
    "limit": pl.String, "provenance": pl.String,
}  # fmt: skip
_OVER_TIME = {"start_s": pl.Float64, "end_s": pl.Float64, **_SCHEMA}
_SPREAD = {"p50_s": 50, "p90_s": 90, "p99_s": 99, "max_s": 100}  # Percentiles of an operator's seconds over batches.


def operator_frame(run: Run, *, with_spread: bool = True) -> pl.DataFrame:
    """One row per pool, kind of iteration (prefill, mixed, decode) and operator.

    `seconds` is of one iteration of the mean shape: mean prompt tokens, decodes and KV length. Beside it are
    percentiles over batches of the whole run, each as it was: unless they are not wanted, for each of those batches is
    timed. A source that gives whole iterations (`table`) has no operators: the frame is empty.
    """
    rows: list[dict[str, Any]] = []
    for number, timer in _timers(run):
        iterations = first_stages(run, number)
        sorts = mean_iterations(iterations) if with_spread else ()
        spread = {one.sort: _spread(timer, one.some) for one in sorts}
        rows += [
            row | spread.get(row["iteration"], {}).get(row["operator"], {})
            for row in _operators(run, number, timer, iterations)
        ]
    return pl.DataFrame(rows, schema=_SCHEMA | dict.fromkeys(_SPREAD, pl.Float64))


def _spread(timer: Timer, batches: list[Batch]) -> dict[str, dict[str, float]]:
    """Percentiles of every operator's seconds over batches; one that a batch does not need takes none there."""
    seconds: dict[str, list[float]] = {}
    for batch in batches:
        for one in breakdown(timer, batch):
            seconds.setdefault(one.name, []).append(one.seconds)
    found = {}
    for name, known in seconds.items():
        at = np.percentile(known + [0.0] * (len(batches) - len(known)), list(_SPREAD.values()))
        found[name] = dict(zip(_SPREAD, at.tolist(), strict=True))
    return found


def operators_over_time(run: Run) -> pl.DataFrame:
    """Seconds of operators in each of twenty equal parts of the run, of the iterations that began in it."""
    rows: list[dict[str, Any]] = []
    log = run.log.iterations[: run.log.used[0]]
    edges = np.linspace(log["start_s"].min() if len(log) else 0.0, log["end_s"].max(initial=0.0), NUM_SLICES + 1)
    for number, timer in _timers(run):
        iterations = first_stages(run, number)
        part = np.minimum(np.searchsorted(edges, iterations["start_s"], side="right") - 1, NUM_SLICES - 1)
        for i in np.unique(part):
            span = {"start_s": edges[i], "end_s": edges[i + 1]}
            rows += [{**span, **row} for row in _operators(run, number, timer, iterations[part == i])]
    return pl.DataFrame(rows, schema=_OVER_TIME)


def _timers(run: Run) -> list[tuple[int, Timer]]:
    """Pools whose iterations are made of operators."""
    return [(number, one) for number, one in enumerate(run.times.timers if run.times else ()) if one is not None]


def _operators(run: Run, number: int, timer: Timer, iterations: Any) -> list[dict[str, Any]]:
    rows = []
    for mean in mean_iterations(iterations):
        same = {
            "kind": number, "device": run.pools[number].device.name, "iteration": mean.sort,
            "num_iterations": mean.count,
        }  # fmt: skip
        for one in breakdown(timer, mean.batch):
            own = asdict(one)
            rows.append({**same, "operator": own.pop("name"), **own})
    return rows
