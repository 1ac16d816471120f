"""A search that takes milliseconds: explicit iteration times, short runs."""

from __future__ import annotations

from typing import Any

from gnomon.core.config import build
from gnomon.search.config import SearchConfig

QUICK = {"min_requests": 200, "max_requests": 800, "num_intervals": 1, "num_sequences": 2}
TABLE = {
    "timing.source": "table",
    "timing.table": {"per_iteration": 0.01, "per_token": 1e-4, "per_sequence": 3e-4, "per_decode_kv_token": 1e-7},
}


def question(**changes: Any) -> SearchConfig:
    """Twelve configurations of Llama-2-7B; `changes` replace whole sections."""
    base: dict[str, Any] = {
        "model": "llama-2-7b",
        "workload": {"lengths": {"distribution": "uniform", "prompt": [10, 200], "output": [1, 60]}},
        "slo": {"ttft_s": {"p90": 0.5}, "tbt_s": {"p99": 0.1}},
        "space": {
            "device": ["a100", "h100"],
            "tensor_parallel": [1, 2],
            "batching": [{"policy": "vllm_v1", "max_batch_tokens": [256, 1024]}, {"policy": "sarathi"}],
        },
        "settings": TABLE,
        "effort": QUICK,
    }
    return build(SearchConfig, base | changes)
