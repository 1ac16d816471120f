"""TensorRT-LLM's schedulers, decision by decision, worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gnomon.core.errors import UnknownNameError
from gnomon.serving.engine.state import FINISHED
from serving_kit import check_invariants, requests_of, run, scenario


def batches(arrival_s: Any, prompt: Any, output: Any, **batching: Any) -> list[tuple[int, int]]:
    """(prompt tokens, generations) of every iteration; each takes ten milliseconds and a bit."""
    given = {"policy": "trtllm", "block_size": 10, "prefix_cache": False, **batching}
    changes = {"batching": given, "replica": {"num_kv_blocks": batching.pop("num_kv_blocks", 1000)}}
    given.pop("num_kv_blocks", None)
    done = run(scenario(**changes), requests=requests_of(arrival_s, prompt, output))
    check_invariants(done)
    rows = done.log.iterations[: done.log.used[0]]
    return list(zip(rows.prefill_tokens.tolist(), rows.decodes.tolist(), strict=True))


def test_whole_prompts_within_the_token_budget():
    """100 tokens: 60 + 40 fit, the third prompt would exceed them; then a generation takes one each."""
    assert batches([0, 0, 0], [60, 40, 90], [3, 3, 2], max_batch_tokens=100) == [
        (100, 0),  # the first two prompts
        (90, 2),  # 2 generations leave room for 90 of 98
        (0, 3),  # the last of the first two, and the third's second token
    ]


def test_a_prompt_that_does_not_fit_holds_up_those_behind_it():
    """No chunks: 99 of 100 tokens are not free while something is generated, and first come is first served."""
    assert batches([0, 0, 0], [60, 100, 10], [3, 1, 1], max_batch_tokens=100) == [
        (60, 0),
        (0, 1),
        (0, 1),
        (100, 0),
        (10, 0),
    ]


def test_chunks_are_whole_blocks():
    """Chunked: 40 tokens are left beside the first prompt, 39 beside its generation: 30 of them in whole blocks."""
    chunked = {"max_batch_tokens": 100, "options": {"chunked_prefill": 1}}
    assert batches([0, 0], [60, 70], [4, 1], **chunked) == [(100, 0), (30, 1), (0, 1), (0, 1)]
    assert batches([0, 0.005], [60, 120], [2, 1], **chunked) == [(60, 0), (90, 1), (30, 0)]


def test_guaranteed_no_evict_reserves_to_the_last_token():
    """10 blocks of 10: 20 + 40 tokens take 6, so that a second such request waits until the first is done."""
    tight = {"num_kv_blocks": 10, "max_batch_tokens": 100}
    assert batches([0, 0], [20, 20], [40, 40], **tight) == [(20, 0), *[(0, 1)] * 39, (20, 0), *[(0, 1)] * 39]


def test_max_utilization_takes_what_fits_now_and_pauses_the_last():
    """Both prompts fit at first; when the blocks are used up, the second is paused and starts again at the end."""
    tight = {"num_kv_blocks": 10, "max_batch_tokens": 100, "options": {"max_utilization": 1}}
    found = batches([0, 0], [20, 20], [40, 40], **tight)
    # Five blocks each hold 50 tokens: 20 of the prompt and 30 generated. The next token needs an eleventh block.
    assert found[:32] == [(40, 0), *[(0, 2)] * 30, (0, 1)]
    assert sum(prompt for prompt, _ in found) == 40 + 51, "20 of the prompt and 31 so far are computed again"


def test_prompts_wait_until_a_batch_is_full_enough():
    """One generates; prompts of 20 arrive. 0.5 x 100 tokens are reached with the third (1 + 60)."""
    arrival = [0.0, 0.03, 0.06, 0.09]
    waiting = {"max_batch_tokens": 100, "options": {"wait_iterations": 20, "wait_tokens_ratio": 0.5}}
    load = (arrival, [10, 20, 20, 20], [30, 2, 2, 2])
    assert [prompt for prompt, _ in batches(*load, **waiting) if prompt] == [10, 60]
    assert [prompt for prompt, _ in batches(*load, max_batch_tokens=100) if prompt] == [10, 20, 20, 20]


def test_waiting_ends_after_so_many_iterations_and_never_idles():
    waiting = {"max_batch_tokens": 100, "options": {"wait_iterations": 5, "wait_tokens_ratio": 0.9}}
    found = batches([0.0, 0.001], [10, 20], [12, 1], **waiting)
    assert found == [(10, 0), *[(0, 1)] * 5, (20, 1), *[(0, 1)] * 5]
    assert batches([0.0, 0.0], [10, 20], [1, 1], **waiting) == [(30, 0)], "nothing is generated: no waiting"


def ranks(options: dict[str, float], arrival_s: Any, prompt: Any, output: Any, replica: Any) -> Any:
    """Two attention ranks of an expert-parallel replica; request i is sent to rank `replica[i]`."""
    return run(
        scenario(
            model="deepseek-v3",
            device="h200",
            batching={"policy": "trtllm", "block_size": 10, "prefix_cache": False, "options": options},
            replica={"data_parallel": 2, "expert_parallel": True, "num_kv_blocks": 1000},
        ),
        requests=requests_of(arrival_s, prompt, output),
        forced_replicas=np.array(replica),
    )


def when_prefilled(done: Any) -> list[int]:
    """The iteration (from 1) in which each request's prompt was computed."""
    rows = done.log.iterations[: done.log.used[0]]
    starts = np.unique(rows.start_s)
    return [int(np.searchsorted(starts, one, side="right")) for one in done.cluster.requests.scheduled_s]


@pytest.mark.parametrize(
    ("options", "third_starts"),
    [
        ({}, 2),  # no balancing: at once
        ({"balance": 1, "balance_timeout_iterations": 8}, 9),  # rank 1 has no prompt: after eight iterations
        ({"balance": 1, "balance_timeout_iterations": 3}, 4),
    ],
)
def test_attention_ranks_prefill_together(options, third_starts):
    """Both ranks generate when a third request reaches rank 0 alone."""
    done = ranks(options, [0, 0, 0.001], [20, 20, 20], [30, 30, 2], [0, 1, 0])
    check_invariants(done)
    assert when_prefilled(done) == [1, 1, third_starts]


def test_ranks_that_all_have_prompts_prefill_at_once_or_after_the_batching_wait():
    both = ([0, 0, 0.001, 0.001], [20] * 4, [30, 30, 2, 2], [0, 1, 0, 1])
    assert when_prefilled(ranks({"balance": 1, "balance_wait_iterations": 0}, *both)) == [1, 1, 2, 2]
    assert when_prefilled(ranks({"balance": 1}, *both)) == [1, 1, 12, 12], "ten, as TensorRT-LLM's own default"
    assert when_prefilled(ranks({"balance": 1, "balance_wait_iterations": 4}, *both)) == [1, 1, 6, 6]


def test_ranks_do_not_wait_for_each_other_while_one_has_nothing_to_generate():
    done = ranks({"balance": 1, "balance_timeout_iterations": 50}, [0, 0.03], [20, 20], [8, 2], [0, 0])
    check_invariants(done)
    assert when_prefilled(done) == [1, 4], "rank 1 is idle all the time"
    assert (done.cluster.requests.status == FINISHED).all()


def test_unknown_options_are_refused():
    with pytest.raises(UnknownNameError, match="wait_iterations"):
        batches([0], [10], [1], options={"wait_iteration": 3})
    with pytest.raises(UnknownNameError):
        run(scenario(batching={"policy": "vllm_v1", "options": {"balance": 1}}))
