"""Large fleets and long prompts: what is skipped makes no difference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnomon.core.user_files import plain
from gnomon.serving.engine import cluster as loop
from gnomon.serving.engine import launch
from gnomon.serving.engine.state import NONE
from serving_kit import check_invariants, requests_of, run, scenario


@pytest.mark.parametrize("lengths", ["none", "oracle"])
def test_lookahead_over_many_idle_replicas_chooses_as_over_few(lengths: str) -> None:
    """Idle replicas of a kind are alike to who sees all: of 200, no more are used than of 60, and the same ones."""
    router: dict[str, Any] = {"name": "lookahead", "lengths": lengths, "options": {"omniscient": 1}}
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
    router = {"name": "lookahead", "options": {"omniscient": 1}}
    done = run(scenario(pools=pools, router=router, timing=timing, workload={"rate": 1.0, "num_requests": 20}))
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


def test_the_next_of_many_to_report_is_the_first_of_all() -> None:
    """Batches end and start, replicas begin and cease to report; ends of whole tenths tie often."""
    draw, count = np.random.default_rng(0), 150
    ends, reports = np.full(count, np.inf), np.zeros(count, np.int64)
    books: Any = SimpleNamespace(next_end_s=ends, soonest_s=np.full(5, np.inf))
    now, found = 0.0, 0
    for _ in range(3000):
        one = int(draw.integers(count))
        ends[one] = now + draw.integers(1, 30) / 10 if draw.random() < 0.9 else np.inf
        reports[one] = draw.random() < 0.7
        plain(launch.note_soonest)(books, one)
        until = now + 0.3
        group = plain(loop._next_to_report)(books, SimpleNamespace(reports=reports), until)
        due = np.where(reports != 0, ends, np.inf)
        assert group == (int(due.argmin()) if due.min() < until else NONE)
        if group != NONE:
            now, ends[group], found = max(now, ends[group]), np.inf, found + 1
    assert found > 500
