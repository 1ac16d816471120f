"""The whole `gnomon simulate` command with 10,000 requests and its report, and what metrics, tables and trace cost.

python -m benchmarks.report
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUM_REQUESTS = 10_000
REPEATS = 3


def main() -> None:
    wall, processor = whole_command_s(NUM_REQUESTS)
    _, start = whole_command_s(1)
    print(f"report: gnomon simulate --out with {NUM_REQUESTS:,} requests takes {wall:.2f} s warm (target: 3 s)")
    print(f"report: {processor:.2f} s of it on the processor, {start:.2f} s of which a single request takes too")
    shares = stage_shares()
    total = sum(shares.values())
    for name, seconds in shares.items():
        print(f"report: {name:<10} {1e3 * seconds:7.1f} ms  {seconds / total:5.1%}")
    print(f"report: all of it costs {total / shares['simulate']:.1f} times the simulation alone")


def whole_command_s(num_requests: int) -> tuple[float, float]:
    """Seconds by the clock and of the processor: the fastest of a few runs, after one that compiles if need be."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "gnomon.cli.main", "simulate", "--out", folder]
        words += ["--workload.num-requests", str(num_requests)]
        for _ in range(1 + REPEATS):
            began, used = time.perf_counter(), _children_s()
            subprocess.run(words, check=True, capture_output=True)
            found.append((time.perf_counter() - began, _children_s() - used))
    return min(wall for wall, _ in found[1:]), min(processor for _, processor in found[1:])


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def stage_shares() -> dict[str, float]:
    """Seconds of each step within one process."""
    from gnomon.api.serving import Simulation, scenario
    from gnomon.report.serving.files import iteration_frame, request_frame
    from gnomon.report.serving.page import write_report
    from gnomon.report.serving.trace import write_trace
    from gnomon.serving.results.metrics import summarize
    from gnomon.serving.run.simulate import run

    chosen = scenario(**{"workload.num_requests": NUM_REQUESTS})
    result = Simulation(run(chosen))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def tables() -> None:
            request_frame(result.run).write_parquet(folder / "requests.parquet")
            iteration_frame(result.run).write_parquet(folder / "iterations.parquet")

        steps: dict[str, Callable[[], Any]] = {
            "simulate": lambda: run(chosen),
            "metrics": lambda: summarize(result.run),
            "tables": tables,
            "trace": lambda: write_trace(result.run, folder / "trace.json.gz"),
            "report": lambda: write_report(result.run, result.summary, folder / "report.html"),
        }
        return {name: _fastest(step) for name, step in steps.items()}


def _fastest(step: Callable[[], Any]) -> float:
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    return min(taken)


if __name__ == "__main__":
    main()
