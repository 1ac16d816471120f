"""Speed of the pipeline simulator: runs per second, the example sweep with its pictures, memory of a large sweep.

python -m benchmarks.pipeline            # the figures below, about a minute
python -m benchmarks.pipeline --million  # and a sweep of a million runs
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

EXAMPLE = Path(__file__).parent.parent / "examples" / "pipeline" / "sweep.json"


def main() -> None:
    compiled = runs_per_second()
    plain = plain_runs_per_second()
    print(f"pipeline: {compiled:,.0f} runs/s on one core (n=8, p=4), {compiled / plain:,.0f} times plain Python")
    seconds, share = one_command()
    print(
        f"pipeline: the 1,584-run example sweep with its 18 heat maps takes {seconds:.1f} s, {share:.0%} of it pictures"
    )
    small, large = sweep_memory(10), sweep_memory(100)
    print(f"pipeline: ten times the sweep (8,800 to 88,000 runs) takes {large / small:.2f} times the memory")
    if "--million" in sys.argv:
        million()


def runs_per_second() -> float:
    """Single-threaded, over the 88 priorities of the study's default configuration."""
    from gnomon.pipeline.study import Study
    from gnomon.pipeline.sweeps import priority_grid, run_chunk

    grid = tuple(priority_grid(0.1))
    run_chunk(grid, [Study()])  # Compiles.
    studies = [Study(prop_len=length) for length in np.linspace(0.5, 1.5, 40)]
    best = 0.0
    for _ in range(3):
        start = time.process_time()  # Of this core, whoever else uses the machine.
        totals = run_chunk(grid, studies)
        best = max(best, totals.size / (time.process_time() - start))
    return best


def plain_runs_per_second() -> float:
    """The same engine without compilation, in a process of its own."""
    program = (
        "import time\n"
        "from gnomon.pipeline.study import Study, simulate\n"
        "start = time.process_time()\n"
        "for _ in range(20): simulate(Study(), record=False)\n"
        "print(20 / (time.process_time() - start))\n"
    )
    return float(_python(program, GNOMON_JIT="0"))


def one_command() -> tuple[float, float]:
    """Seconds of `gnomon pipeline all` with compiled code at hand, and the share of the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        arguments = ["-m", "gnomon.cli.main", "pipeline", "sweep", "-c", str(EXAMPLE), "-o", f"{folder}/sweep.csv"]
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        without = time.perf_counter() - start
        start = time.perf_counter()
        arguments = ["-m", "gnomon.cli.main", "pipeline", "all", "-c", str(EXAMPLE), "--out", folder]
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        whole = time.perf_counter() - start
    return whole, max(0.0, 1.0 - without / whole)


def sweep_memory(configurations: int) -> float:
    """Peak resident bytes of a process that sweeps `configurations` x 88 runs and writes the CSV."""
    program = (
        "import numpy as np, resource, tempfile\n"
        "from gnomon.pipeline.sweeps import sweep\n"
        "from gnomon.pipeline.sweeps import SweepConfig\n"
        f"lengths = tuple(np.linspace(0.5, 1.5, {configurations * 10}).round(6).tolist())\n"
        "done = sweep(SweepConfig(prop_len=lengths), jobs=1)\n"
        "with tempfile.TemporaryDirectory() as folder: done.write(folder + '/x.csv')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    return float(_python(program))


def million() -> None:
    """A million runs over all cores."""
    from gnomon.pipeline.sweeps import SweepConfig, sweep

    settings = SweepConfig(
        prop_len=tuple(np.linspace(0.5, 1.5, 107).round(6).tolist()),
        sync_base_len=tuple(np.linspace(1.0, 3.0, 107).round(6).tolist()),
    )
    start = time.perf_counter()
    done = sweep(settings)
    with tempfile.TemporaryDirectory() as folder:
        done.write(f"{folder}/million.csv")
    seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"pipeline: {done.totals.size:,} runs swept and written in {seconds:.0f} s, {memory:.0f} MiB in this process")


def _python(program: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | variables, check=True, capture_output=True, text=True
    )
    return done.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    main()
