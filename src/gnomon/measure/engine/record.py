"""What a run leaves: `run.json`, `requests.csv.gz` and `iterations.csv.gz`."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import IO, Any

from gnomon.measure.engine.serve import Served


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """A gzipped CSV file, the same bytes for the same rows, whole or not there."""
    rows = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(text.getvalue().encode())
    os.replace(temporary, path)


def save(served: Served, folder: Path, facts: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "requests.csv.gz", (_request_row(request) for request in served.requests))
    write_csv(folder / "iterations.csv.gz", (_step_row(step) for step in served.steps))
    (folder / "run.json").write_text(json.dumps({**facts, "summary": summary(served)}, indent=1) + "\n")


def summary(served: Served) -> dict[str, float]:
    """The figures one looks at first; latencies in seconds."""
    several = [r for r in served.requests if r.output_tokens > 1]
    latencies = {
        "ttft": sorted(r.stamps[0] - r.arrived_s for r in served.requests),
        "tpot": sorted((r.stamps[-1] - r.stamps[0]) / (r.output_tokens - 1) for r in several),
        "e2e": sorted(r.stamps[-1] - r.arrived_s for r in served.requests),
    }
    return {
        "num_requests": len(served.requests),
        "num_iterations": len(served.steps),
        "duration_s": served.steps[-1].end_s,
        "gpu_busy": sum(s.iteration.gpu_s for s in served.steps) / served.steps[-1].end_s,
        "mean_sequences": sum(s.iteration.sequences for s in served.steps) / len(served.steps),
        **{f"{what}_{name}_s": value for what, some in latencies.items() for name, value in _percentiles(some)},
    }


def _percentiles(ordered: Sequence[float]) -> Iterable[tuple[str, float]]:
    yield "mean", sum(ordered) / len(ordered)
    for share in (50, 90, 99):
        yield f"p{share}", ordered[min(len(ordered) - 1, share * len(ordered) // 100)]


def _request_row(request: Any) -> dict[str, Any]:
    return {
        "request": request.index, "arrived_s": f"{request.arrived_s:.6f}", "prompt_tokens": len(request.prompt),
        "output_tokens": request.output_tokens, "admitted_s": f"{request.admitted_s:.6f}",
        "first_token_s": f"{request.stamps[0]:.6f}", "last_token_s": f"{request.stamps[-1]:.6f}",
        "preemptions": request.preemptions,
    }  # fmt: skip


def _step_row(step: Any) -> dict[str, Any]:
    row = {"start_s": f"{step.start_s:.6f}", "end_s": f"{step.end_s:.6f}", **asdict(step.iteration)}
    for name in ("prepare_s", "launch_s", "gpu_s"):
        row[name] = f"{row[name]:.6f}"
    for name in ("chunks_squared", "chunks_kv"):
        row[name] = f"{row[name]:.0f}"
    return row


QUERY = ("clocks.sm", "power.draw.instant", "temperature.gpu")
EVERY_MS = 1000


class Clocks:
    """Watches from entering to leaving; nothing is known where there is no nvidia-smi."""

    def __enter__(self) -> Clocks:
        self._file: IO[str] = tempfile.TemporaryFile("w+")
        self._process: subprocess.Popen[str] | None = None
        command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits", "--id=0"]
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen([*command, f"-lms={EVERY_MS}"], stdout=self._file, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        self._file.seek(0)
        self._seen = parse(self._file.read())
        self._file.close()

    def summary(self) -> dict[str, float]:
        """Means over the run, and the lowest clock; empty where nothing was seen."""
        if not self._seen:
            return {}
        clock, power, temperature = zip(*self._seen, strict=True)
        return {
            "sm_mhz_mean": round(fmean(clock), 1), "sm_mhz_least": min(clock),
            "power_w_mean": round(fmean(power), 1), "temperature_c_most": max(temperature),
        }  # fmt: skip


def parse(text: str) -> list[tuple[float, ...]]:
    """Lines of numbers; a line that was cut off or holds something else is left out."""
    rows = []
    for line in text.splitlines():
        try:
            row = tuple(float(part) for part in line.split(","))
        except ValueError:
            continue
        if len(row) == len(QUERY):
            rows.append(row)
    return rows
