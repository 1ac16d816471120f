"""Smart search finds what exhaustive search finds, on small spaces drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gnomon.core.config import build
from gnomon.search.config import SearchConfig
from gnomon.search.study import search


def drawn(number: int) -> dict[str, Any]:
    """A space of 16 to 24 configurations: near-ties (caps that hardly bind), engines, warm prefix caches."""
    random = np.random.default_rng([36, number])
    policies = random.choice(["vllm_v1", "sarathi", "sglang", "orca"], 2, replace=False).tolist()
    batching: list[dict[str, Any]] = [
        {"policy": policy, "max_sequences": sorted(random.choice([8, 16, 60, 64, 128], 3, replace=False).tolist())}
        for policy in policies
    ]
    if number % 4 == 0:
        batching = [{"engine": "vllm", "max_sequences": [32, 64]}, {"engine": "sglang", "max_sequences": [32, 64]}]
    prompt, output = int(random.integers(50, 800)), int(random.integers(20, 120))
    workload: dict[str, Any] = {
        "lengths": {"distribution": "uniform", "prompt": [prompt // 2, prompt], "output": [1, output]}
    }
    settings: dict[str, Any] = {"timing.source": "roofline"}
    if number % 3 == 0:
        workload["sessions"] = {"num_active": 16, "turns": 4}
        settings |= {} if number % 4 == 0 else {"batching.prefix_cache": True}
    ttft_s, tpot_s = float(random.uniform(0.3, 2.0)), float(random.uniform(0.02, 0.08))
    return {
        "model": "llama-3-8b", "workload": workload, "settings": settings, "seed": number,
        "slo": {"ttft_s": {"p90": ttft_s}, "tpot_s": {"p90": tpot_s}},
        "space": {"device": ["a100", "h100"], "tensor_parallel": [1, 2], "batching": batching},
        "effort": {"min_requests": 200, "max_requests": 400, "num_intervals": 0, "convergence": 0.05,
                   "precision": 0.02},
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_smart_search_finds_what_exhaustive_search_finds(number: int) -> None:
    found = {
        how: search(build(SearchConfig, drawn(number) | {"strategy": how}), jobs=1) for how in ("smart", "exhaustive")
    }
    best = {how: one.best for how, one in found.items()}
    assert (best["smart"] is None) == (best["exhaustive"] is None)
    if best["smart"] is not None and best["exhaustive"] is not None:
        assert best["smart"].score == pytest.approx(best["exhaustive"].score, rel=0.02), "the precision asked for"
    assert found["smart"].runs <= found["exhaustive"].runs * 1.2
