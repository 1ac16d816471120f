"""What grows faster than the size: routers that look ahead over ever more replicas, closed loops over them, ever longer
queues and prompts.

Processor time, compilation left out. A router that looks at every replica takes time in proportion to replicas times
requests, one that plays queues on in proportion to their length, a prompt in proportion to its chunks: the figure per
unit stays the same or falls, or something is quadratic.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from gnomon.core.config import build
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.workload import Requests

ROUTERS = (
    "round_robin", "least_outstanding", "llmd", "llmd_estimated", "prefix_aware", "predicted_latency", "unselfish",
    "lookahead", "learned",
)  # fmt: skip
REPLICAS = (64, 128, 256, 512)
LOOPS = (512, 1024, 2048, 4096)
BURSTS = (1000, 2000, 4000)
PROMPTS = (10_000, 100_000, 1_000_000)


def _run_s(given: dict[str, Any]) -> float:
    scenario = build(Scenario, {"device": "h100", "timing": {"source": "roofline"}, **given})
    start = time.process_time()
    run(scenario)
    return time.process_time() - start


def fleet_us(router: str, num_replicas: int, num_requests: int) -> float:
    """Microseconds per request and replica, at 12 requests/s for each."""
    workload = {"rate": 12.0 * num_replicas, "num_requests": num_requests}
    seconds = _run_s({"num_replicas": num_replicas, "router": router, "workload": workload})
    return seconds / num_requests / num_replicas * 1e6


def loop_us(num_replicas: int, num_requests: int) -> float:
    """Microseconds per request of a closed loop with eight requests at a time for each replica."""
    arrivals = {"process": "closed_loop", "concurrency": 8 * num_replicas}
    workload = {"arrivals": arrivals, "num_requests": num_requests}
    return _run_s({"num_replicas": num_replicas, "router": "round_robin", "workload": workload}) / num_requests * 1e6


def burst_us(num_requests: int) -> float:
    """Microseconds per request of those that come at once to four replicas, each played on with those before it."""
    workload = {"arrivals": "batch", "num_requests": num_requests}
    return _run_s({"num_replicas": 4, "router": "lookahead", "workload": workload}) / num_requests * 1e6


def prompt_us(tokens: int, shared: float) -> float:
    """Microseconds per chunk of 512 tokens, for a hundred prompts on one replica that has room for six; a part of them
    is the same in all."""
    count, blocks = 100, int(tokens * shared) // 16
    scenario = build(
        Scenario,
        {
            "device": "h100",
            "timing": {"source": "table", "table": {"per_token": 1e-5}},
            "replica": {"num_kv_blocks": 400_000, "max_request_tokens": 1_100_000},
            "batching": {"max_batch_tokens": 512},
        },
    )
    offered = Requests(
        arrival_s=np.arange(count) * 0.5,
        prompt_tokens=np.full(count, tokens, np.int32),
        output_tokens=np.full(count, 20, np.int32),
        session=np.full(count, -1, np.int32),
        priority=np.zeros(count, np.int8),
        prefix_offsets=np.arange(count + 1) * blocks,
        prefix_hashes=np.tile(np.arange(1, blocks + 1), count),
    )
    start = time.process_time()
    run(scenario, requests=offered)
    return (time.process_time() - start) / count / (tokens / 512) * 1e6


def _say(what: str, unit: str, sizes: tuple[int, ...], each: list[float]) -> None:
    listing = ", ".join(f"{us:.2f} ({size:,})" for us, size in zip(each, sizes, strict=True))
    print(f"{what}: µs per {unit}: {listing}; {each[-1] / each[0]:.2f} from first to last", flush=True)


def main(num_requests: int = 20_000) -> None:
    for router in ROUTERS:
        fleet_us(router, 64, 100)
        each = [fleet_us(router, count, num_requests) for count in REPLICAS]
        _say(router, "request and replica", REPLICAS, each)
    loop_us(64, 1000)
    _say("closed loop", "request", LOOPS, [loop_us(count, 5 * num_requests) for count in LOOPS])
    _say("lookahead over queues", "request", BURSTS, [burst_us(count) for count in BURSTS])
    for shared in (0.0, 0.5):
        prompt_us(1000, shared)
        each = [prompt_us(tokens, shared) for tokens in PROMPTS]
        _say(f"prompts, {shared:.0%} in common", "chunk", PROMPTS, each)


if __name__ == "__main__":
    main()
