"""Simulated results that many tests look at: each is simulated once per process."""

from __future__ import annotations

from functools import cache
from typing import Any

from gnomon.api.serving import Simulation, simulate

# A server that needs exactly 0.1 s per request, one at a time: everything about it can be computed by hand.
ONE_SERVER: dict[str, Any] = {
    "batching": {"policy": "vllm_v1", "max_sequences": 1, "prefix_cache": False},
    "timing": {"source": "table", "table": {"per_token": 0.001}},
}


def one_server(rate: float, num_requests: int, seed: int = 0, **overrides: Any) -> Simulation:
    """An M/D/1 queue with service time 0.1 s."""
    workload = {
        "rate": rate,
        "num_requests": num_requests,
        "lengths": {"distribution": "fixed", "prompt": 100, "output": 1},
    }
    return simulate({**ONE_SERVER, "workload": workload, "seed": seed}, **overrides)


@cache
def chat() -> Simulation:
    """Llama-3-8B on one H100 under a chat load, with an SLO."""
    return simulate(
        device="h100", **{"workload.rate": 27, "workload.num_requests": 600, "slo.ttft_s": 0.08, "slo.tpot_s": 0.015}
    )


@cache
def pipeline() -> Simulation:
    """Two replicas of two stages each, on two kinds of GPU."""
    return simulate(
        {
            "model": "llama-3-8b",
            "router": "least_outstanding",
            "pools": [
                {"device": "h100", "replica": {"pipeline_parallel": 2}},
                {"device": "a100-80gb", "num_replicas": 2},
            ],
            "workload": {"rate": 20, "num_requests": 400},
        }
    )
