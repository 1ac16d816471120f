"""The serving engine: microseconds per iteration, requests per second, a million requests over 256 replicas.

Everything is measured in this process, CPU seconds of one core, compilation left out, and set in relation to a plain
Python loop that does a fraction of the same work (a dict per request, one addition per token), timed in the same run.
Vidur's own loop takes 150-680 microseconds per batch iteration (MLSys 2024 code, measured on a server CPU).

So that a slower engine is seen on any machine, one iteration is also counted in steps of a fixed compiled loop, timed
between the runs, and compared with what it took at the commit in `RECORDED`. Processes differ by some 3 %.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import numba
import numpy as np

from gnomon.core.config import build
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.workload import generate

VIDUR_S_PER_ITERATION = (150e-6, 680e-6)
RECORDED = ("2bed634", {5.0: 15.2, 15.0: 22.4, 25.0: 37.6})
"""Steps of `_steps` that one iteration took, by rate."""


@numba.njit
def _steps(table: np.ndarray, count: int) -> float:
    """What the engine is made of: dependent loads and stores, a branch, a division and a logarithm each."""
    at, total = 1, 0.0
    for _ in range(count):
        at = at * 48_271 % 2_147_483_647
        i = at % table.size
        table[i] += 1.0
        if table[i] > 3.0:
            total += np.log2(table[i]) / (1.0 + i)
    return total


def seconds_of_a_step(count: int = 1_000_000) -> float:
    """CPU seconds of one step of the fixed loop."""
    table = np.zeros(4096)
    _steps(table, 10)
    start = time.process_time()
    _steps(table, count)
    return (time.process_time() - start) / count


def cpu_seconds_of_plain_loop(batch_size: int, iterations: int = 2000) -> float:
    """CPU seconds per iteration of the least a per-iteration object loop does: touch each request of the batch."""
    requests = [{"processed": i, "total": 10**9, "last": 0.0} for i in range(batch_size)]
    start, now = time.process_time(), 0.0
    for _ in range(iterations):
        now += 0.01
        for request in requests:
            request["processed"] += 1
            request["last"] = now
            if request["processed"] >= request["total"]:
                raise AssertionError
    return (time.process_time() - start) / iterations


def measured(scenario: Scenario, repeats: int = 3) -> tuple[float, int, float]:
    """CPU seconds of the best of some runs (requests made beforehand), iterations, and seconds of a step between."""
    requests = generate(scenario.workload, scenario.seed)
    run(scenario, requests=requests)
    best, step = float("inf"), float("inf")
    for _ in range(repeats):
        start = time.process_time()
        done = run(scenario, requests=requests)
        best = min(best, time.process_time() - start)
        step = min(step, seconds_of_a_step())
    return best, int(done.cluster.replicas.num_iterations.sum()), step


def per_iteration() -> None:
    print("one replica of Llama-3-8B on an H100, chat-1m, vllm_v1:")
    commit, recorded = RECORDED
    for rate in recorded:
        scenario = build(Scenario, {"device": "h100", "workload": {"rate": rate, "num_requests": 20_000}})
        seconds, iterations, step = measured(scenario, repeats=9)
        batch = generate(scenario.workload, scenario.seed).output_tokens.sum() / iterations
        plain = cpu_seconds_of_plain_loop(max(1, round(batch)))
        each = seconds / iterations
        print(
            f"  {rate:4.0f} requests/s, mean batch {batch:5.1f}: {each * 1e6:5.2f} µs per iteration,"
            f" {20_000 / seconds:9,.0f} requests/s; {plain / each:5.1f}x a plain Python loop,"
            f" {VIDUR_S_PER_ITERATION[0] / each:5.0f}-{VIDUR_S_PER_ITERATION[1] / each:.0f}x Vidur's published times;"
            f" {each / step:.1f} steps, {each / step / recorded[rate]:.2f} of {commit}"
        )


def scaling() -> None:
    print("scaling, 8 replicas, round robin (linear: the same µs per request):")
    for count in (10**3, 10**4, 10**5, 10**6):
        workload = {"rate": 100.0, "num_requests": count}
        scenario = build(Scenario, {"device": "h100", "num_replicas": 8, "workload": workload})
        seconds, iterations, _ = measured(scenario, repeats=1)
        each = seconds / count * 1e6
        print(f"  {count:9,} requests: {seconds:7.3f} s, {each:5.2f} µs/request, {iterations:,} iterations")


def million(router: str) -> None:
    """In a process of its own, so that its memory can be read."""
    scenario = build(
        Scenario,
        {
            "device": "h100",
            "num_replicas": 256,
            "router": router,
            "workload": {"rate": 256 * 12.0, "num_requests": 1_000_000},
        },
    )
    warm = scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"num_requests": 1000})})
    run(warm)
    start = time.process_time()
    done = run(scenario)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    iterations = int(done.cluster.replicas.num_iterations.sum())
    print(
        f"  {router}: {seconds:.2f} s (aim: under 10 s), {peak:.2f} GiB (aim: under 4),"
        f" {iterations:,} iterations, {seconds / iterations * 1e6:.2f} µs each, requests generated included"
    )


def main() -> None:
    per_iteration()
    scaling()
    print("1,000,000 requests over 256 replicas, one core:", flush=True)
    for router in ("round_robin", "least_outstanding"):
        command = f"from benchmarks.serving import million; million({router!r})"
        subprocess.run([sys.executable, "-c", command], check=True)


if __name__ == "__main__":
    main()
