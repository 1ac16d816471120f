"""What every batching policy puts into each iteration, worked out by hand.

Every iteration takes one second. A request is a letter with (arrival, prompt tokens, output tokens); `A8 B1` is an
iteration that computes eight tokens of A and one of B. An iteration that completes a prompt also gives its first output
token, so a request of n output tokens decodes n - 1 times. KV blocks hold four tokens where nothing else is said.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import test_classes
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.policies import POLICIES
from serving_kit import requests_of, run, scenario

Offered = dict[str, tuple[float, int, int]]


def batches(
    policy: str, offered: Offered, blocks: int = 1000, longest: int = 64, stages: int = 1, **settings: Any
) -> list[str]:
    """The iterations of one replica (of its first pipeline stage), in order. They end at the same times where decodes
    are not handled one by one."""
    batching: dict[str, Any] = {"policy": policy, "block_size": 4, "watermark": 0.0, "max_sequences": 10, **settings}
    if POLICIES[policy].has_prefix_cache:
        batching.setdefault("prefix_cache", False)
    setup = scenario(
        timing={"source": "table", "table": {"per_iteration": 1.0}},
        replica={"num_kv_blocks": blocks, "max_request_tokens": longest, "pipeline_parallel": stages},
        batching=batching,
    )
    requests = requests_of(*zip(*offered.values(), strict=True))
    done, together = (run(setup, requests=requests, keep_members=count) for count in (10_000, 0))
    assert done.cluster.requests.finished_s.tolist() == together.cluster.requests.finished_s.tolist()
    assert (done.cluster.requests.status == FINISHED).all()
    names, log = list(offered), done.log
    rows = log.iterations[: log.used[0]]
    rows = rows[rows.stage == 0]
    assert np.allclose(rows.end_s - rows.start_s, 1.0)
    members = [log.members[row.first_member : row.first_member + row["size"]] for row in rows]
    return [" ".join(f"{names[r]}{tokens}" for r, tokens in batch) for batch in members]


# vLLM v1: one budget, running requests first, in order of admission; prompts in chunks.


def test_vllm_v1_shares_one_budget_running_requests_first() -> None:
    offered = {"A": (0, 6, 3), "B": (0, 8, 2), "C": (0, 3, 2), "D": (0, 2, 2)}
    assert batches("vllm_v1", offered, max_batch_tokens=10, max_sequences=3) == [
        "A6 B4",  # the budget cuts B
        "A1 B4 C3",  # five tokens are left for C; D would be the fourth request
        "A1 B1 C1",  # all three end
        "D2",
        "D1",
    ]


def test_vllm_v1_preempts_the_request_admitted_last() -> None:
    """Four blocks. A (2 blocks) needs a third for its second token: B gives both of its own up, and starts again with
    the token that it has. While A holds three, B's eight tokens (2 blocks) do not fit."""
    offered = {"A": (0, 8, 6), "B": (0, 7, 3)}
    assert batches("vllm_v1", offered, blocks=4, max_batch_tokens=20) == ["A8 B7", *["A1"] * 5, "B8", "B1"]


def test_vllm_v1_caps_the_chunk_of_one_prompt() -> None:
    offered = {"A": (0, 7, 1), "B": (0, 2, 1)}
    assert batches("vllm_v1", offered, max_batch_tokens=10, max_chunk_tokens=3) == ["A3 B2", "A3", "A1"]


@pytest.mark.parametrize(("whole", "expected"), [(True, ["A6", "A1", "B8"]), (False, ["A6 B4", "A1", "B8"])])
def test_vllm_v1_admits_where_the_whole_prompt_fits(whole: bool, expected: list[str]) -> None:
    """Three blocks, two of them A's. B's first chunk would fit, its prompt would not: admitted all the same, it has to
    make room for its own second chunk."""
    offered = {"A": (0, 6, 2), "B": (0, 8, 1)}
    assert (
        batches("vllm_v1", offered, blocks=3, max_batch_tokens=10, options={"reserve_full_prompt": float(whole)})
        == expected
    )


def test_vllm_v1_leaves_the_watermark_free() -> None:
    """A quarter of eight blocks stays free, so that six can be given: A takes four, B would need three."""
    offered = {"A": (0, 16, 1), "B": (0, 12, 1)}
    assert batches("vllm_v1", offered, blocks=8, max_batch_tokens=100, watermark=0.25) == ["A16", "B12"]
    assert batches("vllm_v1", offered, blocks=8, max_batch_tokens=100, watermark=0.1) == ["A16 B12"]


# What all have in common: caps on requests and tokens, and the share of blocks that stays free.


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        *((policy, ["A4 B4", "A1 B1", "A1 C4", "C1"]) for policy in ("vllm_v1", "trtllm", "sarathi", "orca")),
        *((policy, ["A4 B4", "A1 B1", "C4", "A1 C1"]) for policy in ("sglang", "vllm")),
        *((policy, ["A4 B4", "A1 B1", "A1", "C4", "C1"]) for policy in ("faster_transformer", "lightllm")),
    ],
)
def test_no_more_than_max_sequences_run_at_once(policy: str, expected: list[str]) -> None:
    """C waits until B has its two tokens; then it joins A's decode, goes before it, or waits for A's end."""
    offered = {"A": (0, 4, 3), "B": (0, 4, 2), "C": (0, 4, 2)}
    sizes = {"block_size": 1, "options": {"max_waiting_iterations": 100}} if policy == "lightllm" else {}
    assert batches(policy, offered, longest=16, max_sequences=2, **sizes) == expected


@pytest.mark.parametrize(
    ("policy", "cap", "expected"),
    [  # The cap holds for all stages together, ...
        ("vllm_v1", 4, ["A4 B4 C4 D4", "A1 B1 C1 D1", "A1 E4", "E1"]),
        ("sglang", 4, ["A4 B4 C4 D4", "A1 B1 C1 D1", "E4", "A1", "E1"]),
        # ... is shared out to them, ...
        ("sarathi", 4, ["A4 B4", "C4 D4", "A1 B1", "C1 D1", "A1 E4", "E1"]),
        ("vllm", 4, ["A4 B4", "C4 D4", "A1 B1", "C1 D1", "E4", "A1", "E1"]),
        # ... or holds for each of their batches.
        ("orca", 2, ["A4 B4", "C4 D4", "A1 B1", "C1 D1", "A1 E4", "E1"]),
        ("faster_transformer", 2, ["A4 B4", "C4 D4", "A1 B1", "C1 D1", "A1", "E4", "E1"]),
    ],
)
def test_batches_of_two_pipeline_stages(policy: str, cap: int, expected: list[str]) -> None:
    offered = {"A": (0, 4, 3), **dict.fromkeys("BCDE", (0, 4, 2))}
    assert batches(policy, offered, longest=16, stages=2, max_sequences=cap) == expected


@pytest.mark.parametrize("policy", ["vllm_v1", "trtllm", "sarathi", "vllm"])
def test_the_watermark_stays_free(policy: str) -> None:
    """A quarter of eight blocks: A takes four and B the two that are left beyond it; C waits for their end."""
    offered = {"A": (0, 15, 1), "B": (0, 7, 1), "C": (0, 3, 1)}
    assert batches(policy, offered, blocks=8, max_batch_tokens=100, watermark=0.25) == ["A15 B7", "C3"]
    assert batches(policy, offered, blocks=8, max_batch_tokens=100) == ["A15 B7 C3"]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("vllm_v1", ["A4 B6", "C3"]),
        ("trtllm", ["A4 B6", "C3"]),
        ("sarathi", ["A4 B6", "C3"]),
        ("sglang", ["A4 B6", "C3"]),
        ("lightllm", ["A4 B6", "C3"]),
        ("vllm", ["A4", "B6", "C3"]),  # two of six are twelve
        ("orca", ["A4 B6 C3"]),  # no budget
        ("faster_transformer", ["A4 B6 C3"]),
    ],
)
def test_a_budget_that_is_just_used_up(policy: str, expected: list[str]) -> None:
    offered = {"A": (0, 4, 1), "B": (0, 6, 1), "C": (0, 3, 1)}
    budget = {} if policy in ("orca", "faster_transformer") else {"max_batch_tokens": 10}
    size = {"block_size": 1} if policy == "lightllm" else {}
    assert batches(policy, offered, **budget, **size) == expected


@pytest.mark.parametrize(
    ("policy", "blocks"),
    [("vllm_v1", [1, 2, 3, 3, 3, 3, 4, 4]), ("sglang", [1, 2, 3, 3, 3, 3, 4, 4]), ("trtllm", [4] * 8)],
)
def test_drafted_tokens_are_computed_and_have_blocks(policy: str, blocks: list[int]) -> None:
    """4 + 9 tokens, three drafted each time. None is taken: nine iterations of four tokens; after the first there are 5
    tokens, and with the drafted ones 8, then 9, ..., but never more than the 13 that there will be. All are taken:
    four more a time. TensorRT-LLM has blocks for all 13 from the start."""
    for acceptance, iterations in ((0.0, 9), (1.0, 3)):
        setup = scenario(
            timing={"source": "table", "table": {"per_iteration": 1.0}},
            replica={"num_kv_blocks": 10, "speculative": {"num_tokens": 3, "acceptance": acceptance}},
            batching={"policy": policy, "block_size": 4, "prefix_cache": False},
        )
        done = run(setup, requests=requests_of([0.0], [4], [9]))
        rows = done.log.iterations[: done.log.used[0]]
        assert rows.tokens.tolist() == [4] * iterations
        if not acceptance:
            assert rows.used_blocks.tolist() == [*blocks, 0]


# SGLang: prompts before decodes, never in one batch.


@pytest.mark.parametrize(("output", "expected"), [(3, "A4 B4"), (4, "A4")])
def test_sglang_counts_what_it_has_admitted_in_the_same_pass(output: int, expected: str) -> None:
    """Six blocks of four. A takes its block, one more and its output of 4: 24 - 8 - 4 = 12 tokens are left. B asks
    for 4 + 3 + 4, which is less, or for 4 + 4 + 4, which is not."""
    offered = {"A": (0, 4, 4), "B": (0, 4, output)}
    assert batches("sglang", offered, blocks=6, max_batch_tokens=100)[0] == expected


@pytest.mark.parametrize(("first_tried", "is_taken"), [(0.5, False), (10.5, True)])
def test_sglang_keeps_a_thousandth_less_for_outputs_with_every_step(first_tried: float, is_taken: bool) -> None:
    """721 blocks of one token, A of 20 + 1000. B asks for 1 + 1 + 1. After its prefill, 701 - 0.7 x 999 = 1.7
    tokens are left, and B, which did not fit, is not tried until A leaves. After ten steps of a thousandth less each,
    691 - 0.69 x 989 = 8.6 are left."""
    setup = scenario(
        timing={"source": "table", "table": {"per_iteration": 1.0}},
        replica={"num_kv_blocks": 721, "max_request_tokens": 2000},
        batching={"policy": "sglang", "prefix_cache": False, "block_size": 1},
        time_limit_s=14.5,
    )
    done = run(setup, requests=requests_of([0.0, first_tried], [20, 1], [1000, 1]))
    assert (done.cluster.requests.status[1] == FINISHED) == is_taken


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (28, ["A8", "A4", *["A1"] * 9, "B2", "B1", "B1"]),
        (29, ["A8", "A4 B2", "A1 B1", "A1 B1", *["A1"] * 7]),
    ],
)
def test_sglang_keeps_memory_for_the_whole_output_of_a_prompt_that_it_completes(
    blocks: int, expected: list[str]
) -> None:
    """Blocks of one token. Beside A's last chunk, all but its 12 tokens and its output of 10 are left: 6 or 7. B asks
    for 2 + 3 + 1, and there must be more than that; what did not fit is not tried until A leaves."""
    offered = {"A": (0, 12, 10), "B": (0, 2, 3)}
    settings = {"block_size": 1, "max_batch_tokens": 8, "options": {"max_prefill_tokens": 100}}
    assert batches("sglang", offered, blocks=blocks, **settings) == expected


def test_sglang_retracts_only_where_blocks_are_missing() -> None:
    """Four blocks. A (8 + 8) takes the last one for its 13th token: that is not too few, and the share that is kept for
    outputs falls by seven steps only, to 0.693. When A has left, C (4 + 8) takes one block; of the three that are left,
    12 - 0.693 x 7 = 7.1 tokens are free for D, which asks for 1 + 1 + 4. Were the share set anew, as when requests are
    retracted, it would be 1, and 12 - 7 tokens too few."""
    offered = {"A": (0, 8, 8), "C": (0.5, 4, 8), "D": (8.5, 1, 1)}
    expected = ["A8", *["A1"] * 7, "C4", "D1", *["C1"] * 7]
    assert batches("sglang", offered, blocks=4, max_batch_tokens=100) == expected


def test_sglang_prefills_first_and_never_mixes() -> None:
    offered = {"A": (0, 6, 3), "B": (0, 8, 2), "C": (2.5, 3, 1)}
    assert batches("sglang", offered, max_batch_tokens=10) == ["A6 B4", "B4", "A1 B1", "C3", "A1"]


def test_sglang_keeps_less_for_outputs_after_decodes_not_after_prefills() -> None:
    """1,200 blocks of one token. Beside A, whose 399 tokens to come count 0.7, C's 4 + 950 + 1 do not fit, however many
    chunks of B have been computed meanwhile (by half of A's output they would): it waits until A leaves."""
    offered = {"A": (0, 4, 400), "B": (0.5, 800, 1), "C": (1.5, 4, 950)}
    expected = ["A4", *["B4"] * 200, *["A1"] * 399, "C4", *["C1"] * 949]
    assert batches("sglang", offered, blocks=1200, longest=2000, block_size=1, max_batch_tokens=4) == expected


def test_sglang_forgets_when_idle_that_it_kept_less() -> None:
    """The same memory. After A's 399 decodes 0.3 of outputs to come would be kept, and C would fit beside B; but the
    server was idle before B came."""
    offered = {"A": (0, 4, 400), "B": (500, 4, 400), "C": (500.5, 4, 950)}
    expected = ["A4", *["A1"] * 399, "B4", *["B1"] * 399, "C4", *["C1"] * 949]
    assert batches("sglang", offered, blocks=1200, longest=2000, block_size=1, max_batch_tokens=100) == expected


def test_sglang_finds_again_what_a_retracted_request_prefilled_alone() -> None:
    """As below without C: B comes back when A has left. Nothing needed the blocks of its 35 output tokens since, yet
    only its prompt's are found again."""
    offered = {"A": (0, 4, 40), "B": (1.5, 4, 40)}
    together = ["A4", "A1", "B4", *["A1 B1"] * 34, *["A1"] * 4]
    settings: dict[str, Any] = {"blocks": 78, "block_size": 1, "max_batch_tokens": 100}
    assert batches("sglang", offered, **settings) == [*together, "B39", *["B1"] * 4]
    assert batches("sglang", offered, **settings, prefix_cache=True) == [*together, "B35", *["B1"] * 4]


def test_sglang_fills_the_chunk_to_its_last_token() -> None:
    """The numbers of SGLang's own test of its chunk (test_prefill_adder.py, test_mixed_chunk_prefill_budgets): a prompt
    of 56 uses a chunk of 56 up; of 59 tokens it leaves 3 for the next prompt."""
    offered = {"A": (0, 56, 1), "B": (0, 3, 1)}
    assert batches("sglang", offered, max_batch_tokens=56) == ["A56", "B3"]
    assert batches("sglang", offered, max_batch_tokens=59) == ["A56 B3"]


def test_sglang_cuts_no_later_prompt_where_both_limits_are_equal() -> None:
    """B would use up the four tokens that are left of `max_prefill_tokens`, so it waits although the chunk has room; C,
    behind it, waits too. Alone a prompt may be longer than the limit: D is cut by the chunk only."""
    offered = {"A": (0, 6, 1), "B": (0, 4, 1), "C": (0, 3, 1), "D": (0, 12, 1)}
    settings = {"max_batch_tokens": 10, "options": {"max_prefill_tokens": 10}}
    assert batches("sglang", offered, **settings) == ["A6", "B4 C3", "D10", "D2"]


def test_sglang_retracts_to_the_end_of_the_queue_whoever_has_produced_least() -> None:
    """78 blocks of one token. Beside A, of whose 39 tokens to come 0.7 are kept free, B's 4 + 40 + 1 just fit; C's do
    not. After 34 steps together 77 blocks are full: B, which has produced 35 tokens to A's 36, gives its own up and
    queues behind C. While C holds memory for 40 more, B's 39 tokens do not fit, and nobody is tried until C leaves."""
    offered = {"A": (0, 4, 40), "B": (1.5, 4, 40), "C": (5.5, 4, 40)}
    together, alone = ["A4", "A1", "B4", *["A1 B1"] * 34, *["A1"] * 4], ["C4", *["C1"] * 39, "B39", *["B1"] * 4]
    assert batches("sglang", offered, blocks=78, block_size=1, max_batch_tokens=100) == together + alone


def test_sglang_retracts_no_more_than_it_must_and_then_keeps_memory_for_whole_outputs() -> None:
    """Ten blocks, prompts of one block each, so that each second token needs another. F just fits: beside the five
    blocks that are free then, 0.7 of A's to E's 11 tokens to come are kept, 12.3 are left, and it asks for 4 + 2 + 4.
    Six blocks are needed next, and four are free: F, the last, gives its own up, and the other five just suffice.
    Its outputs being short, all of them are kept free from now on: of the four blocks that A and B leave, 6 tokens are
    C's to E's, and the 10 others are no more than F asks for (5 + 1 + 4). It waits until they have left, too."""
    offered = {"A": (0, 4, 2), "B": (0, 4, 2), "C": (0, 4, 4), "D": (0.5, 4, 4), "E": (0.5, 4, 4), "F": (1.5, 4, 2)}
    prefills = ["A4 B4 C4", "D4 E4", "F4"]
    decodes = ["A1 B1 C1 D1 E1", "C1 D1 E1", "C1 D1 E1"]
    assert batches("sglang", offered, blocks=10, max_batch_tokens=100) == [*prefills, *decodes, "F5"]


# TensorRT-LLM: whole prompts (or chunks of whole blocks), memory guaranteed to the last token.


def test_trtllm_admits_what_fits_to_its_last_token() -> None:
    """Eight blocks: A will need three and B four; C's two are free only when A has ended."""
    offered = {"A": (0, 6, 6), "B": (0, 8, 8), "C": (0, 3, 2)}
    expected = ["A6 B8", *["A1 B1"] * 5, "B1 C3", "B1 C1"]
    assert batches("trtllm", offered, blocks=8, max_batch_tokens=20) == expected


def test_trtllm_max_utilization_pauses_from_the_end_and_lets_nobody_pass() -> None:
    """Six blocks hold all four prompts. A's second token needs a block: D, the last, is paused. B's does: C is. D's two
    blocks would be free then, but it starts only after C, which needs four, in the order of arrival."""
    offered = {"A": (0, 4, 5), "B": (0, 4, 5), "C": (0, 12, 2), "D": (0, 4, 2)}
    settings = {"blocks": 6, "max_batch_tokens": 100, "options": {"max_utilization": 1}}
    assert batches("trtllm", offered, **settings) == ["A4 B4 C12 D4", *["A1 B1"] * 4, "C13 D5"]


@pytest.mark.parametrize(("chunked", "expected"), [(0, ["A6", "A1 B9"]), (1, ["A6 B4", "A1 B5"])])
def test_trtllm_takes_whole_prompts_or_chunks_of_whole_blocks(chunked: int, expected: list[str]) -> None:
    offered = {"A": (0, 6, 2), "B": (0, 9, 1)}
    settings = {"max_batch_tokens": 11, "options": {"chunked_prefill": chunked}}
    assert batches("trtllm", offered, **settings) == expected


# vLLM v0: whole prompts first, padded to the longest; decodes alone, oldest first.


def test_vllm_batches_whole_prompts_padded_and_never_mixes() -> None:
    """Three prompts padded to B's eight tokens would be 24 of the 20 allowed. D's prompt comes before A's decode."""
    offered = {"A": (0, 6, 3), "B": (0, 8, 2), "C": (0, 5, 2), "D": (2.5, 3, 1)}
    assert batches("vllm", offered, max_batch_tokens=20) == ["A6 B8", "C5", "A1 B1 C1", "D3", "A1"]


def test_vllm_preempts_whoever_finds_no_free_block() -> None:
    """Four blocks: A's second token takes the last one, and B, which needs one at hand even though it would not grow,
    is pre-empted. Its five tokens (2 blocks) wait until A has ended."""
    offered = {"A": (0, 8, 4), "B": (0, 4, 3)}
    assert batches("vllm", offered, blocks=4, max_batch_tokens=20) == ["A8 B4", "A1", "A1", "A1", "B5", "B1"]


def test_vllm_preempts_the_youngest() -> None:
    """Three requests on five blocks: A (2), B (1), C (1). A grows into the last free block; B finds none and takes C's
    place (C is the youngest). C, now of five tokens, needs two blocks and waits until A has ended."""
    offered = {"A": (0, 8, 3), "B": (0, 3, 3), "C": (0, 4, 2)}
    assert batches("vllm", offered, blocks=5, max_batch_tokens=40) == ["A8 B3 C4", "A1 B1", "A1 B1", "C5"]


# Sarathi-Serve: decodes first, the rest of the chunk for prompts.


def test_sarathi_fills_the_chunk_behind_the_decodes() -> None:
    offered = {"A": (0, 10, 4), "B": (0, 4, 2), "C": (2.5, 9, 2)}
    assert batches("sarathi", offered, max_batch_tokens=8) == [
        "A8",
        "A2 B4",  # the prompt under way before the new one
        "A1 B1",
        "A1 C7",  # one of the eight tokens is A's
        "A1 C2",
        "C1",
    ]


def test_sarathi_holds_the_blocks_of_a_whole_prompt_from_its_first_chunk() -> None:
    """Four blocks, three for A: B's two are not there in the second iteration, though A computes in two of its own."""
    offered = {"A": (0, 12, 1), "B": (0, 8, 1)}
    assert batches("sarathi", offered, blocks=4, max_batch_tokens=8) == ["A8", "A4", "B8"]


def test_sarathi_gives_decodes_their_token_even_beyond_the_chunk() -> None:
    offered = {"A": (0, 1, 4), "B": (0, 1, 4), "C": (1.5, 4, 1)}
    assert batches("sarathi", offered, max_batch_tokens=2) == ["A1 B1", "A1 B1", "A1 B1", "A1 B1", "C2", "C2"]


def test_sarathi_preempts_the_youngest_and_then_itself() -> None:
    """Five blocks: A grows into the last free one; B finds none, and C, the youngest, gives its block up. Three blocks:
    A takes C's, B gives up its own; both come back when A has ended, B first, with the token they have."""
    offered = {"A": (0, 8, 3), "B": (0, 3, 3), "C": (0, 4, 2)}
    expected = ["A8 B3 C4", "A1 B1", "A1 B1", "C5"]
    assert batches("sarathi", offered, blocks=5, max_batch_tokens=20) == expected
    offered = {"A": (0, 4, 3), "B": (0, 4, 3), "C": (0, 3, 2)}
    assert batches("sarathi", offered, blocks=3, max_batch_tokens=20) == ["A4 B4 C3", "A1", "A1", "B5 C4", "B1"]


# Orca and FasterTransformer: memory for the longest request. Sixteen tokens are four blocks, so eight blocks hold two.


def test_orca_mixes_whole_prompts_with_decodes() -> None:
    offered = {"A": (0, 6, 3), "B": (0, 3, 2), "C": (0, 4, 2)}
    assert batches("orca", offered, blocks=8, longest=16) == ["A6 B3", "A1 B1", "A1 C4", "C1"]


def test_faster_transformer_ends_a_batch_before_the_next() -> None:
    offered = {"A": (0, 6, 3), "B": (0, 3, 2), "C": (0, 4, 2)}
    assert batches("faster_transformer", offered, blocks=8, longest=16) == ["A6 B3", "A1 B1", "A1", "C4", "C1"]


@pytest.mark.parametrize("policy", ["orca", "faster_transformer"])
def test_reservations_are_whole_blocks_and_at_least_one(policy: str) -> None:
    """Seven tokens are rounded down to one block of four, three are rounded up to one: two fit two blocks. A's seven
    tokens go on in its one block."""
    assert batches(policy, {"A": (0, 4, 3), "B": (0, 4, 2)}, blocks=2, longest=7) == ["A4 B4", "A1 B1", "A1"]
    assert batches(policy, {"A": (0, 2, 1), "B": (0, 2, 1)}, blocks=2, longest=3) == ["A2 B2"]
    assert batches(policy, {"A": (0, 2, 1), "B": (0, 2, 1)}, blocks=2, longest=11) == ["A2", "B2"]


@pytest.mark.parametrize("policy", ["orca", "faster_transformer"])
def test_reservations_are_for_the_longest_request(policy: str) -> None:
    """Seven blocks are not twice four, however short the requests are."""
    offered = {"A": (0, 6, 1), "B": (0, 3, 1)}
    assert batches(policy, offered, blocks=7, longest=16) == ["A6", "B3"]


# LightLLM: a prefill only after so many decode iterations, if the foretold peak of memory fits.


def test_lightllm_waits_between_prefills() -> None:
    offered = {"A": (0, 4, 6), "B": (0.5, 3, 2)}
    expected = ["A4", "A1", "A1", "B3", "A1 B1", "A1", "A1"]
    assert batches("lightllm", offered, block_size=1, options={"max_waiting_iterations": 2}) == expected


@pytest.mark.parametrize(("blocks", "first"), [(20, "A4"), (21, "A4 B8")])
def test_lightllm_foretells_the_peak_of_memory(blocks: int, first: str) -> None:
    """A will have 5 tokens and 4 to go, B 9 tokens and 3 to go: together they peak at 3 x 2 + 14 = 20 tokens, which
    must stay below what there is."""
    offered = {"A": (0, 4, 6), "B": (0, 8, 5)}
    assert batches("lightllm", offered, blocks=blocks, block_size=1)[0] == first


@pytest.mark.parametrize("policy", [name for name in POLICIES.names() if name not in POLICIES.own])
def test_every_built_in_policy_has_a_table(policy: str) -> None:
    assert any(test.startswith(f"test_{policy}_") for test in (*globals(), *vars(test_classes)))
