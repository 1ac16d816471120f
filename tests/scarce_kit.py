"""Random scenarios in which KV memory, batch caps or token budgets are too small for what is asked."""

from __future__ import annotations

from typing import Any

import numpy as np

from serving_kit import requests_of, scenario

# Lists of their own: a seed stays the same scenario when policies and routers are added elsewhere.
POLICIES = (
    "vllm_v1", "sglang", "trtllm", "vllm", "sarathi", "orca", "faster_transformer", "lightllm", "priority", "vtc",
    "drr", "dlpm",
)  # fmt: skip
ROUTERS = (
    "random", "round_robin", "least_outstanding", "vidur_lor", "power_of_two", "least_kv", "least_prefill_tokens",
    "lmetric", "sticky_session", "sticky_until_full", "prefix_aware", "predicted_latency", "lookahead", "vllm_dp",
    "learned",
)  # fmt: skip
MODERN = ("vllm_v1", "sglang")
RESERVING = ("vllm_v1", "priority", "vtc", "drr", "dlpm")


def scarce(seed: int) -> tuple[Any, Any]:
    """A scenario and its requests."""
    random = np.random.default_rng(seed)
    policy = POLICIES[seed % len(POLICIES)]
    count = int(random.integers(1, 25))
    longest = int(random.choice([8, 60, 400]))
    prompt = random.integers(1, longest + 1, count)
    output = random.integers(1, int(random.choice([2, 20, 200])) + 1, count)
    arrival = np.sort(random.choice([0.0, 0.5, 5.0]) * random.random(count))
    block_size = 1 if policy == "lightllm" else int(random.choice([1, 3, 16]))
    # From next to nothing to a few requests' worth.
    blocks = int(random.integers(0, 3 * (longest + int(output.max())) // block_size + 3))
    stages = 1 if policy == "lightllm" else int(random.choice([1, 1, 2, 3]))
    batching: dict[str, Any] = {
        "policy": policy,
        "block_size": block_size,
        "max_sequences": int(random.integers(1, 20)) * stages,
        "max_batch_tokens": int(random.choice([5, 64, 600])),
    }
    reserves = float(random.integers(2))
    if policy in RESERVING:
        batching["options"] = {"reserve_full_prompt": reserves}
    replica: dict[str, Any] = {"num_kv_blocks": blocks, "pipeline_parallel": stages}
    if random.random() < 0.5 or policy in ("orca", "faster_transformer"):
        replica["max_request_tokens"] = int(longest + output.max())
    if policy in MODERN:
        batching["prefix_cache"] = bool(random.integers(2))
        if random.random() < 0.3:
            batching["max_chunk_tokens"] = int(random.choice([1, 7, 100]))
    if policy == "vllm_v1" and random.random() < 0.2:
        replica["speculative"] = {"num_tokens": int(random.integers(1, 5))}
    if random.random() < 0.3:
        batching["watermark"] = float(random.choice([0.0, 0.1, 0.5]))
    setup = scenario(
        batching=batching,
        replica=replica,
        num_replicas=int(random.integers(1, 4)),
        router={"name": ROUTERS[int(random.integers(len(ROUTERS)))]},
        seed=seed,
    )
    return setup, requests_of(arrival, prompt, output)
