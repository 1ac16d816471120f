"""A day of ten million requests over up to 256 replicas, autoscaled: CPU seconds of one core, and memory.

Compilation is left out (a small day runs first). The load is diurnal (four times as much at noon as at night); answers
are long (1,500 tokens), so that the peak needs most of the replicas. A tenth of the day's requests over a tenth of the
replicas is measured in the same process before, so that the figure can be read as a ratio on any machine.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from typing import Any

from gnomon.core.config import build
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario

DAY_S = 86_400.0
LARGEST = 256


def day(share: float) -> Scenario:
    """A share of the day's requests over the same share of its replicas."""
    count = round(10_000_000 * share)
    replicas = max(2, round(LARGEST * share))
    given: dict[str, Any] = {
        "model": "llama-3-70b",
        "device": "h100",
        "num_replicas": max(1, replicas // 4),
        "replica": {"tensor_parallel": 4},
        "timing": {"source": "roofline"},
        "workload": {
            "rate": count / DAY_S,
            "num_requests": count,
            "arrivals": {"process": "diurnal", "peak_to_trough": 4.0},
            "lengths": {"distribution": "uniform", "prompt": [200, 1800], "output": [500, 2500]},
        },
        "slo": {"ttft_s": 2.0},
        "fleet": {
            "min_replicas": 1,
            "max_replicas": replicas,
            "controller": {"name": "queue_driven", "interval_s": 60.0, "options": {"running": 28.0}},
            "cold_start": {"node_s": 30.0},
            "failures": {"mtbf_s": 7 * DAY_S, "mttr_s": 1800.0},
        },
    }
    return build(Scenario, given)


def measured(share: float) -> tuple[float, float]:
    """CPU seconds of requests, run and summary; prints what happened."""
    start = time.process_time()
    done = run(day(share))
    ran = time.process_time()
    summary = summarize(done)
    end = time.process_time()
    fleet, iterations = summary.fleet, summary.iterations.count
    assert fleet is not None and summary.requests.finished == summary.requests.offered
    met = summary.slo.attainment if summary.slo else 0.0
    print(
        f"  {summary.requests.offered:10,} requests, {fleet.mean_up:.1f} replicas in the mean, {fleet.peak_up} at most,"
        f" {fleet.failures} failures: {end - start:.1f} s ({end - ran:.1f} of it the summary), {iterations:,}"
        f" iterations, {(ran - start) / iterations * 1e9:.0f} ns each; TTFT met by {met:.1%}",
        flush=True,
    )
    return end - start, iterations


def main() -> None:
    print("a day of 10,000,000 requests over up to 256 replicas, one core (aim: under 60 s, under 4 GB):", flush=True)
    subprocess.run([sys.executable, "-c", "from benchmarks.fleet import whole; whole()"], check=True)


def whole() -> None:
    """In a process of its own, so that its memory can be read."""
    measured(0.001)
    tenth, _ = measured(0.1)
    all_, _ = measured(1.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(f"  {all_:.1f} s, {all_ / tenth:.1f}x a tenth of the day; {peak:.2f} GB at most")


if __name__ == "__main__":
    main()
