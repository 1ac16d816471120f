"""What the smart strategy saves, and what it loses: both strategies on the same space, in one process.

python -m benchmarks.search
"""

from __future__ import annotations

import time

from gnomon.core.config import build
from gnomon.search.config import SearchConfig
from gnomon.search.study import Found, search

QUESTION = {
    "model": "llama-3-8b",
    "slo": {"ttft_s": {"p90": 1.0}, "tbt_s": {"p99": 0.1}},
    "space": {
        "device": ["a100", "h100"],
        "tensor_parallel": [1, 2, 4],
        "batching": [
            {"policy": "vllm_v1", "max_batch_tokens": [512, 2048, 8192]},
            {"policy": "sarathi", "max_batch_tokens": [512, 1024]},
            "vllm",
        ],
    },
    "effort": {"num_intervals": 0, "max_requests": 8000},
}


def main() -> None:
    asked = build(SearchConfig, QUESTION | {"space": {"batching": ["vllm_v1", "sarathi", "vllm"]}})
    search(asked, jobs=1)  # Compiles.
    smart, smart_s = measure("smart")
    exhaustive, exhaustive_s = measure("exhaustive")
    assert smart.best is not None and exhaustive.best is not None
    count = len(exhaustive.ranked) + len(exhaustive.others)
    print(
        f"search: over {count} configurations, smart needs {smart.runs / exhaustive.runs:.0%} of the runs and "
        f"{smart_s / exhaustive_s:.0%} of the time of exhaustive"
    )
    worth = (smart.best.score or 0.0) / (exhaustive.best.score or 1.0)
    print(f"search: its best is worth {worth:.1%} of the best of all ({smart.best.label}; {exhaustive.best.label})")
    print(f"search: {exhaustive_s / count:.2f} CPU seconds per capacity, {exhaustive.runs / count:.0f} runs each")


def measure(strategy: str) -> tuple[Found, float]:
    """The answer and its CPU seconds."""
    start = time.process_time()
    found = search(build(SearchConfig, QUESTION | {"strategy": strategy}), jobs=1)
    return found, time.process_time() - start


if __name__ == "__main__":
    main()
