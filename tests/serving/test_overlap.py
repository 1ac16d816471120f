"""Overlapped scheduling: every batch is formed while the one before it runs. Tables worked out by hand, as in
`test_policy_decisions`: every iteration takes one second, and batch n runs from second n to n + 1 where nothing waits.
"""

from __future__ import annotations

from typing import Any

import pytest

from serving_kit import requests_of, run, scenario
from test_policy_decisions import batches

CROWD = {"A": (0.0, 4, 2), "C": (0.0, 4, 6), "B": (0.0, 4, 1)}


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        (False, ["A4", "A1", "A1 B3", "A1 B1", "A1", "A1"]),
        (True, ["A4", "A1", "A1", "A1 B3", "A1 B1", "A1"]),  # the third was formed at second 1, when B was not there
    ],
)
def test_who_comes_during_a_batch_is_first_computed_in_the_second_after_it(overlap: bool, expected: list[str]) -> None:
    offered = {"A": (0.0, 4, 6), "B": (1.5, 3, 2)}
    assert batches("vllm_v1", offered, overlap=overlap) == expected


def test_who_comes_when_a_batch_starts_is_known_when_the_next_one_is_formed() -> None:
    offered = {"A": (0.0, 4, 6), "B": (1.0, 3, 2)}
    assert batches("vllm_v1", offered, overlap=True) == ["A4", "A1", "A1 B3", "A1 B1", "A1", "A1"]


def test_an_idle_server_forms_a_batch_at_once_and_answers_at_its_end() -> None:
    done = run(_setup(overlap=True), requests=requests_of((0.0, 10.25), (4, 3), (1, 2)))
    assert done.cluster.requests.first_token_s.tolist() == [1.0, 11.25]
    assert done.cluster.requests.finished_s.tolist() == [1.0, 12.25]


def test_a_batch_that_has_nobody_is_formed_again_once_results_are_in() -> None:
    """One place: at second 1 nobody but A could be taken, who ends at 2. B need not wait for a batch of nobody."""
    assert batches("vllm_v1", {"A": (0.0, 4, 2), "B": (0.5, 4, 1)}, max_sequences=1, overlap=True) == ["A4", "A1", "B4"]
    done = run(_setup(overlap=True, max_sequences=1), requests=requests_of((0.0, 0.5), (4, 4), (2, 1)))
    assert done.cluster.requests.finished_s.tolist() == [2.0, 3.0]


@pytest.mark.parametrize(("limit", "first", "last"), [({"max_sequences": 2}, 4, 4), ({"blocks": 6}, 8, 16)])
def test_places_and_blocks_of_those_that_end_are_free_one_batch_later(
    limit: dict[str, int], first: int, last: int
) -> None:
    """A ends with the second batch; the third was formed before. Of six blocks A has two, then three, and C one, then
    two: the four that B needs are there when A has gone."""
    offered = {"A": (0.0, first, 2), "C": (0.0, 4, 6), "B": (0.0, last, 1)}
    begin, end = [f"A{first} C4", "A1 C1"], ["C1", "C1"]
    assert batches("vllm_v1", offered, **limit) == [*begin, f"C1 B{last}", "C1", *end]
    assert batches("vllm_v1", offered, overlap=True, **limit) == [*begin, "C1", f"C1 B{last}", *end]


def test_those_that_end_are_in_one_batch_more_where_nobody_looks_ahead() -> None:
    settings: dict[str, Any] = {"max_sequences": 2, "overlap": True, "surplus_token": True}
    assert batches("vllm_v1", CROWD, **settings) == ["A4 C4", "A1 C1", "C1 A1", "C1 B4", "C1 B1", "C1", "C1"]


def test_sglang_has_the_surplus_token_in_the_next_decodes_only() -> None:
    """A ends with the second batch, and the third decodes nobody. B ends with the fifth, C with the sixth."""
    offered = {"A": (0.0, 4, 2), "C": (0.0, 4, 5), "B": (0.5, 4, 3)}
    settings: dict[str, Any] = {"max_sequences": 3, "overlap": True, "surplus_token": True}
    assert batches("sglang", offered, **settings) == ["A4 C4", "A1 C1", "B4", "C1 B1", "C1 B1", "C1 B1", "C1"]


def test_trtllm_admits_one_batch_later() -> None:
    offered = {"A": (0.0, 4, 5), "B": (0.5, 4, 1)}
    assert batches("trtllm", offered) == ["A4", "A1 B4", "A1", "A1", "A1"]
    assert batches("trtllm", offered, overlap=True) == ["A4", "A1", "A1 B4", "A1", "A1"]


def test_pipeline_stages_have_batches_of_their_own_in_flight() -> None:
    offered = {"A": (0.0, 4, 3), "B": (0.5, 4, 3)}
    assert batches("vllm_v1", offered, stages=2, overlap=True) == batches("vllm_v1", offered, stages=2)


@pytest.mark.parametrize(
    ("host", "overlap", "expected"),
    [
        ({"launch_s": 0.75}, True, [1.0, 4.0]),  # less than what the GPU takes
        ({"launch_s": 1.5}, True, [1.5, 6.0]),  # the host's launches follow each other: there is nothing to hide behind
        ({"decode": {"launch_s": 1.5}}, False, [1.0, 5.5]),
        # Batch 1 is launched from 0 to 1.5, and ends at 2; batch 2 from 1.5 to 3, which is its end; batch 3 till 4.5.
        ({"decode": {"launch_s": 1.5}}, True, [1.0, 4.5]),
    ],
)
def test_launching_hides_behind_the_batch_before(host: Any, overlap: bool, expected: list[float]) -> None:
    """The GPU takes one second for each of four batches."""
    requests = run(_setup(host=host, overlap=overlap), requests=requests_of((0.0,), (4,), (4,))).cluster.requests
    assert [requests.first_token_s[0], requests.finished_s[0]] == expected


def test_who_comes_while_a_batch_is_launched_is_known_to_the_next() -> None:
    """Batch 0 is launched until 1.5 and ends then; batch 1 is formed no earlier."""
    host = {"launch_s": 1.5}
    requests = run(_setup(host=host, overlap=True), requests=requests_of((0.0, 1.25), (4, 4), (4, 1))).cluster.requests
    assert requests.first_token_s.tolist() == [1.5, 3.0]


@pytest.mark.parametrize(
    ("policy", "expected"), [("sglang", [3.0, 3.0]), ("trtllm", [3.0, 3.0]), ("vllm_v1", [1.5, 3.0])]
)
def test_one_thread_launches_the_next_batch_before_it_takes_in_results(policy: str, expected: list[float]) -> None:
    """Two prompts, one after the other, launched for 1.5 seconds each: the first token of the first one goes out when
    the second is launched. vLLM's workers send what they have themselves. Nothing is launched for long behind the
    second."""
    host = {"launch_s": 1.5, "decode": {"launch_s": 0.0}}
    setup = _setup(host=host, overlap=True, policy=policy, max_batch_tokens=5)
    requests = run(setup, requests=requests_of((0.0, 0.0), (4, 4), (3, 3))).cluster.requests
    assert requests.first_token_s.tolist() == expected


def test_what_is_prefilled_is_handed_over_when_the_next_batch_is_launched() -> None:
    """As above, with prefill and decode apart: the first prompt's KV is ready at 3 seconds, too."""
    host = {"launch_s": 1.5, "decode": {"launch_s": 0.0}}
    setup = _setup(
        host=host, overlap=True, policy="sglang", max_batch_tokens=4,
        pools=[{"role": "prefill", "num_replicas": 1}, {"role": "decode", "num_replicas": 1}],
    )  # fmt: skip
    requests = run(setup, requests=requests_of((0.0, 0.0), (4, 4), (3, 3))).cluster.requests
    assert requests.prefilled_s.tolist() == [3.0, 3.0]


def _setup(host: Any = None, pools: Any = (), **batching: Any) -> Any:
    return scenario(
        pools=pools,
        timing={"source": "table", "table": {"per_iteration": 1.0}, "host": host},
        replica={"num_kv_blocks": 1000, "max_request_tokens": 64},
        batching={"policy": "vllm_v1", "block_size": 4, "prefix_cache": False, "max_sequences": 10, **batching},
    )
