"""What grows faster than the size: routers that look ahead over ever more replicas, ever longer prompts.

Processor time, compilation left out. A router that looks at every replica takes time in proportion to replicas times
requests, a prompt in proportion to its chunks: the figure per unit stays the same, or something is quadratic.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from gnomon.core.config import build
from gnomon.serving.scenario import Scenario
from gnomon.serving.simulate import run
from gnomon.workload import Requests

ROUTERS = ("predicted_latency", "lookahead", "learned")
REPLICAS = (64, 128, 256, 512)
PROMPTS = (10_000, 100_000, 1_000_000)


def fleet_us(router: str, num_replicas: int, num_requests: int) -> float:
    """Microseconds per request and replica, at 12 requests/s for each."""
    workload = {"rate": 12.0 * num_replicas, "num_requests": num_requests}
    given: dict[str, Any] = {"device": "h100", "num_replicas": num_replicas, "router": router, "workload": workload}
    scenario = build(Scenario, {**given, "timing": {"source": "roofline"}})
    start = time.process_time()
    run(scenario)
    return (time.process_time() - start) / num_requests / num_replicas * 1e6


def prompt_us(tokens: int) -> float:
    """Microseconds per chunk of 8,192 tokens, for eight prompts one after the other on two replicas."""
    scenario = build(
        Scenario,
        {
            "device": "h100",
            "num_replicas": 2,
            "router": "lookahead",
            "timing": {"source": "table", "table": {"per_token": 1e-5}},
            "replica": {"num_kv_blocks": 200_000, "max_request_tokens": 1_100_000},
            "batching": {"max_batch_tokens": 8192},
        },
    )
    count = 8
    offered = Requests(
        arrival_s=np.arange(count) * 0.5,
        prompt_tokens=np.full(count, tokens, np.int32),
        output_tokens=np.full(count, 20, np.int32),
        session=np.full(count, -1, np.int32),
        priority=np.zeros(count, np.int8),
        prefix_offsets=np.zeros(count + 1, np.int64),
        prefix_hashes=np.zeros(0, np.int64),
    )
    start = time.process_time()
    run(scenario, requests=offered)
    return (time.process_time() - start) / count / (tokens / 8192) * 1e6


def main(num_requests: int = 20_000) -> None:
    for router in ROUTERS:
        fleet_us(router, 64, 100)
        each = [fleet_us(router, count, num_requests) for count in REPLICAS]
        listing = ", ".join(f"{us:.2f} ({count})" for us, count in zip(each, REPLICAS, strict=True))
        print(
            f"{router}: µs per request and replica: {listing}; {each[-1] / each[0]:.2f} from first to last", flush=True
        )
    prompt_us(1000)
    found = [prompt_us(tokens) for tokens in PROMPTS]
    listing = ", ".join(f"{us:.0f} ({tokens:,})" for us, tokens in zip(found, PROMPTS, strict=True))
    print(f"prompts: µs per chunk: {listing}", flush=True)


if __name__ == "__main__":
    main()
