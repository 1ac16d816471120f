"""Small runs of every policy and router as recorded: who ran where, when it was done, who was sent back."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from gnomon.serving.run.simulate import Run
from gnomon.workload.slo import UserClass
from recorded_kit import check_recorded
from scarce_kit import POLICIES, scarce
from serving_kit import ROUTERS, requests_of, run, scenario

OF_CLASSES = ("priority", "vtc", "drr", "dlpm")
CLASSES = (UserClass("low"), UserClass("high", priority=2), UserClass("heavy", priority=1, weight=3.0))


def _found(done: Run) -> dict[str, Any]:
    requests = done.cluster.requests
    return {
        "status": "".join(str(int(one)) for one in requests.status),
        "restarts": "".join(str(min(9, int(one))) for one in requests.num_restarts),
        "replica": "".join(str(int(one)) for one in requests.replica),
        "cached": int(requests.cached_tokens.sum()),
        "iterations": done.cluster.replicas.num_iterations,
        "first": requests.first_token_s,
        "done": requests.finished_s,
    }


def _short_ones(count: int) -> list[int]:
    """The first `count` scarce scenarios of every policy that take few iterations."""
    found: list[int] = []
    for first in range(20_000, 20_000 + len(POLICIES)):
        seeds = (seed for seed in range(first, 30_000, len(POLICIES)))
        found += islice((s for s in seeds if 20 < scarce(s)[1].output_tokens.sum() < 160), count)
    return found


@pytest.mark.parametrize("seed", _short_ones(5))
def test_scarce_scenarios(seed: int) -> None:
    setup, offered = scarce(seed)
    check_recorded("scarce", str(seed), _found(run(setup, requests=offered)))


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("policy", OF_CLASSES)
def test_classes(policy: str, number: int) -> None:
    random = np.random.default_rng(number)
    count = 24
    prompts, outputs = random.integers(3, 90, count), random.integers(1, 25, count)
    offered = replace(
        _with_prefixes(requests_of(np.sort(random.random(count) * 0.8), prompts, outputs), random),
        user_class=random.integers(0, 3, count).astype(np.int8),
        classes=CLASSES,
    )
    batching = {
        "policy": policy, "block_size": 4, "max_sequences": 3 + number, "max_batch_tokens": 40 + 20 * number,
        "prefix_cache": number != 1,
    }  # fmt: skip
    setup = scenario(batching=batching, replica={"num_kv_blocks": 70 + 30 * number, "max_request_tokens": 200})
    check_recorded("classes", f"{policy} {number}", _found(run(setup, requests=offered)))


def _with_prefixes(offered: Any, random: Any) -> Any:
    """Blocks of four tokens, the first ones of which many share."""
    rows = [
        [
            int(random.integers(0, 2)) * 1000 + block if block < 6 else 10_000 * (number + 1) + block
            for block in range(tokens // 4)
        ]
        for number, tokens in enumerate(offered.prompt_tokens)
    ]
    rows = [
        [rows[i][0] // 1000 * 1000 + j if j < 6 else key for j, key in enumerate(row)] if row else row
        for i, row in enumerate(rows)
    ]
    return replace(
        offered,
        prefix_hashes=np.array([key + 1 for row in rows for key in row], np.int64),
        prefix_offsets=np.cumsum([0, *map(len, rows)]).astype(np.int64),
        prefix_block_tokens=4,
        session=random.integers(0, 5, len(rows)).astype(np.int32),
    )


SLOW = {"source": "table", "table": {"per_iteration": 0.015, "per_token": 2e-4, "per_decode_kv_token": 2e-7}}
LENGTHS = {0: "none", 1: "oracle", 2: "noisy"}
OPTIONS: dict[str, dict[str, float]] = {
    "lookahead": {"others": 0.7}, "unselfish": {"patience": 0.5}, "learned": {"temperature": 0.5},
    "sticky_until_full": {"outstanding": 3.0, "kv_share": 0.4}, "prefix_aware": {"load_weight": 0.4},
    "vllm_dp": {"report_interval_s": 0.02},
}  # fmt: skip


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("router", [*ROUTERS, "unselfish"])
def test_routers(router: str, number: int) -> None:
    random = np.random.default_rng(100 + number)
    count = 30
    prompts, outputs = random.integers(5, 400, count), random.integers(1, 40, count)
    offered = _with_prefixes(requests_of(np.sort(random.random(count) * 0.6), prompts, outputs), random)
    chosen: dict[str, Any] = {"name": router, "options": OPTIONS.get(router, {}) if number else {}}
    if router in ("predicted_latency", "lookahead", "learned", "unselfish") and router != "learned":
        chosen["lengths"] = LENGTHS[number]
    setup = scenario(
        pools=[{"num_replicas": 2}, {"num_replicas": 2, "timing": SLOW}],
        router=chosen,
        batching={"block_size": 4, "max_sequences": 6, "max_batch_tokens": 128},
        replica={"num_kv_blocks": 300, "pipeline_parallel": 2 if number == 2 else 1},
    )
    check_recorded("routers", f"{router} {number}", _found(run(setup, requests=offered)))
