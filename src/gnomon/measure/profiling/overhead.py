"""Host time per iteration, from the iterations that an engine recorded.

Host time is what an iteration takes on the clock beyond the GPU's work: scheduling, preparing inputs, launching,
booking samples. It is fitted as a constant plus a part per sequence.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gnomon.measure.profiling import bundle

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class HostTime:
    """Seconds per iteration and per sequence, and how far single iterations lie from that (median)."""

    per_iteration_s: float
    per_sequence_s: float
    median_error_s: float
    iterations: int


def read(run: Path) -> tuple[Floats, Floats]:
    """(sequences, host seconds) of every iteration of a recorded run."""
    with gzip.open(run / "iterations.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if len(rows) < 2:
        raise ValueError("fewer than two iterations")
    sequences = np.array([float(row["sequences"]) for row in rows])
    seconds = np.array([float(row["end_s"]) - float(row["start_s"]) - float(row["gpu_s"]) for row in rows])
    if not (np.isfinite(sequences).all() and np.isfinite(seconds).all()):
        raise ValueError("a time or a number of sequences is not finite")
    return sequences, seconds


VIDUR_PARTS = ("schedule_median", "prepare_inputs_e2e_median", "process_model_outputs_median", "ray_comm_time_mean")
"""Milliseconds of Vidur's `cpu_overheads.csv` that are the host's. Its sampler is not among them: choosing tokens is an
operator here."""


def read_vidur(path: Path) -> dict[int, tuple[Floats, Floats]]:
    """(sequences, host seconds) of every row of Vidur's `cpu_overheads.csv`, by tensor parallelism."""
    found: dict[int, list[tuple[float, float]]] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file):
            seconds = sum(float(row[name]) for name in VIDUR_PARTS) * 1e-3
            found.setdefault(int(float(row["tensor_parallel_degree"])), []).append((float(row["batch_size"]), seconds))
    if not found or min(map(len, found.values())) < 2:
        raise ValueError("fewer than two batch sizes")
    each = {degree: np.array(rows).T for degree, rows in sorted(found.items())}
    if not all(np.isfinite(rows).all() for rows in each.values()):
        raise ValueError("a time or a batch size is not finite")
    return {degree: (rows[0], rows[1]) for degree, rows in each.items()}


def fit(runs: Sequence[tuple[Floats, Floats]], share: float = 0.98) -> HostTime:
    """One fit over all runs: least squares of this share of the iterations, without the slowest ones (interruptions by
    the operating system)."""
    sequences, seconds = (np.concatenate(part) for part in zip(*runs, strict=True))
    kept = seconds <= np.quantile(seconds, share)
    columns = np.stack([np.ones(kept.sum()), sequences[kept]], 1)
    (constant, slope), *_ = np.linalg.lstsq(columns, seconds[kept], rcond=None)
    error = float(np.median(np.abs(constant + slope * sequences - seconds)))
    return HostTime(float(constant), float(slope), error, len(seconds))


def add_to(folder: Path, host: HostTime, sequences: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256)) -> None:
    """Add the fitted host time to an existing bundle as rows of `host.csv.gz`."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    about = {k: v for k, v in manifest.items() if k not in ("format", "version", "files", "content_hash")}
    rows = bundle.read_rows(folder)
    for count in sequences:
        seconds = host.per_iteration_s + host.per_sequence_s * count
        rows["host"]["iteration", count] = (seconds, host.median_error_s / seconds)
    bundle.write(folder, rows, about)
