"""The operator graph: work conserved under every parallelism."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gnomon import catalog
from gnomon.catalog import Group
from gnomon.core.errors import ConfigError
from gnomon.timing.operators import (
    Communication,
    Decode,
    Experts,
    Gemm,
    Operator,
    Prefill,
    SamplerConfig,
    mixed_attention,
    stage_operators,
)
from gnomon.timing.operators.load import busiest_rank, check_load

ONE = np.array([1.0])


def all_operators(name: str, **degrees: object) -> list[Operator]:
    model, cut = catalog.model(name), catalog.Parallelism(**degrees)
    cut.check(model)
    return [one for stage in range(cut.pipeline_parallel) for one in stage_operators(model, cut, stage)]


def token_flops(operators: list[Operator], tokens: float = 1.0) -> float:
    """Of a token of a prompt."""
    rows = np.array([tokens])
    return sum(one.count * float(one.flops(rows)[0]) for one in operators if one.kind in ("token", "prompt_token"))


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3-70b", "phi-2", "qwen3-32b", "mixtral-8x7b", "deepseek-v3"])
def test_flops_per_token_are_two_per_active_weight(name: str) -> None:
    model = catalog.model(name)
    weights = model.num_active_parameters - model.num_embedding_parameters - model.num_head_parameters
    assert token_flops(all_operators(name)) == pytest.approx(2 * weights, rel=0.002)  # Norms and biases are not GEMMs.


@pytest.mark.parametrize(
    ("name", "degrees", "ranks"),
    [
        ("llama-3-70b", {"tensor_parallel": 8}, 8),
        ("llama-3-70b", {"tensor_parallel": 2, "pipeline_parallel": 4}, 2),
        ("qwen3-30b-a3b", {"tensor_parallel": 4, "expert_parallel": True}, 4),
    ],
)
def test_ranks_share_the_work(name: str, degrees: dict[str, object], ranks: int) -> None:
    router = 2 * 48 * 128 * 2048 * (ranks - 1) if name.startswith("qwen") else 0  # Every rank routes all tokens.
    assert ranks * token_flops(all_operators(name, **degrees)) == pytest.approx(
        token_flops(all_operators(name)) + router
    )


def test_kv_heads_too_few_for_the_ranks_are_projected_on_each() -> None:
    qkv = next(one for one in all_operators("llama-3-8b", tensor_parallel=16) if one.name == "qkv_proj")
    assert qkv.work == Gemm((32 // 16 + 2) * 128, 4096)


@pytest.mark.parametrize(("ranks", "keys", "values"), [(8, 2, 4), (16, 1, 2), (32, 1, 1)])
def test_linear_attention_is_cut_by_heads_and_no_finer(ranks: int, keys: int, values: int) -> None:
    """16 key heads and 32 value heads of 128: queries and keys, values and gates, and two numbers per value head."""
    operators = stage_operators(catalog.model("qwen3-next-80b-a3b"), catalog.Parallelism(tensor_parallel=ranks))
    project = next(one for one in operators if one.name == "linear_in_proj")
    assert project.work == Gemm(2 * keys * 128 + 2 * values * 128 + 2 * values, 2048)


def test_communication_of_a_tensor_parallel_layer() -> None:
    operators = all_operators("llama-3-8b", tensor_parallel=4)
    comms = {one.name: one for one in operators if one.kind == "communication"}
    assert comms["attn_all_reduce"].count == comms["mlp_all_reduce"].count == 32
    assert comms["attn_all_reduce"].work == Communication("all_reduce", Group(range(4)), 4096 * 2.0)
    assert comms["logits_all_gather"].work == Communication("all_gather", Group(range(4)), 128256 / 4 * 2.0, "sequence")
    assert not any(one.kind == "communication" for one in all_operators("llama-3-8b"))


def test_stages_hand_over_and_only_the_ends_embed_and_sample() -> None:
    model, cut = catalog.model("llama-3-8b"), catalog.Parallelism(pipeline_parallel=2, tensor_parallel=2)
    first, last = ({one.name for one in stage_operators(model, cut, stage)} for stage in (0, 1))
    assert {"embedding", "send_recv"} <= first - last
    assert {"lm_head", "sampler", "final_norm"} <= last - first


def test_how_a_stage_ends() -> None:
    """128,256 words over two ranks, 4,096 wide, in two bytes; 12 and 16 bytes a word to count and to choose."""
    model, cut = catalog.model("llama-3-8b"), catalog.Parallelism(pipeline_parallel=2, tensor_parallel=2)
    kept = SamplerConfig(penalties="kept")
    norm, head, gather, penalties, sampler = stage_operators(model, cut, 1, sampler=kept)[-5:]
    assert [one.count for one in (norm, head, gather, penalties, sampler)] == [1] * 5
    assert head.work == Gemm(64_128, 4096)
    assert isinstance(gather.work, Communication) and gather.work.bytes_each == 64_128 * 2
    assert gather.work.group == Group(range(2, 4), 1)
    rows = np.array([3.0])
    assert [one.bytes(rows)[0] for one in (penalties, sampler)] == [3 * 12 * 128_256, 3 * 16 * 128_256]
    drawn = stage_operators(model, cut, 1, sampler=SamplerConfig(is_random=True, logprobs=True))
    assert [one.name for one in drawn[-2:]] == ["sampler", "logprobs"]
    send = stage_operators(model, cut, 0)[-1]
    assert isinstance(send.work, Communication) and (send.count, send.work.bytes_each) == (1, 4096 * 2)


def test_parallel_attention_has_one_norm_and_one_all_reduce() -> None:
    names = [one.name for one in all_operators("phi-2", tensor_parallel=2)]
    assert "mlp_norm" not in names
    assert "attn_all_reduce" not in names
    assert "mlp_all_reduce" in names


def test_experts_touched_grow_from_top_k_to_all() -> None:
    work = next(one.work for one in all_operators("qwen3-30b-a3b") if one.name == "experts")
    assert isinstance(work, Experts)
    touched = work.touched(np.array([1.0, 16.0, 4096.0]))
    assert touched[0] == pytest.approx(8)
    assert 64 < touched[1] < 128
    assert touched[2] == pytest.approx(128)


def test_a_group_that_shares_experts_exchanges_tokens() -> None:
    """All to all a rank sends its own tokens to eight experts of 7,168; what is gathered is what all of them have."""
    operators = all_operators("deepseek-v3", data_parallel=8, expert_parallel=True)
    exchange = {one.name: one for one in operators if one.name.startswith("expert")}
    assert [name for name, one in exchange.items() if one.is_shared] == ["experts"]
    work = exchange["expert_dispatch"].work
    assert isinstance(work, Communication)
    assert (work.collective, work.group, work.bytes_each) == ("all_to_all", Group(range(8)), 8 * 7168 * 2)
    assert {one.count for one in exchange.values()} == {58}  # The first three layers are dense.
    gathered = {one.name: one for one in all_operators("deepseek-v3", data_parallel=8) if one.is_shared}
    assert [one.work.bytes_each for one in gathered.values() if isinstance(one.work, Communication)] == [1792, 14336]


def test_attention_flops_and_bytes() -> None:
    operators = {one.name: one for one in all_operators("llama-3-8b")}
    prefill, decode = operators["attention_prefill"], operators["attention_decode"]
    chunk, kv = np.array([512.0]), np.array([1024.0])
    assert prefill.flops(chunk, kv)[0] == 4 * 32 * 128 * 512 * (1024 + 256)
    assert decode.flops(ONE, kv)[0] == 4 * 32 * 128 * 1024
    assert decode.bytes(ONE, kv)[0] == pytest.approx(1024 * 4096 + 2 * 4096 * 2)
    mixed = mixed_attention(list(operators.values()))
    assert mixed is not None
    both = prefill.flops(chunk, kv) + decode.flops(ONE, kv)
    assert mixed.flops(chunk, kv, ONE, kv) == pytest.approx(both)


def test_latent_attention_decodes_over_the_latent() -> None:
    operators = {one.name: one for one in all_operators("deepseek-v3", tensor_parallel=8)}
    kv = np.array([1000.0])
    assert operators["attention_decode"].flops(ONE, kv)[0] == 2 * 16 * (576 + 512) * 1000
    # What a prompt's token multiplies to expand the latent, a decoded one multiplies head by head.
    absorbed = operators["absorb_q"].flops(ONE)[0] + operators["absorb_v"].flops(ONE)[0]
    assert absorbed == operators["kv_b_proj"].flops(ONE)[0] == 2 * 16 * 256 * 512
    assert operators["qkv_a_proj"].flops(ONE)[0] == 2 * (1536 + 512 + 64) * 7168
    assert operators["attention_prefill"].flops(ONE, kv)[0] == pytest.approx(2 * 16 * (192 + 128) * 1000.5)


def test_a_window_bounds_what_queries_see() -> None:
    whole = Prefill(8, 8, 64, 64, 2048.0)
    narrow = replace(whole, window=128)
    chunk, kv = np.array([64.0, 64.0, 1000.0]), np.array([0.0, 500.0, 100.0])
    # All see less than a window; all see a whole one; 28 grow into it, 972 see it whole.
    pairs = [64 * 32, 64 * 128, 28 * (100 + 14) + 972 * 128]
    assert narrow.pairs(chunk, kv) == pytest.approx(pairs)
    assert whole.pairs(chunk, kv) == pytest.approx(chunk * (kv + chunk / 2))
    decode = Decode(8, 8, 64, 64, 2048.0, window=128)
    assert decode.flops(ONE, np.array([4000.0])) == decode.flops(ONE, np.array([128.0]))


def test_the_busiest_rank_decides_unevenly_loaded_experts() -> None:
    assert busiest_rank("balanced", 256, 8) == busiest_rank("power_law_1.2", 256, 1) == 1.0
    mild, strong = busiest_rank("power_law_1.01", 256, 8), busiest_rank("power_law_1.2", 256, 8)
    assert 1.2 < mild < strong < 4.0
    assert busiest_rank("power_law_1.2", 256, 64) > strong
    assert 1.0 <= busiest_rank("power_law_1.2_eplb", 256, 8) < 1.05
    even = Experts(256, 32, 8, 7168, 2048, 3)
    uneven = replace(even, load="power_law_1.2")
    assert uneven.flops(np.array([512.0])) == pytest.approx(strong * even.flops(np.array([512.0])))
    with pytest.raises(ConfigError, match="no distribution"):
        check_load("zipf")


def test_uneven_loads_touch_fewer_experts() -> None:
    even, tokens = Experts(256, 256, 8, 7168, 2048, 3), np.array([1.0, 16.0, 100000.0])
    uneven = replace(even, load="power_law_1.01")
    assert even.touched(tokens) == pytest.approx(256 * (1 - (1 - 8 / 256) ** tokens))
    assert uneven.touched(tokens)[1] < 0.8 * even.touched(tokens)[1]
    assert uneven.touched(tokens)[2] == pytest.approx(256, rel=0.02)


def test_a_norm_over_all_heads_is_reduced_over_ranks() -> None:
    """MiniMax-M2 normalises queries and keys over all heads: each rank has a part of the sum of squares."""
    model = catalog.model("minimax-m2.5")
    cuts = (catalog.Parallelism(tensor_parallel=ranks) for ranks in (4, 1))
    whole, alone = ({one.name: one for one in stage_operators(model, cut, 0)} for cut in cuts)
    assert whole["qk_norm_all_reduce"].count == 62
    assert whole["qk_norm_all_reduce"].work.bytes_each == 8
    names = [name for name in whole if name.startswith("qk_norm")]
    assert names == ["qk_norm_queries", "qk_norm_keys", "qk_norm_all_reduce", "qk_norm"], "sums, then scaling"
    assert [name for name in alone if name.startswith("qk_norm")] == ["qk_norm"]
