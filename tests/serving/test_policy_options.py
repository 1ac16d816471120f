"""Options of vLLM's and SGLang's policies, and SGLang's memory for outputs to come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serving_kit import check_invariants, requests_of, run, scenario


def started(policy: str, options: dict[str, float], arrival_s: Any, output: Any) -> list[int]:
    """The iteration (from 1) in which each request was scheduled; prompts have 20 tokens."""
    setup = scenario(batching={"policy": policy, "prefix_cache": False, "options": options})
    done = run(setup, requests=requests_of(arrival_s, [20] * len(arrival_s), output))
    check_invariants(done)
    starts = np.unique(done.log.iterations[: done.log.used[0]].start_s)
    return [int(np.searchsorted(starts, one, side="right")) for one in done.cluster.requests.scheduled_s]


@pytest.mark.parametrize(("interval", "second"), [(1, 3), (4, 6), (10, 12)])
def test_sglang_looks_for_new_requests_after_so_many_decodes(interval, second):
    """The second request comes during the first decode (iteration 2): the look after the prefill was too early."""
    assert started("sglang", {"receive_interval": interval}, [0.0, 0.014], [40, 2]) == [1, second]


def test_sglang_looks_at_once_after_a_prefill_and_when_idle():
    during_prefill = started("sglang", {"receive_interval": 30}, [0.0, 0.005], [40, 2])
    assert during_prefill == [1, 2]
    assert started("sglang", {"receive_interval": 30}, [0.0, 5.0], [3, 2]) == [1, 4]


@pytest.mark.parametrize(("interval", "second"), [(1, 2), (4, 5)])
def test_vllm_admits_in_every_nth_iteration(interval, second):
    assert started("vllm_v1", {"prefill_interval": interval}, [0.0, 0.005], [40, 2]) == [1, second]


def test_vllm_admits_at_once_while_nothing_runs():
    assert started("vllm_v1", {"prefill_interval": 100}, [0.0, 5.0], [3, 2]) == [1, 4]


@pytest.mark.parametrize(("blocks", "is_taken"), [(5005, True), (5004, False)])
def test_sglang_counts_at_most_4096_tokens_of_an_output(blocks, is_taken):
    """Beside 900 + 1 tokens and an output of 2, all but 903 of the blocks are left: 4,102 of 5,005. The second request
    asks for 4 + 4,096 + 1 of its 5,004, and there must be more than that."""
    setup = scenario(
        batching={"policy": "sglang", "prefix_cache": False, "block_size": 1, "max_batch_tokens": 1000},
        replica={"num_kv_blocks": blocks, "max_request_tokens": 6000},
        time_limit_s=0.1,
    )
    done = run(setup, requests=requests_of([0.0, 0.0], [900, 4], [2, 5000]))
    first, second = done.cluster.requests.scheduled_s
    assert bool(second == first) is is_taken
