"""Configurations of small made-up models, read layer by layer, and what may be cut how."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gnomon.catalog.attention import LinearAttention
from gnomon.catalog.devices import DTYPE_BYTES, device
from gnomon.catalog.huggingface import parse_config, quantization
from gnomon.catalog.memory import FIXED_RESERVE_BYTES, SAMPLER_BYTES_PER_LOGIT, _reserve, plan_memory
from gnomon.catalog.model_library import MODELS, _published_as
from gnomon.catalog.models import Model
from gnomon.catalog.nodes import node as catalog_node
from gnomon.catalog.parallelism import Parallelism, tensor_degrees
from gnomon.catalog.power import PowerFacts, clock_under_cap, power_data
from gnomon.catalog.topology import Group
from gnomon.catalog.weights import Weights, _linear, attention_weights, mlp_weights
from gnomon.core.errors import ConfigError, DoesNotFitError
from gnomon.core.units import size

PLAIN: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 96, "vocab_size": 1000, "max_position_embeddings": 4096,
}  # fmt: skip
EXPERTS: dict[str, Any] = {**PLAIN, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

COMPRESSED: dict[str, Any] = {
    **EXPERTS, "model_type": "deepseek_v4", "num_hidden_layers": 3, "compress_ratios": [0, 4, 128], "head_dim": 32,
    "num_key_value_heads": 1, "q_lora_rank": 16, "qk_rope_head_dim": 8, "o_groups": 4, "o_lora_rank": 12,
    "sliding_window": 16, "index_n_heads": 4, "index_head_dim": 8, "index_topk": 5, "hc_mult": 2,
}  # fmt: skip


def read(given: dict[str, Any], **changes: Any) -> Model:
    return parse_config({**given, **changes}, name="mine", where="config.json")


def kinds(model: Model) -> str:
    """The first letter of every layer's attention, then of its MLP."""
    layers = range(model.num_layers)
    return "".join(model.attention_kind(i)[0] for i in layers) + " " + "".join(model.mlp_kind(i)[0] for i in layers)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "ffffff dddddd"),
        ({"sliding_window": 32}, "ssssss dddddd"),
        ({"sliding_window": 32, "use_sliding_window": False}, "ffffff dddddd"),
        ({"sliding_window": 32, "sliding_window_pattern": 3}, "ssfssf dddddd"),
        ({"sliding_window": 32, "hybrid_layer_pattern": [0, 1, 1, 0, 1, 1]}, "fssfss dddddd"),
        ({"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"] * 3}, "sfsfsf dddddd"),
    ],
)
def test_windows(changes: dict[str, Any], expected: str) -> None:
    assert kinds(read(PLAIN, **changes)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "eeeeee"),
        ({"first_k_dense_replace": 2}, "ddeeee"),
        ({"interleave_moe_layer_step": 2}, "dedede"),
        ({"decoder_sparse_step": 3}, "ddedde"),
        ({"mlp_only_layers": [0, 4]}, "deeede"),
        ({"moe_layer_freq": [0, 1, 1, 0, 1, 1]}, "deedee"),
        ({"num_experts": 1}, "dddddd"),
        ({"num_experts": 2}, "eeeeee"),
    ],
)
def test_experts(changes: dict[str, Any], expected: str) -> None:
    assert kinds(read(EXPERTS, **changes)).split()[1] == expected


def test_windows_may_have_heads_of_their_own() -> None:
    whole = read(PLAIN, sliding_window=32)
    assert whole.heads_of("sliding") == whole.heads_of("full") == (8, 4, 8, 8)
    own = read(PLAIN, sliding_window=32, swa_num_attention_heads=6, swa_num_key_value_heads=2, swa_head_dim=16)
    assert own.heads_of("sliding") == (6, 2, 16, 16)
    assert read(PLAIN, sliding_window=32, swa_head_dim=16, swa_v_head_dim=12).heads_of("sliding") == (8, 4, 16, 12)
    assert own.sliding is not None and own.sliding.window == 32
    assert read(PLAIN, sliding_window=32, attention_chunk_size=48).sliding.window == 48  # type: ignore[union-attr]


def test_widths_of_experts() -> None:
    model = read(EXPERTS)
    assert (model.num_experts, model.experts_per_token, model.expert_ffn_size, model.ffn_size) == (8, 2, 24, 96)
    assert model.shared_ffn_size == 0
    assert read(EXPERTS, n_shared_experts=2).shared_ffn_size == 48
    assert read(EXPERTS, n_shared_experts=2, moe_shared_expert_intermediate_size=10).shared_ffn_size == 20
    assert read(EXPERTS, shared_expert_intermediate_size=40).shared_ffn_size == 40
    assert read({**EXPERTS, "moe_intermediate_size": None}).expert_ffn_size == 96
    assert read({**EXPERTS, "num_experts_per_tok": None}).experts_per_token == 1
    assert read(EXPERTS, num_experts_per_tok=8).experts_per_token == 8
    for active in (9, "two", -1):
        with pytest.raises(ConfigError, match="makes no sense with 8 experts"):
            read(EXPERTS, num_experts_per_tok=active)
    assert read(PLAIN, model_type="qwen").ffn_size == 48, "the first Qwen counts gate and up together"


BIASES = ("qkv_bias", "o_bias", "mlp_bias", "head_bias", "norm_bias")
TRAITS = (*BIASES, "qk_norm", "joint_qk_norm", "post_norm", "parallel_attention", "output_gate", "shared_gate")


@pytest.mark.parametrize(
    ("families", "traits"),
    [
        ("llama mistral ministral3 internlm", ""),
        ("phi", " ".join((*BIASES, "parallel_attention"))),
        ("qwen qwen2", "qkv_bias"),
        ("qwen2_moe", "qkv_bias shared_gate"),
        ("qwen3 qwen3_moe qwen3_vl_text qwen3_vl_moe_text", "qk_norm"),
        ("qwen3_5_text", "qk_norm output_gate"),
        ("qwen3_5_moe_text", "qk_norm output_gate shared_gate"),
        ("glm4_moe mimo_v2_flash", "router_bias"),
        ("gpt_oss", "mlp_bias router_bias"),
        ("minimax_m2", "qk_norm joint_qk_norm router_bias"),
        ("minimax_m3", "qk_norm router_bias"),
        ("gemma3_text gemma4_text", "qk_norm post_norm"),
    ],
)
def test_what_the_code_of_a_family_fixes(families: str, traits: str) -> None:
    """By its `modeling_*.py`; a `config.json` does not say it. Only Phi's MLP has no gate."""
    for family in families.split():
        model = read(EXPERTS if "moe" in family or "router_bias" in traits else PLAIN, model_type=family)
        found = {name for name in (*TRAITS, "router_bias") if getattr(model, name)}
        assert found == set(traits.split()), family
        assert model.is_gated is (family != "phi")


def test_what_a_gemma_3_leaves_out() -> None:
    """As transformers' `Gemma3TextConfig` has it: 8 heads and 4 KV heads of 256, five layers with a window of 4,096 and
    one without, 262,208 words that are embedding and head at once, 131,072 tokens."""
    given = {"model_type": "gemma3_text", "hidden_size": 2304, "num_hidden_layers": 7, "intermediate_size": 9216}
    model = parse_config(given, name="mine", where="config.json")
    assert (model.num_heads, model.num_kv_heads, model.head_dim) == (8, 4, 256)
    assert (model.vocab_size, model.tied_embeddings, model.max_context_tokens) == (262_208, True, 131_072)
    assert kinds(model).split()[0] == "sssssfs"
    assert model.sliding is not None and model.sliding.window == 4096
    assert model.qk_norm and model.post_norm


def test_what_a_llama_4_leaves_out() -> None:
    """Chunks of 8,192 tokens, but for every fourth layer."""
    model = read(PLAIN, model_type="llama4_text")
    assert kinds(model).split()[0] == "sssfss"
    assert model.sliding is not None and model.sliding.window == 8192


def test_layers_are_bounded() -> None:
    assert read(PLAIN, num_hidden_layers=10_000).num_layers == 10_000
    with pytest.raises(ConfigError, match="at most 10000"):
        read(PLAIN, num_hidden_layers=10_001)
    with pytest.raises(ConfigError, match="lacks"):
        parse_config({"model_type": "llama"}, name="mine", where="config.json")


def test_parameters_of_a_small_model() -> None:
    """Embedding and head 1000 x 64; attention (8 + 2 x 4) x 8 x 64 and 64 x 64; MLP 3 x 64 x 96; two norms of 64."""
    model = read(PLAIN)
    layer = 16 * 8 * 64 + 64 * 64 + 3 * 64 * 96 + 2 * 64
    assert model.num_parameters == 2 * 64_000 + 6 * layer + 64
    assert read(PLAIN, tie_word_embeddings=True).num_parameters == 64_000 + 6 * layer + 64
    sparse = layer - 3 * 64 * 96 + 8 * 64 + 8 * 3 * 64 * 24
    assert read(EXPERTS).num_parameters == 2 * 64_000 + 6 * sparse + 64
    assert read(EXPERTS).num_active_parameters == 2 * 64_000 + 6 * (sparse - 6 * 3 * 64 * 24) + 64


def test_weights_of_a_rank() -> None:
    """Two ranks hold half of everything but norms; eight hold one expert each where experts lie whole."""
    model = read(EXPERTS)
    norms, router = 2 * 64, 8 * 64
    attention, experts = 16 * 8 * 64 + 64 * 64, 8 * 3 * 64 * 24
    found = model.weight_bytes_of_stage(Parallelism(tensor_parallel=2), 0, "bf16")
    ends = 64_000 + 64
    assert found == 2 * (6 * (norms + router + attention / 2 + experts / 2) + ends)
    whole = Parallelism(data_parallel=8, expert_parallel=True)
    assert model.weight_bytes_of_stage(whole, 0, "bf16") == 2 * (
        6 * (norms + router + attention + experts / 8) + 2 * 64_000 + 64
    )
    first, last = (model.weight_bytes_of_stage(Parallelism(pipeline_parallel=2), stage, "bf16") for stage in range(2))
    each = 3 * (norms + router + attention + experts)
    assert (first, last) == (2 * (each + 64_000), 2 * (each + 64_064))


@pytest.mark.parametrize(
    ("kind", "indexer", "more"),
    [
        ("sliding", 0, 0),
        # Values and gates of one entry from 64 each, 128 positions and a norm, 32 wide.
        ("compressed", 0, 32 * (2 * 64 + 128) + 32),
        # The same twice for entries and for index keys, of 4 tokens; the indexer's 4 heads of 8, and their weights.
        ("compressed_sparse", 16 * 4 * 8, 2 * 32 * (2 * 64 + 4) + 32 + 2 * 8 * (2 * 64 + 4) + 8 + 64 * 4),
    ],
)
def test_weights_of_compressed_attention(kind: Any, indexer: int, more: int) -> None:
    """Down to 16 for queries and to the one key, up to 8 heads of 32; back through 4 groups of 12. The norms of the
    layer, of queries and of the key, and a sink per head. Two streams are mixed by 2 x (2 + 2) numbers, each from both,
    with a bias, and by three scales, at both halves of the layer."""
    model = read(COMPRESSED)
    assert kinds(model).split()[0] == "scc"
    counts: dict[str, int] = {}
    for one in attention_weights(model, kind):
        counts[one.group] = counts.get(one.group, 0) + one.count
    assert counts["attention"] == 64 * (16 + 32) + 16 * 8 * 32
    assert counts["attention_output"] == 8 * 32 * 12 + 4 * 12 * 64
    assert counts.get("indexer", 0) == indexer
    assert counts["other"] == 64 + 16 + 32 + 8 + more + 2 * (8 * (2 * 64 + 1) + 3)
    cut = {(one.group, one.count, one.ways) for one in attention_weights(model, kind) if one.ways != 1}
    every = {("attention", 4096, None), ("attention_output", 3072, None), ("attention_output", 3072, 4)}
    assert cut == every, "all else lies on every rank"


LATENT: dict[str, Any] = {
    **EXPERTS, "model_type": "deepseek_v3", "q_lora_rank": 16, "kv_lora_rank": 12, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6, "v_head_dim": 10, "n_shared_experts": 1, "index_n_heads": 4, "index_head_dim": 8,
    "index_topk": 5,
}  # fmt: skip


def listed(found: Iterable[Weights]) -> list[tuple[str, int, int | None]]:
    return [(one.group, one.count, one.ways) for one in found]


def test_weights_of_latent_attention_and_its_indexer() -> None:
    """Queries go down to 16 and up to 8 heads of 6 + 4, keys and values down to 12 and up to 8 heads of 6 + 10, with
    4 that turn for all heads. The indexer has 4 heads of 8, a key of 8 with its norm, and a weight for every head."""
    assert listed(attention_weights(read(LATENT), "full")) == [
        ("other", 64, 1),
        ("attention", 64 * 16, 1), ("other", 16, 1), ("attention", 16 * 80, None),
        ("attention", 64 * (12 + 4), 1), ("other", 12, 1), ("attention", 12 * 8 * (6 + 10), None),
        ("attention_output", 8 * 10 * 64, None),
        ("indexer", 16 * 4 * 8 + 64 * 8, 1), ("other", 64 * 4 + 2 * 8, 1),
    ]  # fmt: skip
    assert listed(mlp_weights(read(LATENT), "experts")) == [
        ("other", 64, 1), ("router", 8 * 64, 1), ("other", 8, 1), ("routed_experts", 8 * 3 * 64 * 24, None),
        ("shared_experts", 3 * 64 * 24, None), ("router", 0, 1),
    ]  # fmt: skip
    active = listed(mlp_weights(read(LATENT), "experts", active=True))
    assert active[3] == ("routed_experts", 2 * 3 * 64 * 24, None)


@pytest.mark.parametrize(
    ("kind", "projected"),
    [
        # A step and a decay for each of 4 heads; a norm as wide as a head.
        ("gated_delta_net", [("linear_attention", 7 * (2 * 20 + 2 * 4), None), ("other", 5, 1)]),
        # A step for each head; the convolution's bias over 32 channels, skip connections of 4 heads, a norm over all.
        ("mamba2", [("linear_attention", 7 * (2 * 20 + 4), None), ("other", 32 + 4 + 20, None)]),
        # Values and a step for each head; decay and gate down to 5 and up to the 6 of keys and the 20 of values.
        ("kda", [("linear_attention", 7 * (20 + 4), None), ("linear_attention", 2 * 7 * 5, 1),
                 ("linear_attention", 5 * (6 + 20), None), ("other", 5, 1)]),
    ],
)  # fmt: skip
def test_weights_of_linear_attention(kind: Any, projected: list[tuple[str, int, int | None]]) -> None:
    """Two key heads of 3 and four value heads of 5 in a model 7 wide: a convolution over 4 tokens of 6 + 6 + 20."""
    linear = LinearAttention(kind=kind, num_key_heads=2, num_value_heads=4, key_dim=3, value_dim=5)
    decays = 6 if kind == "kda" else 4
    assert listed(_linear(linear, 7)) == [
        ("other", 32 * 4 + 4 + decays, None), ("linear_attention", 7 * 2 * 6, 2), *projected,
        ("linear_attention", 20 * 7, None),
    ]  # fmt: skip


def test_bytes_of_number_formats() -> None:
    """By their bits; tf32 is multiplied with fewer, but lies in memory as fp32 does. What is shorter than 16 bits and
    has no arithmetic of its own is multiplied in bf16."""
    bits = {"fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp4": 4, "int4": 4}
    assert {name: size / 8 for name, size in bits.items()} == DTYPE_BYTES
    old = device("h100").model_copy(update={"peak_flops": {"bf16": 1e15, "fp32": 1e14}})
    assert [old.flops(name) for name in ("bf16", "fp32", "fp8", "int8", "fp4", "int4")] == [1e15, 1e14] + 4 * [1e15]
    for name in ("fp16", "tf32"):
        with pytest.raises(ConfigError, match=f"no {name} arithmetic"):
            old.flops(name)


def test_kv_of_a_token() -> None:
    """Keys and values of 4 heads of 8 in 6 layers; of 8 ranks each holds one head, some of them twice."""
    model = read(PLAIN)
    assert model.kv_bytes_per_token("bf16") == 6 * 4 * 16 * 2
    assert model.kv_bytes_per_token("fp8", 2) == 6 * 2 * 16
    assert model.kv_bytes_per_token("bf16", 8) == 6 * 1 * 16 * 2
    windows = read(PLAIN, sliding_window=32, sliding_window_pattern=3)
    assert windows.sequence_bytes(100, "bf16") == (2 * 100 + 4 * 32) * 4 * 16 * 2
    assert windows.sequence_bytes(20, "bf16") == 6 * 20 * 4 * 16 * 2


def test_entries_of_compressed_attention() -> None:
    """Of 32 values 8 turn with the position and stay in 16 bits; 8-bit ones have a byte of scale for every 64 begun."""
    one = read(COMPRESSED).compressed
    assert one is not None
    assert one.entry_bytes(32, "bf16") == 24 * 2 + 8 * 2
    assert one.entry_bytes(32, "fp8") == 24 + 8 * 2 + 1
    assert one.entry_bytes(64 + 8, "fp8") == 64 + 8 * 2 + 2
    assert [one.ratio_of(kind) for kind in ("compressed", "compressed_sparse", "sliding")] == [128, 4, 0]
    assert one.state_bytes(32, 8, "compressed") == 2 * 128 * 32 * 4
    assert one.state_bytes(32, 8, "compressed_sparse") == 2 * 4 * 2 * (32 + 8) * 4


def test_tokens_of_a_window() -> None:
    assert [read(PLAIN, **one).window_tokens for one in ({}, {"sliding_window": 32})] == [0, 32]
    assert read(COMPRESSED).window_tokens == 16


def test_degrees_that_heads_allow() -> None:
    """8 query heads; the 4 KV heads are divided, or repeated."""
    assert tensor_degrees(read(PLAIN)) == [1, 2, 4, 8]
    assert tensor_degrees(read(PLAIN, num_attention_heads=12, num_key_value_heads=6), 6) == [1, 2, 3, 6]
    assert tensor_degrees(read(PLAIN), 2) == [1, 2]


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ({"tensor_parallel": 3}, "3"),
        ({"pipeline_parallel": 7}, "too few for 7"),
        ({"data_parallel": 2}, "no experts to share"),
        ({"expert_parallel": True}, "no experts to share"),
    ],
)
def test_cuts_that_do_not_go(cut: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Parallelism(**cut).check(read(PLAIN))


def test_cuts_that_go() -> None:
    Parallelism(tensor_parallel=8, pipeline_parallel=6).check(read(PLAIN))
    Parallelism(tensor_parallel=2, data_parallel=4, expert_parallel=True).check(read(EXPERTS))
    with pytest.raises(ConfigError, match="6 ranks do not divide the 8 experts"):
        Parallelism(tensor_parallel=2, data_parallel=3, expert_parallel=True).check(read(EXPERTS))
    stages = Parallelism(pipeline_parallel=4)
    assert [len(stages.layers_of_stage(read(PLAIN), stage)) for stage in range(4)] == [1, 2, 2, 1]


def test_ranks_of_a_cut() -> None:
    """Five groups of two GPUs in each of three stages: ten GPUs a stage, one stage behind the other."""
    cut = Parallelism(tensor_parallel=2, pipeline_parallel=3, data_parallel=5)
    assert (cut.num_gpus, cut.num_expert_ranks) == (30, 10)
    assert list(cut.tensor_group(2).ranks) == [20, 21]
    assert list(cut.expert_group(1).ranks) == list(range(10, 20))
    assert (list(cut.handover_group(1).ranks), cut.handover_group(1).copies) == ([10, 20], 10)
    assert cut.suited_to(read(EXPERTS)) == cut
    assert cut.suited_to(read(PLAIN)) == Parallelism(tensor_parallel=2, pipeline_parallel=3)


def test_ranks_side_by_side_where_they_fill_their_nodes() -> None:
    """On nodes of 8: all of a node, or every fourth GPU where only two of each take part."""
    node = catalog_node("h100_dgx")
    assert Group.spread(8, 8, node).ranks == range(8)
    assert Group.spread(2, 2, node).ranks == range(2)
    assert Group.spread(8, 2, node).ranks == range(0, 32, 4)


def test_clocks_that_power_caps_leave() -> None:
    """By the share of what lies between idle and the maximum, in straight lines between known points."""
    facts = PowerFacts(idle_w=100.0, max_w=700.0, source="made up")
    points = power_data().clock.points
    assert [clock_under_cap(facts, 100.0 + 600.0 * share) for share, _ in points if share > 0] == pytest.approx(
        [clock for share, clock in points if share > 0]
    )
    (low, slow), (high, fast) = points[-2:]
    assert clock_under_cap(facts, 100.0 + 600.0 * (low + high) / 2) == pytest.approx((slow + fast) / 2)
    with pytest.raises(ConfigError, match="not above what the GPU draws idle"):
        clock_under_cap(facts, 100.0)


def test_the_smallest_plan_of_memory() -> None:
    from gnomon import catalog

    model, device, alone = read(PLAIN), catalog.device("h100"), Parallelism()
    given = {"reserve_bytes": 1e9, "memory_utilization": 0.5, "block_size": 16, "dtype": "bf16"}
    plan = plan_memory(model, device, alone, **given)  # type: ignore[arg-type]
    weights = model.weight_bytes_per_rank(alone, "bf16")
    assert plan.num_kv_blocks == int((0.5 * device.memory_bytes - weights - 1e9) // (16 * 768))
    for planner, room in (
        ("sglang", 0.5 * device.memory_bytes - weights),
        ("trtllm", 0.5 * (device.memory_bytes - weights - 1e9)),
    ):
        assert plan_memory(model, device, alone, planner=planner, **given).num_kv_blocks == int(room // (16 * 768))  # type: ignore[arg-type]
    assert plan_memory(model, device, alone, max_batched_tokens=1, max_sequences=1, max_tokens=1, block_size=1)
    for name in ("max_batched_tokens", "max_sequences", "max_tokens", "block_size"):
        with pytest.raises(ConfigError, match="must be positive"):
            plan_memory(model, device, alone, **{name: 0})  # type: ignore[arg-type]
    for share in (0.0, 1.01):
        with pytest.raises(ConfigError, match="must lie in"):
            plan_memory(model, device, alone, memory_utilization=share)


def test_memory_that_vllm_would_find_in_use() -> None:
    """Beside a fixed part: two bytes of 3 x 96 + 3 x 64 values for each of 100 tokens, and the logits of 10 sequences
    over 1,000 words on the last stage alone."""
    model = read(PLAIN)
    plans = [
        _reserve(model, Parallelism(pipeline_parallel=2), stage, 100, 10) - FIXED_RESERVE_BYTES for stage in (0, 1)
    ]
    assert plans == [2 * 100 * 480, 2 * 100 * 480 + SAMPLER_BYTES_PER_LOGIT * 10 * 1000]
    assert _reserve(read(EXPERTS, moe_intermediate_size=400), Parallelism(tensor_parallel=2), 0, 1, 0) == (
        FIXED_RESERVE_BYTES + 2 * (3 * (2 * 400 // 2) + 3 * 64)
    ), "two experts of a token, on two ranks"


def test_layers_that_draft_lie_on_the_last_stage() -> None:
    """Of three, each with its weights and, in every block, its KV."""
    model, cut = read(PLAIN), Parallelism(pipeline_parallel=2)
    given: dict[str, Any] = {"reserve_bytes": 0.0, "max_tokens": 100, "sequence_tokens": 50, "dtype": "bf16"}
    plain, drafts = (plan_memory(model, device("h100"), cut, draft_layers=count, **given) for count in (0, 3))
    # Half of the layers, and the head (64,000) with the last norm, more than the embedding of the first.
    assert drafts.weight_bytes == model.weight_bytes_of_stage(cut, 1, "bf16") + 3 * model.drafting_layer_bytes(
        cut, "bf16"
    )
    assert plain.block_bytes == 16 * 3 * 4 * 16 * 2, "16 tokens in 3 layers"
    each = model.drafting_sequence_bytes(50, "bf16", 1) / 50
    assert drafts.block_bytes == pytest.approx(plain.block_bytes + 16 * 3 * each)
    both = plan_memory(model, device("h100"), Parallelism(), draft=model, **given)
    assert both.weight_bytes == 2 * model.weight_bytes_per_rank(Parallelism(), "bf16")
    assert both.block_bytes == 2 * 2 * plain.block_bytes


def test_the_fewest_ranks_that_would_fit_are_named() -> None:
    """Four ranks leave room for a block and a byte beside what running takes; two do not."""
    model, gpu = read(PLAIN), device("h100")
    weights = {ranks: model.weight_bytes_per_rank(Parallelism(tensor_parallel=ranks), "bf16") for ranks in (1, 2, 4)}
    reserve = 0.5 * gpu.memory_bytes - weights[4] - 16 * 768 - 1
    given: dict[str, Any] = {"memory_utilization": 0.5, "block_size": 16, "dtype": "bf16"}
    with pytest.raises(DoesNotFitError, match="Tensor parallelism 4 would fit") as raised:
        plan_memory(model, gpu, Parallelism(), reserve_bytes=reserve, **given)
    missing = weights[1] - weights[4] - 1
    assert size(missing) in str(raised.value)
    with pytest.raises(DoesNotFitError, match="Tensor parallelism 8 would fit"):
        plan_memory(model, gpu, Parallelism(), reserve_bytes=reserve + 1, **given)


@pytest.mark.parametrize(
    ("asked", "published"),
    [
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3"),
        ("deepseek-r1", "deepseek-ai/DeepSeek-R1"),  # Another model of the same entry.
        ("llama-3-8b", "meta-llama/Meta-Llama-3-8B"),
    ],
)
def test_a_model_is_published_under_the_name_it_was_asked_by(asked: str, published: str) -> None:
    known = MODELS.resolve(asked)
    assert known is not None
    assert _published_as(asked, MODELS[known]) == published


@pytest.mark.parametrize(
    ("bits", "size", "name", "each"),
    [
        (8, 128, "int8_weights", 1.0), (4, 128, "int4", 0.5 + 2.5 / 128), (4, 32, "int4_group32", 0.5 + 2.0 / 32),
        (4, 64, "int4_group64", 0.5 + 2.5 / 64), (4, 1, "int4_group1", 3.0), (4, 0, "int4_rows", 0.5),
        (4, -1, "int4_rows", 0.5),
    ],
)  # fmt: skip
def test_integers_have_scales_by_groups(bits: int, size: int, name: str, each: float) -> None:
    found = quantization._integers(bits, size)
    assert (found.name, found.product) == (name, "bf16")
    assert found.bytes_per_weight == pytest.approx(each, rel=0.02)


def _group(bits: int, kind: str) -> dict[str, Any]:
    return {"config_groups": {"any": {"weights": {"num_bits": bits, "type": kind}}}}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"quant_method": "fp8"}, "fp8"), ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "mxfp4"}, "mxfp4"), ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8_weights"), ({"quant_method": "awq", "bits": 4, "group_size": 64},
        "int4_group64"), ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8_weights"), ({"quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "awq", "bits": 3}, None), ({"quant_method": "bitsandbytes"}, None),
        ({"quant_method": "any", "bits": 4}, None), ({"quant_algo": "any"}, None), (_group(6, "float"), None),
        (_group(16, "float"), None), (_group(3, "int"), None), (_group(16, "int"), None), (_group(4, "int"), "int4"),
    ],
)  # fmt: skip
def test_formats_of_checkpoints_by_name(config: dict[str, Any], name: str | None) -> None:
    if name is None:
        with pytest.raises(ConfigError, match="not known"):
            quantization._format(config, "here")
    else:
        assert quantization._format(config, "here").name == name


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None), ({"kv_cache_quant_algo": "FP8"}, "fp8"), ({"kv_cache_quant_algo": "int8"}, "int8"),
        ({"kv_cache_scheme": {"num_bits": 8}}, "fp8"), ({"kv_cache_scheme": {"num_bits": 4}}, "fp4"),
        ({"kv_cache_scheme": {"type": "float"}}, "fp8"), ({"kv_cache_scheme": {"num_bits": 6}}, None),
        ({"kv_cache_quant_algo": "NVFP4"}, "fp4"),
    ],
)  # fmt: skip
def test_formats_of_kv_in_checkpoints(config: dict[str, Any], expected: str | None) -> None:
    assert quantization._kv_dtype(config) == expected
