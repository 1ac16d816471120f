"""Large fleets and long prompts: what is skipped makes no difference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serving_kit import check_invariants, requests_of, run, scenario


@pytest.mark.parametrize("lengths", ["none", "oracle"])
def test_lookahead_over_many_idle_replicas_chooses_as_over_few(lengths: str) -> None:
    """Idle replicas of a kind are alike: of 200, no more are used than of 60, and the same ones."""
    router: dict[str, Any] = {"name": "lookahead", "lengths": lengths}
    workload = {"rate": 20.0, "num_requests": 150}
    few, many = (
        run(scenario(num_replicas=count, router=router, workload=workload)).cluster.requests.replica
        for count in (60, 200)
    )
    assert few.max() < 59
    assert np.array_equal(few, many)


def test_idle_replicas_of_another_kind_are_looked_at() -> None:
    pools = [{"num_replicas": 3, "replica": {"tensor_parallel": 1}}, {"num_replicas": 3, "device": "h100"}]
    timing = {"source": "roofline", "table": None}
    done = run(
        scenario(pools=pools, router={"name": "lookahead"}, timing=timing, workload={"rate": 1.0, "num_requests": 20})
    )
    assert done.cluster.requests.replica.min() == 3, "the faster kind is idle, too"


def test_prompts_of_a_million_tokens() -> None:
    setup = scenario(
        model="llama-3-8b",
        replica={"num_kv_blocks": 150_000, "max_request_tokens": 1_100_000},
        batching={"max_batch_tokens": 8192},
        num_replicas=2,
        router={"name": "lookahead"},
    )
    done = run(setup, requests=requests_of([0.0, 1.0, 2.0], [1_000_000] * 3, [20] * 3))
    check_invariants(done)
    assert done.cluster.tables.shape == (2, 3, 1_000_020 // 16 + 2)


@pytest.mark.parametrize("cached", [False, True])
def test_prompts_of_thousands_of_chunks(cached: bool) -> None:
    """Iterations without a token are no sign of a hang while the prompt goes on."""
    batching = {"max_batch_tokens": 16, "prefix_cache": cached}
    setup = scenario(replica={"num_kv_blocks": 4000, "max_request_tokens": 50_000}, batching=batching)
    done = run(setup, requests=requests_of([0.0], [40_000], [20]))
    check_invariants(done)
    assert done.cluster.replicas.num_iterations[0] == 40_000 // 16 + 19
