"""Prefill and decode apart: a million requests over 64 prefill and 192 decode workers, on one core.

CPU seconds of this process, compilation left out, beside the same requests over 256 replicas that do both, measured in
the same run. The goal is 20 s.
"""

from __future__ import annotations

import time
from typing import Any

from gnomon.core.config import build
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario

APART: dict[str, Any] = {
    "pools": [{"role": "prefill", "num_replicas": 64}, {"role": "decode", "num_replicas": 192}],
    "router": "round_robin",
    "disaggregation": {"decode_router": "round_robin"},
}
TOGETHER: dict[str, Any] = {"num_replicas": 256, "router": "round_robin"}


def measured(layout: dict[str, Any], num_requests: int) -> tuple[float, int]:
    """CPU seconds and iterations."""
    workload = {"rate": 192 * 10.0, "num_requests": num_requests}
    scenario = build(Scenario, {"device": "h100", "workload": workload, **layout})
    start = time.process_time()
    done = run(scenario)
    return time.process_time() - start, int(done.cluster.replicas.num_iterations.sum())


def main(num_requests: int = 1_000_000) -> None:
    measured(APART, 1000)
    measured(TOGETHER, 1000)
    apart, iterations = measured(APART, num_requests)
    together, _ = measured(TOGETHER, num_requests)
    print(
        f"{num_requests:,} requests over 64 prefill and 192 decode workers: {apart:.1f} s (goal: under 20 s),"
        f" {iterations:,} iterations, {apart / iterations * 1e6:.2f} µs each;"
        f" {apart / together:.2f}x the time of 256 replicas that do both ({together:.1f} s)",
        flush=True,
    )


if __name__ == "__main__":
    main()
