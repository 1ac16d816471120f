"""One model of every family, operator by operator, with the arithmetic written out: FLOPs and bytes of one call on one
of eight tensor-parallel ranks."""

from __future__ import annotations

import numpy as np
import pytest

from gnomon import catalog
from gnomon.catalog.parallelism import tensor_degrees
from gnomon.catalog.weights import layer_weights
from gnomon.core.arrays import Floats
from gnomon.timing.operators import Experts, Gemm, Operator, stage_operators

ONE = np.array([1.0])


def graph(name: str, tensor_parallel: int = 8, **given: str) -> dict[str, Operator]:
    cut = catalog.Parallelism(tensor_parallel=tensor_parallel)
    return {one.name: one for one in stage_operators(catalog.model(name), cut, **given)}


def at(value: float) -> Floats:
    return np.array([value])


def test_latent_attention_and_experts_deepseek() -> None:
    g = graph("deepseek-v3")
    # 61 layers, the first 3 dense; 128 heads over 8 ranks; latent of 512 and a rotary key of 64.
    assert (g["attention_decode"].count, g["up_proj"].count, g["experts"].count) == (61, 3, 58)
    assert g["qkv_a_proj"].flops(ONE)[0] == 2 * 7168 * (1536 + 512 + 64)
    assert g["q_b_proj"].flops(ONE)[0] == 2 * 1536 * 16 * (128 + 64)
    assert g["kv_b_proj"].flops(ONE)[0] == 2 * 512 * 16 * (128 + 128)
    assert g["absorb_q"].flops(ONE)[0] == 2 * 16 * 128 * 512
    assert g["absorb_v"].flops(ONE)[0] == 2 * 16 * 512 * 128
    assert g["attention_decode"].flops(at(64), at(1000))[0] == 64 * 1000 * 2 * 16 * (576 + 512)
    # Decoding reads each sequence's latents once (576 bf16 values a token), and queries and outputs.
    assert g["attention_decode"].bytes(at(64), at(1000))[0] == 64 * (1000 * 576 * 2 + 16 * (576 + 512) * 2)
    assert g["attention_prefill"].flops(at(512), at(0))[0] == 2 * 16 * (192 + 128) * 512 * 256
    # Dense layers: 18432 wide; shared expert: 2048; router in 16 bits.
    assert g["up_proj"].flops(ONE)[0] == 2 * 7168 * 2 * 18432 / 8
    assert g["shared_up_proj"].flops(ONE)[0] == 2 * 7168 * 2 * 2048 / 8
    assert g["router"].bytes(ONE)[0] == 256 * 7168 * 2 + (256 + 7168) * 2
    # Eight experts a token, an eighth of each on this rank, three matrices; a byte per weight and its scale per block.
    assert g["experts"].flops(ONE)[0] == 2 * 8 * 3 * 7168 * 2048 / 8
    weights = g["experts"].bytes(at(1e9))[0] - 1e9 * 8 * (3 * 7168 + 2 * 3 * 256) * 2
    assert weights == pytest.approx(256 * 3 * 7168 * 256 * (1 + 4 / 128**2), rel=1e-4)


def test_compressed_attention_deepseek_v4() -> None:
    g = graph("deepseek-v4-pro", kv_dtype="fp8")
    # 61 layers: every second one from the third on picks among entries of 4 tokens, the others read all of 128.
    assert (g["csa_decode"].count, g["hca_decode"].count) == (30, 31)
    assert g["qkv_a_proj"].flops(ONE)[0] == 2 * 7168 * (1536 + 512)
    assert g["q_b_proj"].flops(ONE)[0] == 2 * 1536 * 16 * 512
    # At 30,000 tokens a query meets the 1,024 best of 7,500 entries, or all 234.4, and the last 128 tokens.
    assert g["csa_decode"].flops(at(4), at(30000))[0] == 4 * (1024 + 128) * 2 * 16 * (512 + 512)
    assert g["hca_decode"].flops(at(4), at(30000))[0] == 4 * (30000 / 128 + 128) * 2 * 16 * (512 + 512)
    assert g["csa_decode"].flops(at(4), at(100))[0] == 4 * (25 + 100) * 2 * 16 * (512 + 512)
    # An entry: 448 values in 8 bits, 64 in 16, eight scales.
    assert g["csa_decode"].bytes(at(1), at(30000))[0] == (1024 + 128) * 584 + 16 * 1024 * 2
    # The index has one key of 128 for every four tokens, scored by 64 heads on every rank.
    assert g["indexer_decode"].flops(at(4), at(30000))[0] == 4 * 7500 * 2 * 64 * 128
    # Its queries come from the compressed ones, and a weight for each head from the token itself.
    assert g["indexer_q_proj"].flops(ONE)[0] == 2 * 1536 * 64 * 128
    assert g["indexer_k_proj"].flops(ONE)[0] == 2 * 7168 * 64
    # Norms of the compressed query and of the key; 64 values of 16 heads and of the key turn; one vector is written.
    assert g["latent_norm"].bytes(ONE)[0] == 2 * (1536 + 512) * 2
    assert g["rotary"].bytes(ONE)[0] == 2 * (16 + 1) * 64 * 2
    assert g["kv_write"].bytes(ONE)[0] == 2 * 584
    # A prompt of 8192: 4096 queries see a quarter of what is before them, the others 1024; all but 128 see 128 more.
    pairs = 4096 * 2048 / 4 + 4096 * 1024 + 128 * 64 + (8192 - 128) * 128
    assert g["csa_prefill"].flops(at(8192), at(0))[0] == 2 * 16 * (512 + 512) * pairs
    # Values and gates: of two overlapping stretches and of the index keys, or of one.
    assert g["csa_compressor_proj"].flops(ONE)[0] == 2 * 7168 * 4 * (512 + 128)
    assert g["hca_compressor_proj"].flops(ONE)[0] == 2 * 7168 * 2 * 512
    # Two of sixteen groups, eight heads each, to a rank of 1024, then together to the full width.
    assert g["o_a_proj"].flops(ONE)[0] == 2 * 2 * (8 * 512) * 1024
    assert g["o_proj"].flops(ONE)[0] == 2 * (2 * 1024) * 7168
    # Four residual streams: both halves of a layer read them and write one, then read one and rewrite them.
    assert g["streams_in"].bytes(ONE)[0] == 2 * (4 + 1) * 7168 * 2
    assert g["streams_out"].bytes(ONE)[0] == 2 * (4 + 1 + 4) * 7168 * 2
    assert g["experts"].work.format.name == "mxfp4"
    assert {one.work.format.name for one in g.values() if one.name in ("q_b_proj", "o_proj", "shared_up_proj")} == {
        "fp8_block"
    }


def test_layers_with_a_window_alone_deepseek_v4_flash() -> None:
    g = graph("deepseek-v4-flash", tensor_parallel=1)
    assert (g["window_decode"].count, g["csa_decode"].count, g["hca_decode"].count) == (2, 21, 20)
    assert g["window_decode"].flops(at(1), at(30000))[0] == 128 * 2 * 64 * (512 + 512)


def test_sparse_attention_glm() -> None:
    g = graph("glm-5")
    # The indexer scores every token with 32 heads of 128 on every rank; attention meets the 2048 best of them.
    assert g["indexer_decode"].flops(at(4), at(30000))[0] == 4 * 30000 * 2 * 32 * 128
    assert g["indexer_decode"].bytes(at(4), at(30000))[0] == 4 * (30000 * 132 + 32 * 128 * 2)
    assert g["attention_decode"].flops(at(4), at(30000))[0] == 4 * 2048 * 2 * 8 * (576 + 512)
    assert g["attention_decode"].flops(at(4), at(1000))[0] == 4 * 1000 * 2 * 8 * (576 + 512)
    # A prompt of 4096: the first 2048 queries see half of 2048 on average, the others 2048.
    assert g["attention_prefill"].flops(at(4096), at(0))[0] == 2 * 8 * (576 + 512) * (2048 * 1024 + 2048 * 2048)
    assert g["absorb_q"].kind == g["absorb_v"].kind == "token"
    assert "kv_b_proj" not in g
    assert g["indexer_q_proj"].flops(ONE)[0] == 2 * 2048 * 32 * 128
    assert g["indexer_k_proj"].flops(ONE)[0] == 2 * 6144 * (128 + 32)


def test_windows_and_mxfp4_experts_gpt_oss() -> None:
    g = graph("gpt-oss-120b")
    # 36 layers in turns: a window of 128, all tokens. 64 heads of 64 on 8 KV heads.
    assert g["attention_decode"].count == g["window_decode"].count == 18
    assert g["attention_decode"].flops(at(8), at(5000))[0] == 8 * 5000 * 2 * 8 * (64 + 64)
    assert g["window_decode"].flops(at(8), at(5000))[0] == 8 * 128 * 2 * 8 * (64 + 64)
    assert g["window_decode"].bytes(at(8), at(5000))[0] == 8 * (128 * 2 * 64 * 2 + 8 * 128 * 2)
    assert g["qkv_proj"].bytes(at(0))[0] == (8 + 2) * 64 * 2880 * 2
    # 4.25 bits a weight: 128 experts of three matrices of 2880 x 2880 over 8 ranks.
    weights = g["experts"].bytes(at(1e9))[0] - 1e9 * 4 * (3 * 2880 + 2 * 3 * 360) * 2
    assert weights == pytest.approx(128 * 3 * 2880 * 360 * 4.25 / 8, rel=1e-3)


def test_gated_delta_net_qwen() -> None:
    g = graph("qwen3.5-397b-a17b")
    # 60 layers, every fourth with full attention; the others keep a state of 64 heads x 128 x 128 in 32 bits.
    assert (g["attention_decode"].count, g["linear_decode"].count, g["experts"].count) == (15, 45, 60)
    assert g["linear_prefill"].kind == "prompt_token"
    assert g["linear_decode"].kind == "decode"
    # Queries, keys (16 heads), values and output gate (64 heads), and two scalars per value head; over 8 ranks.
    assert g["linear_in_proj"].flops(ONE)[0] == 2 * 4096 * (2 * 16 * 128 + 2 * 64 * 128 + 2 * 64) / 8
    state, io = 8 * 128 * 128 * 4, 2 * 2 * 2 * (2 * 2 * 128 + 2 * 8 * 128)
    assert g["linear_decode"].bytes(at(32))[0] == 32 * (2 * state + io)
    # Queries carry a gate as wide as themselves: 2 x 32 heads and 2 KV heads (one on each rank) of 256.
    assert g["qkv_proj"].flops(ONE)[0] == 2 * 4096 * (2 * 4 + 2 * 1) * 256
    assert g["experts"].flops(ONE)[0] == 2 * 10 * 3 * 4096 * 1024 / 8


def test_mamba_and_latent_experts_nemotron() -> None:
    g = graph("nemotron-3-super-120b-a12b")
    # 88 layers: 40 Mamba-2, 8 attention, 40 experts, each layer only one of them.
    assert (g["linear_decode"].count, g["attention_decode"].count, g["experts"].count) == (40, 8, 40)
    # Tokens are projected from 4096 to 1024 for their 22 experts of 2 matrices (no gate), and back.
    assert g["expert_down_proj"].flops(ONE)[0] == g["expert_up_proj"].flops(ONE)[0] == 2 * 4096 * 1024
    assert g["experts"].flops(ONE)[0] == 2 * 22 * 2 * 1024 * 2688 / 8
    assert g["linear_in_proj"].flops(ONE)[0] == 2 * 4096 * (2 * 8 * 128 + 2 * 128 * 64 + 128) / 8


def test_post_norms_and_windows_gemma() -> None:
    g = graph("gemma-3-27b")
    assert (g["attention_decode"].count, g["window_decode"].count) == (10, 52)
    assert g["window_prefill"].flops(at(2048), at(0))[0] == 2 * 4 * 256 * (1024 * 512 + 1024 * 1024)
    assert {"attn_post_norm", "mlp_post_norm"} <= set(g)


def test_formats_follow_the_checkpoint_group_by_group_kimi() -> None:
    own, nvidia = graph("kimi-k2.5"), graph("kimi-k2.5", dtype="nvfp4")
    assert own["o_proj"].work.format.name == "bf16"  # type: ignore[union-attr]
    assert own["experts"].work.format.name == "int4_group32"  # type: ignore[union-attr]
    assert nvidia["experts"].work.format.name == "nvfp4"  # type: ignore[union-attr]
    assert graph("minimax-m2.5")["qkv_proj"].work.format.name == "fp8_block"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name",
    ["deepseek-v3.2", "kimi-k2.5", "minimax-m2.5", "qwen3.5-397b-a17b", "gpt-oss-120b", "glm-5", "llama-4-maverick",
     "nemotron-3-super-120b-a12b", "gemma-3-27b", "gemma-4-31b", "kimi-linear-48b-a3b", "mistral-small-24b"],
)  # fmt: skip
def test_flops_of_a_prompt_token_are_two_per_active_weight(name: str) -> None:
    model = catalog.model(name)
    operators = stage_operators(model, catalog.Parallelism())
    products = [one for one in operators if one.kind in ("token", "prompt_token") and one.name != "linear_prefill"]
    flops = sum(one.count * float(one.flops(ONE)[0]) for one in products)
    weights = model.num_active_parameters - model.num_embedding_parameters - model.num_head_parameters
    assert flops == pytest.approx(2 * weights, rel=0.01)  # Norms, biases and convolutions are not products.


@pytest.mark.parametrize("name", catalog.model_names())
def test_a_rank_holds_the_weights_that_it_multiplies(name: str) -> None:
    """Whatever is not split, such as projections to a low rank, is both held and multiplied whole. Norms, biases,
    convolutions and some small products lie in the group `other`."""
    model = catalog.model(name)
    for ranks in {1, 2, 4, 8, 16}.intersection(tensor_degrees(model)):
        cut = catalog.Parallelism(tensor_parallel=ranks)
        multiplied = sum(one.count * _weights_in(one, bool(model.indexer)) for one in stage_operators(model, cut))
        held = {"other": 0.0, "products": 0.0}
        for (attention, mlp), count in model.kinds().items():
            for weights in layer_weights(model, attention, mlp):
                held["other" if weights.group == "other" else "products"] += count * weights.per_rank(ranks)
        # Biases of experts are counted with their weights.
        assert 0.9996 * held["products"] <= multiplied <= held["products"] + held["other"], ranks


def _weights_in(operator: Operator, is_sparse: bool) -> float:
    """Of a layer's product; latents are either expanded for prompts or, by the same weights, absorbed."""
    work = operator.work
    if isinstance(work, Experts):
        return work.num_local * work.projections * work.hidden * work.ffn
    is_twice = operator.name.startswith("absorb_") and not is_sparse
    return work.n * work.k * work.batch if isinstance(work, Gemm) and operator.name != "lm_head" and not is_twice else 0


def test_joint_norms_minimax_m2() -> None:
    """48 query and 8 KV heads of 128 over 8 ranks; queries and keys are normed over all heads, so that ranks add up two
    sums of squares in 32 bits; 256 experts of 1536, 8 for a token."""
    g = graph("minimax-m2.5")
    assert g["qkv_proj"].flops(ONE)[0] == 2 * 3072 * (6 + 2 * 1) * 128
    assert g["qk_norm"].bytes(ONE)[0] == 2 * (6 + 1) * 128 * 2
    assert g["qk_norm_all_reduce"].work.bytes_each == 2 * 4  # type: ignore[union-attr]
    assert "qk_norm_all_reduce" not in graph("minimax-m2.5", tensor_parallel=1)
    assert g["experts"].flops(ONE)[0] == 2 * 8 * 3 * 3072 * 1536 / 8


def test_sparse_attention_over_groups_of_heads_minimax_m3() -> None:
    """64 query and 4 KV heads of 128 over 4 ranks; one index head for each KV head, one key for all of them. A query
    meets 16 blocks of 128."""
    g = graph("minimax-m3", tensor_parallel=4)
    assert g["qkv_proj"].flops(ONE)[0] == 2 * 6144 * (16 + 2 * 1) * 128
    assert g["indexer_q_proj"].flops(ONE)[0] == 2 * 6144 * 1 * 128
    assert g["indexer_k_proj"].flops(ONE)[0] == 2 * 6144 * 128
    assert g["indexer_decode"].flops(at(4), at(30000))[0] == 4 * 30000 * 2 * 1 * 128
    assert g["indexer_decode"].bytes(at(4), at(30000))[0] == 4 * (30000 * (128 + 4) + 128 * 2)
    assert g["attention_decode"].flops(at(4), at(30000))[0] == 4 * 2048 * 2 * 16 * (128 + 128)
    assert g["attention_decode"].bytes(at(4), at(30000))[0] == 4 * (2048 * 2 * 128 * 2 + 16 * (128 + 128) * 2)
    # More ranks than index heads: each runs one of them.
    assert graph("minimax-m3", tensor_parallel=8)["indexer_q_proj"].flops(ONE)[0] == 2 * 6144 * 128


def test_attention_and_mlp_side_by_side_phi() -> None:
    """32 heads of 80, an MLP of 10240 without a gate. Both halves read one norm and are summed by one all-reduce."""
    g = graph("phi-2", tensor_parallel=2)
    assert g["qkv_proj"].flops(ONE)[0] == 2 * 2560 * 3 * 16 * 80
    assert g["up_proj"].flops(ONE)[0] == g["down_proj"].flops(ONE)[0] == 2 * 2560 * 5120
    assert g["act"].bytes(ONE)[0] == 2 * 5120 * 2
    assert "mlp_norm" not in g and "attn_all_reduce" not in g
    assert g["mlp_all_reduce"].work.bytes_each == 2560 * 2  # type: ignore[union-attr]


def test_decay_by_channel_kimi_linear() -> None:
    """27 layers, 7 of them over latents (queries are not compressed), 20 with states of 32 heads x 128 x 128, of which
    a rank has 4. Decay and gate are whole down to a rank of 128, then split."""
    g = graph("kimi-linear-48b-a3b")
    assert (g["attention_decode"].count, g["linear_decode"].count) == (7, 20)
    assert g["qkv_a_proj"].flops(ONE)[0] == 2 * 2304 * (512 + 64)
    assert g["q_proj"].flops(ONE)[0] == 2 * 2304 * 4 * (128 + 64)
    assert g["linear_in_proj"].flops(ONE)[0] == 2 * 2304 * (3 * 4 * 128 + 4)
    assert g["linear_gate_down_proj"].flops(ONE)[0] == 2 * 2304 * 2 * 128
    assert g["linear_gate_proj"].flops(ONE)[0] == 2 * 128 * 2 * 4 * 128
    assert g["linear_out_proj"].flops(ONE)[0] == 2 * 4 * 128 * 2304
    state, io = 4 * 128 * 128 * 4, 2 * 2 * 2 * (2 * 4 * 128 + 2 * 4 * 128)
    assert g["linear_decode"].bytes(at(32))[0] == 32 * (2 * state + io)


def test_values_from_keys_gemma_4() -> None:
    """Every sixth layer sees everything with 4 KV heads of 512, whose values are its keys; the others a window of 1024
    with 16 KV heads of 256. 32 query heads in both, over 4 ranks."""
    cut = catalog.Parallelism(tensor_parallel=4)
    products = [one for one in stage_operators(catalog.model("gemma-4-31b"), cut) if one.name == "qkv_proj"]
    assert [one.count for one in products] == [10, 50]
    full, window = (float(one.flops(ONE)[0]) for one in products)
    assert (full, window) == (2 * 5376 * (8 + 1) * 512, 2 * 5376 * (8 + 2 * 4) * 256)
    g = graph("gemma-4-31b", tensor_parallel=4)
    assert g["attention_decode"].bytes(at(1), at(5000))[0] == 5000 * 2 * 512 * 2 + 8 * 2 * 512 * 2
    assert g["window_decode"].bytes(at(1), at(5000))[0] == 1024 * 2 * 4 * 256 * 2 + 8 * 2 * 256 * 2


def test_every_second_layer_has_experts_llama_4() -> None:
    """48 layers: every fourth sees everything, the others chunks of 8192. One of 128 experts of 8192 and a shared one;
    dense layers of 16384."""
    g = graph("llama-4-maverick")
    assert (g["attention_decode"].count, g["window_decode"].count) == (12, 36)
    assert (g["up_proj"].count, g["experts"].count) == (24, 24)
    assert g["up_proj"].flops(ONE)[0] == 2 * 5120 * 2 * 16384 / 8
    assert g["experts"].flops(ONE)[0] == 2 * 1 * 3 * 5120 * 8192 / 8
    assert g["shared_up_proj"].flops(ONE)[0] == 2 * 5120 * 2 * 8192 / 8
    assert g["window_decode"].flops(at(1), at(20000))[0] == 8192 * 2 * 5 * (128 + 128)


def test_norms_of_queries_and_keys_glm() -> None:
    """GLM-4.5: 92 layers, 3 of them dense; 96 query and 8 KV heads of 128, each normed by itself; 160 experts of 1536,
    8 for a token, and a shared one."""
    g = graph("glm-4.5")
    assert (g["attention_decode"].count, g["up_proj"].count, g["experts"].count) == (92, 3, 89)
    assert g["qk_norm"].bytes(ONE)[0] == 2 * (12 + 1) * 128 * 2
    assert "qk_norm_all_reduce" not in g
    assert g["experts"].flops(ONE)[0] == 2 * 8 * 3 * 5120 * 1536 / 8
    assert g["shared_down_proj"].flops(ONE)[0] == 2 * 5120 * 1536 / 8


def test_nemotron_nano_v2() -> None:
    """56 layers of one thing each: 27 of Mamba, 25 of a plain MLP of 15,680 and 4 of attention (40 heads, 8 of KV)."""
    g = graph("nemotron-nano-9b-v2")
    assert (g["attention_decode"].count, g["up_proj"].count, g["down_proj"].count) == (4, 25, 25)
    assert g["up_proj"].flops(ONE)[0] == 2 * 4480 * 15680 / 8
    assert g["qkv_proj"].flops(ONE)[0] == 2 * 4480 * (40 + 2 * 8) * 128 / 8


WORKED_OUT = {
    "nemotron-nano-9b-v2",
    "llama-3-8b", "mixtral-8x7b", "deepseek-v3", "deepseek-v4-pro", "deepseek-v4-flash", "glm-5", "gpt-oss-120b",
    "qwen3.5-397b-a17b", "qwen3-next-80b-a3b", "nemotron-3-super-120b-a12b", "minimax-m2.5", "minimax-m3", "phi-2",
    "kimi-linear-48b-a3b", "gemma-3-27b", "gemma-4-31b", "llama-4-maverick", "glm-4.5",
}  # fmt: skip
"""Models with a breakdown by hand, here and in test_timing_golden.py."""


@pytest.mark.parametrize("name", sorted(set(catalog.model_names()) - WORKED_OUT))
def test_other_models_are_made_of_what_was_worked_out(name: str) -> None:
    """Their kinds of layers, and all operators in them, occur in a breakdown by hand."""
    known = {one for model in WORKED_OUT for one in graph(model, tensor_parallel=2, dtype="bf16")}
    assert set(graph(name, tensor_parallel=2, dtype="bf16")) <= known
    kinds = {kind for model in WORKED_OUT for kind in catalog.model(model).kinds()}
    assert set(catalog.model(name).kinds()) <= kinds
