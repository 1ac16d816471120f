"""Small scenarios and checks that the serving tests share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnomon import jit
from gnomon.core.config import build
from gnomon.serving.engine.state import FINISHED, REJECTED, Cluster
from gnomon.serving.run.simulate import Run, run
from gnomon.serving.scenario import Scenario
from gnomon.workload import Requests

POLICIES = (
    "vllm_v1", "sglang", "trtllm", "vllm", "sarathi", "orca", "faster_transformer", "lightllm", "priority", "vtc",
    "drr", "dlpm",
)  # fmt: skip
ROUTERS = (
    "random", "round_robin", "front_ends", "least_outstanding", "vidur_lor", "power_of_two", "least_kv",
    "least_prefill_tokens", "lmetric", "sticky_session", "sticky_until_full", "prefix_aware", "predicted_latency",
    "lookahead", "vllm_dp", "llmd", "llmd_estimated", "learned", "dynamo_kv", "cache_aware", "hash_spill", "gateway",
)  # fmt: skip

plain = pytest.mark.skipif(jit.ENABLED, reason="helpers of compiled code cannot be called from Python")

# Times that make sums of iterations tell one batch from another: each token, sequence and KV token costs something.
TABLE = {
    "source": "table",
    "table": {
        "per_iteration": 0.01,
        "per_token": 1e-4,
        "per_sequence": 3e-4,
        "per_prefill_token": 1e-5,
        "per_decode_kv_token": 1e-7,
    },
}


def scenario(**changes: Any) -> Scenario:
    """A small scenario with explicit times; `changes` are merged one level deep."""
    base: dict[str, Any] = {
        "model": "llama-2-7b",
        "device": "a100",
        "timing": TABLE,
        "workload": {
            "rate": 20.0,
            "num_requests": 80,
            "lengths": {"distribution": "uniform", "prompt": [10, 200], "output": [1, 150]},
        },
    }
    for key, value in changes.items():
        base[key] = {**base[key], **value} if isinstance(value, dict) and key in base else value
    return build(Scenario, base)


def requests_of(arrival_s: Any, prompt: Any, output: Any) -> Requests:
    """Requests from three lists."""
    count = len(arrival_s)
    return Requests(
        arrival_s=np.asarray(arrival_s, np.float64),
        prompt_tokens=np.asarray(prompt, np.int32),
        output_tokens=np.asarray(output, np.int32),
        session=np.full(count, -1, np.int32),
        priority=np.zeros(count, np.int8),
        prefix_offsets=np.zeros(count + 1, np.int64),
        prefix_hashes=np.zeros(0, np.int64),
    )


class Bag(SimpleNamespace):
    """Stands for a tuple with names of which few are looked at."""

    def _replace(self, **changes: Any) -> Bag:
        return Bag(**{**vars(self), **changes})


def arrays(count: int, replicas: int = 3, **changes: Any) -> Cluster:
    """The arrays of a run that was over before it began."""
    made = requests_of([1e6] * count, [20] * count, [10] * count)
    return run(scenario(num_replicas=replicas, time_limit_s=1e-9, **changes), requests=made).cluster


BOOKS = (
    "num_outstanding", "num_coming", "num_taken", "num_held", "num_moving", "num_holding", "num_landing", "num_ready",
    "num_produced", "prefill_left", "decode_left", "stalled",
)  # fmt: skip


def books(cluster: Cluster, r: int = 0) -> dict[str, int]:
    """Those that are not 10."""
    return {name: int(cluster.replicas[name][r]) for name in BOOKS if cluster.replicas[name][r] != 10}


def with_books(count: int, replicas: int = 1) -> Cluster:
    """10 in every book; prompts of 20 tokens, answers of 10, 30 blocks of 16 tokens."""
    batching = {"policy": "vllm_v1", "block_size": 16, "prefix_cache": True}
    cluster = arrays(count, replicas=replicas, batching=batching, replica={"num_kv_blocks": 30})
    for name in BOOKS:
        cluster.replicas[name] = 10
    cluster.replicas.prefix_cache = cluster.replicas.tracks_blocks = cluster.replicas.overlaps = 0
    return cluster


def check_invariants(done: Run) -> None:
    """What must hold after any run that was not cut short: nothing lost, nothing leaked, time goes forward."""
    requests, replicas = done.cluster.requests, done.cluster.replicas
    finished, rejected = requests.status == FINISHED, requests.status == REJECTED
    assert np.all(finished | rejected), "every request ends once"
    assert replicas.num_finished.sum() == finished.sum()
    assert replicas.num_rejected.sum() == rejected.sum()
    assert np.array_equal(replicas.free_blocks, replicas.num_blocks), "all blocks are free again"
    for book in ("num_waiting", "num_running", "num_grouped", "num_in_flight", "num_holding", "num_outstanding"):
        assert not replicas[book].any(), book
    for book in ("waiting_tokens", "prefill_left", "decode_left", "num_loose", "step_kv"):
        assert not replicas[book].any(), book
    assert not done.cluster.growth.any()
    assert np.all(replicas.peak_blocks <= replicas.num_blocks)
    ok = requests[finished]
    assert np.all(ok.processed == ok.prompt_tokens + ok.output_tokens), "every token was produced"
    assert np.all(ok.arrival_s <= ok.scheduled_s + 1e-12)
    assert np.all(ok.scheduled_s < ok.first_token_s)
    assert np.all(ok.first_token_s <= ok.finished_s)
    assert np.all(ok.finished_s == ok.last_token_s)
    gaps = done.log.gap_s[: done.log.used[2]]
    counts = done.log.gap_count[: done.log.used[2]]
    assert np.all(gaps >= 0)
    # Every produced token but each request's first is one gap; rejected ones may have produced some before.
    produced = int((ok.output_tokens - 1).sum())
    assert counts.sum() == produced if not rejected.any() else counts.sum() >= produced
    # The gaps of a request add up to the time from its first to its last token.
    if not rejected.any():
        assert np.isclose((gaps * counts).sum(), (ok.last_token_s - ok.first_token_s).sum())
    rows = done.log.iterations[: done.log.used[0]]
    assert np.all(rows.end_s >= rows.start_s)
    for r in range(replicas.size):
        for stage in range(replicas.num_stages[r]):
            mine = rows[(rows.replica == r) & (rows.stage == stage)]
            assert np.all(np.diff(mine.end_s) >= 0), "clocks are monotone"
            assert np.all(mine.start_s[1:] >= mine.end_s[:-1] - 1e-12), "a stage does one batch at a time"


def outcome(done: Run) -> dict[str, Any]:
    """What two runs must share to count as the same."""
    requests = done.cluster.requests
    names = ("replica", "scheduled_s", "first_token_s", "finished_s", "num_restarts", "cached_tokens", "status")
    gaps = done.log.gap_s[: done.log.used[2]]
    counts = done.log.gap_count[: done.log.used[2]]
    order = np.argsort(gaps, kind="stable")
    rows = done.log.iterations[: done.log.used[0]]
    rows = rows[np.lexsort((rows.stage, rows.number, rows.replica))]
    return {
        **{name: requests[name].copy() for name in names},
        "gap_total": float((gaps * counts).sum()),
        "gap_largest": float(gaps[order[-1]]) if gaps.size else 0.0,
        "iterations": done.cluster.replicas.num_iterations.copy(),
        "rows": rows[
            ["replica", "start_s", "end_s", "size", "tokens", "prefill_tokens", "decodes", "used_blocks"]
        ].copy(),
        "kv_block_s": done.cluster.replicas.kv_block_s.copy(),
    }


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Two outcomes are equal to the last bit (sums of gaps to rounding, because their order may differ)."""
    for key, value in a.items():
        if key.startswith("gap"):
            assert np.isclose(value, b[key], rtol=1e-12), key
        else:
            assert np.array_equal(value, b[key]), key


__all__ = [
    "POLICIES",
    "ROUTERS",
    "TABLE",
    "Bag",
    "arrays",
    "assert_same",
    "check_invariants",
    "outcome",
    "plain",
    "requests_of",
    "run",
    "scenario",
]
