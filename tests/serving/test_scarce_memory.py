"""Too little memory, small caps, small budgets: every run ends, with clean books, and the same one by one."""

from __future__ import annotations

import numpy as np
import pytest

from gnomon.serving.engine.state import FINISHED, REJECTED
from scarce_kit import scarce
from serving_kit import assert_same, check_invariants, outcome, requests_of, run, scenario


def check_books(seeds: range) -> None:
    for seed in seeds:
        setup, offered = scarce(seed)
        try:
            done = run(setup, requests=offered)
            check_invariants(done)
            if seed % 3 == 0:
                assert_same(outcome(done), outcome(run(setup, requests=offered, keep_members=1_000_000)))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_a_few_hundred_scarce_scenarios_end_with_clean_books() -> None:
    check_books(range(250))
    check_books(range(1944, 1945))  # A long prompt in chunks of one token, overtaken by a short one that decodes.
    check_books(range(3120, 3121))  # Two requests of a pipeline that pushed each other out for ever.


@pytest.mark.slow
def test_two_thousand_scarce_scenarios_end_with_clean_books() -> None:
    check_books(range(250, 2250))


def test_a_request_larger_than_the_kv_cache_is_rejected_and_not_pre_empted_for_ever() -> None:
    """1,000 prompt tokens into 20 blocks of 16, admitted by their first chunk alone."""
    batching = {"options": {"reserve_full_prompt": 0}, "prefix_cache": False, "max_batch_tokens": 64}
    done = run(
        scenario(batching=batching, replica={"num_kv_blocks": 20}),
        requests=requests_of([0.0, 0.0], [1000, 30], [10, 5]),
    )
    check_invariants(done)
    assert done.cluster.requests.status.tolist() == [REJECTED, FINISHED]
    assert done.cluster.replicas[0].num_iterations < 30


def test_two_requests_larger_than_the_kv_cache_do_not_pre_empt_each_other_for_ever() -> None:
    batching = {"options": {"reserve_full_prompt": 0}, "max_batch_tokens": 16}
    replica = {"num_kv_blocks": 10, "pipeline_parallel": 2}
    done = run(scenario(batching=batching, replica=replica), requests=requests_of([0.0, 0.0], [300, 310], [10, 5]))
    check_invariants(done)
    assert np.all(done.cluster.requests.status == REJECTED)


def test_a_reservation_of_less_than_a_block_is_given_back() -> None:
    setup = scenario(batching={"policy": "orca"}, replica={"num_kv_blocks": 4, "max_request_tokens": 12})
    check_invariants(run(setup, requests=requests_of([0.0, 0.0], [5, 6], [3, 4])))


def test_an_impossible_request_blocks_its_data_parallel_rank_no_longer_than_it_takes_to_see_that() -> None:
    """Rank 0 gets a prompt of 3,000 tokens into 60 blocks of 16 and one behind it; rank 1 is busy for long."""
    setup = scenario(
        model="qwen3-30b-a3b",
        engine="none",
        device="h100",
        replica={"data_parallel": 2, "expert_parallel": True, "num_kv_blocks": 60},
        timing={"source": "roofline", "table": None},
    )
    offered = requests_of([0.0, 0.0, 0.01], [3000, 20, 20], [5, 600, 5])
    done = run(setup, requests=offered, forced_replicas=np.array([0, 1, 0]))
    check_invariants(done)
    requests = done.cluster.requests
    assert requests.status.tolist() == [REJECTED, FINISHED, FINISHED]
    assert requests.finished_s[0] == 0.0
    assert requests.finished_s[2] < 0.1 * requests.finished_s[1]
