"""The prefix cache: hit rates by hand, of conversations, of answers, of hashes that cover several blocks."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnomon.core.user_files import plain
from gnomon.serving.engine.prefix_cache import key_of
from serving_kit import check_invariants, requests_of, run, scenario

POLICIES = ("vllm_v1", "sglang")


def conversation(prompts: list[int], outputs: list[int], block_tokens: int, hashes: Any = None) -> Any:
    """Turns of one conversation, far enough apart that each is answered before the next arrives."""
    said, prompt_tokens = 0, []
    for prompt, output in zip(prompts, outputs, strict=True):
        prompt_tokens.append(said + prompt)
        said += prompt + output
    counts = (np.array(prompt_tokens) + np.array(outputs)) // block_tokens
    known = hashes if hashes is not None else np.arange(counts.max()) + 1000
    return replace(
        requests_of(np.arange(len(prompts)) * 100.0, prompt_tokens, outputs),
        prefix_offsets=np.concatenate([[0], np.cumsum(counts)]),
        prefix_hashes=np.concatenate([known[:count] for count in counts]),
        prefix_block_tokens=block_tokens,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_answers_are_found_again_in_the_next_turn(policy: str) -> None:
    """Turns of 100 + 50 tokens, blocks of 16. The second prompt has 250 tokens, of which 149 were computed before (the
    last token of an answer never is): 9 blocks. The third has 400, of which 299: 18 blocks."""
    done = run(scenario(batching={"policy": policy}), requests=conversation([100] * 3, [50] * 3, 16))
    check_invariants(done)
    assert done.cluster.requests.cached_tokens.tolist() == [0, 9 * 16, 18 * 16]
    replica = done.cluster.replicas[0]
    assert (replica.cache_hits, replica.cache_queries) == (27 * 16, 100 + 250 + 400)
    assert replica.tokens_computed == 3 * 49 + 100 + (250 - 144) + (400 - 288)


@pytest.mark.parametrize(("policy", "second", "third"), [("vllm_v1", 48, 48), ("sglang", 0, 48), ("trtllm", 0, 32)])
def test_a_prefix_that_is_still_being_computed(policy: str, second: int, third: int) -> None:
    """Two requests with the same prompt of 60 tokens arrive together, a third one long after them. vLLM finds blocks as
    soon as they are placed, the others only once they are computed. Blocks are 16 tokens, 32 for TensorRT-LLM."""
    same = np.tile(np.arange(3) + 1, 3)
    sent = replace(
        requests_of([0.0, 0.0, 100.0], [60] * 3, [2] * 3),
        prefix_offsets=np.arange(4) * 3,
        prefix_hashes=same,
        prefix_block_tokens=16,
    )
    size = 32 if policy == "trtllm" else 16
    if policy == "trtllm":
        sent = replace(sent, prefix_offsets=np.arange(4), prefix_hashes=np.array([5, 5, 5]), prefix_block_tokens=32)
    done = run(scenario(batching={"policy": policy, "block_size": size}), requests=sent)
    check_invariants(done)
    assert done.cluster.requests.cached_tokens.tolist() == [0, second, third]


def test_a_request_without_blocks_is_looked_at_again_when_its_prefix_grows() -> None:
    """A prompt of 160 tokens is computed in chunks of 24, in iterations of 10 ms; there are 11 blocks of 16. Another
    of 176 tokens that starts with it is first looked at at 20 ms, when the first has placed 72 tokens: it holds 5
    blocks, 4 of which are full. The other needs 11 - 4, and 6 are free. 10 ms later 96 are placed in 6 full blocks; it
    needs 5, and 5 are free."""
    sent = replace(
        requests_of([0.0, 0.015], [160, 176], [1, 1]),
        prefix_offsets=np.array([0, 10, 20]),
        prefix_hashes=np.tile(np.arange(10) + 1, 2),
        prefix_block_tokens=16,
    )
    batching = {"policy": "vllm_v1", "max_batch_tokens": 64, "max_chunk_tokens": 24}
    timing = {"table": {"per_iteration": 0.01}}
    done = run(scenario(batching=batching, timing=timing, replica={"num_kv_blocks": 11}), requests=sent)
    check_invariants(done)
    assert done.cluster.requests.scheduled_s.tolist() == pytest.approx([0.0, 0.03])
    assert done.cluster.requests.cached_tokens.tolist() == [0, 6 * 16]


def test_a_long_conversation_hits_nearly_all_of_its_prompts() -> None:
    """17 turns of 30 + 200 tokens: turn k has 230 k + 30 prompt tokens, and finds the blocks of 230 k - 1."""
    done = run(scenario(replica={"num_kv_blocks": 2000}), requests=conversation([30] * 17, [200] * 17, 16))
    hits = sum((230 * k - 1) // 16 * 16 for k in range(1, 17))
    prompts = sum(230 * k + 30 for k in range(17))
    replica = done.cluster.replicas[0]
    assert (replica.cache_hits, replica.cache_queries) == (hits, prompts)
    assert hits / prompts > 0.96


@pytest.mark.parametrize("block_tokens", [16, 64, 512])
def test_hashes_that_cover_several_blocks_stay_apart(block_tokens: int) -> None:
    """Hashes of 63 bits, times the blocks that each covers, do not fit 64 bits: none may be taken for another."""
    top = 2**63 - 1
    hashes = top - np.arange(200) * (2**63 // 512)
    turns = conversation([600] * 3, [424] * 3, block_tokens, hashes)
    done = run(scenario(replica={"num_kv_blocks": 2000, "max_request_tokens": 4000}), requests=turns)
    check_invariants(done)
    # Of 1023 and 2047 computed tokens, full hash blocks (of answers) or full blocks (of prompts).
    answers = [1023 // block_tokens * block_tokens, 2047 // block_tokens * block_tokens]
    prompts = [600 // 16 * 16, 1624 // 16 * 16]
    assert done.cluster.requests.cached_tokens.tolist() == [0, *np.maximum(answers, prompts)]
    # Two strangers whose hashes are equal in their lower bits find nothing of each other.
    strangers = replace(
        requests_of([0.0, 50.0], [600, 600], [5, 5]),
        prefix_offsets=np.array([0, 1, 2]),
        prefix_hashes=np.array([2**61, 2**61 + 2**62]),
        prefix_block_tokens=block_tokens,
    )
    assert run(scenario(), requests=strangers).cluster.replicas[0].cache_hits == 0


def test_keys_of_own_blocks_do_not_wrap_around_in_plain_python() -> None:
    """Ids of requests have 32 bits; from the 128th on, 2^24 keys for each do not fit them."""
    requests = np.zeros(200, [("prefix_count", np.int32), ("prefix_first", np.int64)]).view(np.recarray)
    replica = SimpleNamespace(requests=requests, state=SimpleNamespace(blocks_per_hash=1))
    assert plain(key_of)(replica, np.int32(127), np.int32(5)) == 128 * 2**24 + 6
