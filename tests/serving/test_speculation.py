"""Acceptance of drafted tokens by position, and what drafting costs."""

from __future__ import annotations

import numpy as np
import pytest

from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.serving.scenario.acceptance import acceptance_names, chances, reached
from gnomon.serving.scenario.pools import bake, resolve
from serving_kit import check_invariants, requests_of, run, scenario


def tokens_per_round(acceptance, num_tokens):
    """Accepted drafts, and one of the model's own."""
    return 1.0 + np.cumprod(chances(acceptance, num_tokens)).sum()


def test_a_measured_curve_yields_its_mean_tokens_at_every_number_of_drafts():
    assert reached([1.79, 2.27, 2.49, 2.54]) == pytest.approx([0.79, 0.48, 0.22, 0.05])
    for drafts, tokens in ((1, 1.83), (2, 2.43), (3, 2.88), (4, 3.24), (8, 3.77)):
        assert tokens_per_round("kimi-k2.5-eagle3", drafts) == pytest.approx(tokens)


@pytest.mark.parametrize("name", acceptance_names())
def test_noise_of_a_curve_leaves_chances_and_the_mean(name):
    for drafts in range(1, 9):
        found = chances(name, drafts)
        assert np.all((found >= 0) & (found <= 1))
        shares = np.cumprod(found)
        assert np.all(np.diff(shares) <= 1e-12)
    # 3.77 tokens with six drafts and 3.73 with seven: the round with seven yields 3.73.
    assert tokens_per_round("deepseek-v4-dspark", 7) == pytest.approx(3.73)


def test_one_chance_for_all_is_the_textbook_case():
    # Leviathan et al. (2023), equation 1: (1 - a^(k+1)) / (1 - a).
    assert tokens_per_round(0.8, 4) == pytest.approx((1 - 0.8**5) / 0.2)
    assert chances((0.9, 0.5), 4).tolist() == [0.9, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("policy", ["vllm_v1", "sglang", "trtllm"])
def test_the_engine_accepts_as_the_curve_says(policy):
    """2,000 tokens of each of 40 requests: a round yields 2.49 tokens with three drafts."""
    setup = scenario(
        batching={"policy": policy, "prefix_cache": False, "max_sequences": 64},
        replica={"speculative": {"num_tokens": 3, "acceptance": "deepseek-v4-mtp"}, "max_request_tokens": 4000},
    )
    done = run(setup, requests=requests_of([0.0] * 40, [20] * 40, [2000] * 40))
    check_invariants(done)
    rows = done.log.iterations[: done.log.used[0]]
    rounds = rows.decodes.sum()
    assert 40 * 1999 / rounds == pytest.approx(2.49, rel=0.01)
    assert set((rows.tokens - rows.prefill_tokens)[rows.decodes == 40].tolist()) == {160}, "four tokens are verified"


def test_a_draft_head_takes_its_layers_and_the_output_head():
    def tables(**speculative: object):
        setup = scenario(
            model="llama-3-8b", device="h100", timing={"source": "roofline", "table": None},
            replica={"speculative": {"num_tokens": 2, **speculative}},
        )  # fmt: skip
        pools = resolve(setup)
        return bake(setup.model, pools, requests_of([0.0], [100], [100])).tables

    free, head = tables(), tables(draft_layers=1)
    extra = head.decode_s[0, 8] - free.decode_s[0, 8]
    # Two passes over the decodes, the first of which is part of the pass over all tokens.
    expected = 2 * (free.decode_s[0, 8] / 32 + free.sequence_s[0, 8]) + free.token_s[0, 8] / 32
    assert extra == pytest.approx(expected)
    assert head.token_s == pytest.approx(free.token_s * 33 / 32)
    assert head.prefill_s == pytest.approx(free.prefill_s * 33 / 32)


@pytest.mark.parametrize(
    ("speculative", "error", "said"),
    [
        ({"num_tokens": 2, "acceptance": "deepseek"}, UnknownNameError, "deepseek-v4-mtp"),
        ({"num_tokens": 9, "acceptance": "deepseek-v4-mtp"}, ConfigError, "up to 8"),
        ({"num_tokens": 2, "acceptance": [0.5, 1.5]}, ConfigError, "1.5"),
        ({"num_tokens": 2, "draft_model": "llama-3.2-1b", "draft_layers": 1}, ConfigError, "both"),
    ],
)
def test_what_makes_no_sense_is_refused(speculative, error, said):
    with pytest.raises(error, match=said):
        scenario(replica={"speculative": speculative})


def test_drafts_beyond_the_end_have_room_in_the_table_of_blocks():
    """Blocks of one token: four drafts with each decode, up to four tokens behind the last one."""
    one = requests_of([0.0], [148], [2])
    engine = {"batching": {"policy": "trtllm", "block_size": 1, "prefix_cache": True, "surplus_token": True}}
    done = run(scenario(**engine, replica={"speculative": {"num_tokens": 4, "acceptance": 0.5}}), requests=one)
    check_invariants(done)
    assert done.cluster.tables.shape[2] >= 148 + 2 + 4
