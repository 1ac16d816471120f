"""What explanations cost: a run with accounts against one without, the switch when it is off, a million requests.

CPU seconds of one core, compilation left out; ratios of runs that take turns in one process. What the switch costs when
it is off is the ratio to the engine compiled without the ledger's functions (in a process of its own).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gnomon
from gnomon.core.config import build
from gnomon.serving.results.explain import slowest
from gnomon.serving.results.latency_breakdown import accounts
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.workload import generate

REPEATS = 5


def ratios() -> None:
    print("with accounts over without, one replica of Llama-3-8B on an H100, 20,000 requests (aim: at most 1.30):")
    for rate in (5.0, 15.0, 25.0):
        scenario = build(Scenario, {"device": "h100", "workload": {"rate": rate, "num_requests": 20_000}})
        requests = generate(scenario.workload, scenario.seed)
        best = {False: float("inf"), True: float("inf")}
        for _ in range(REPEATS):
            for explained in best:
                start = time.process_time()
                done = run(scenario, requests=requests, explained=explained)
                best[explained] = min(best[explained], time.process_time() - start)
        each = best[False] / int(done.cluster.replicas.num_iterations.sum())
        print(f"  {rate:4.0f} requests/s: {best[True] / best[False]:.2f} ({each * 1e6:.2f} µs per iteration without)")


def per_iteration(repeats: int = REPEATS) -> float:
    """CPU seconds per iteration of a run without accounts, the best of some."""
    scenario = build(Scenario, {"device": "h100", "workload": {"rate": 5.0, "num_requests": 20_000}})
    requests = generate(scenario.workload, scenario.seed)
    best, iterations = float("inf"), 1
    for _ in range(repeats + 1):
        start = time.process_time()
        done = run(scenario, requests=requests)
        best = min(best, time.process_time() - start)
        iterations = int(done.cluster.replicas.num_iterations.sum())
    return best / iterations


def switched_off() -> None:
    """The engine as it is, against the same compiled with the ledger's switch replaced by `False`."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "gnomon"
        shutil.copytree(Path(gnomon.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for file in (copy / "serving").glob("*.py"):
            file.write_text(
                file.read_text(encoding="utf-8").replace("cluster.ledger.size > 0", "False"), encoding="utf-8"
            )
        root = Path(__file__).parent.parent
        command = [sys.executable, "-c", "from benchmarks.explain import per_iteration; print(per_iteration())"]
        seconds = {"as it is": float("inf"), "without": float("inf")}
        for _ in range(3):
            for name in seconds:
                first = str(folder) if name == "without" else str(Path(gnomon.__file__).parent.parent)
                paths = os.pathsep.join((first, str(root)))
                cache = {"GNOMON_CACHE": str(Path(folder) / f"cache {name}")}
                answer = subprocess.run(
                    command, env=os.environ | {"PYTHONPATH": paths} | cache, check=True, capture_output=True, text=True
                )
                seconds[name] = min(seconds[name], float(answer.stdout))
    ratio = seconds["as it is"] / seconds["without"]
    print(f"  the switch, off: {ratio:.3f} of the engine compiled without it ({seconds['without'] * 1e6:.3f} µs)")


def million() -> None:
    """In a process of its own, so that its memory can be given back."""
    workload = {"rate": 256 * 12.0, "num_requests": 1_000_000}
    scenario = build(Scenario, {"device": "h100", "num_replicas": 256, "workload": workload})
    small = scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"num_requests": 1000})})
    slowest(accounts(run(small, explained=True)))
    start = time.process_time()
    done = run(scenario, explained=True)
    simulated = time.process_time()
    found = slowest(accounts(done))
    explained = time.process_time()
    print(
        f"  simulated with accounts in {simulated - start:.1f} s, explained in {explained - simulated:.1f} s more"
        f" (aim: under 30 s); largest cause: {found.causes[0].words}"
    )


def main() -> None:
    ratios()
    switched_off()
    print("1,000,000 requests over 256 replicas, one core:", flush=True)
    subprocess.run([sys.executable, "-c", "from benchmarks.explain import million; million()"], check=True)


if __name__ == "__main__":
    main()
