"""Kinds of layers: windows, linear and sparse attention, interleaved experts, and what each keeps of a sequence."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from gnomon import catalog
from gnomon.catalog.huggingface import parse_config
from gnomon.catalog.weights import attention_weights
from gnomon.core.config import build
from gnomon.timing.operators import stage_operators


@pytest.mark.parametrize(
    ("name", "full", "sliding", "linear", "experts", "dense"),
    [
        ("llama-3-8b", 32, 0, 0, 0, 32),
        ("deepseek-v3", 61, 0, 0, 58, 3),
        ("gpt-oss-120b", 18, 18, 0, 36, 0),
        ("gemma-3-27b", 10, 52, 0, 0, 62),
        ("gemma-4-26b-a4b", 5, 25, 0, 30, 0),
        ("llama-4-scout", 12, 36, 0, 48, 0),
        ("llama-4-maverick", 12, 36, 0, 24, 24),
        ("qwen3.5-397b-a17b", 15, 0, 45, 60, 0),
        ("nemotron-3-nano-30b-a3b", 6, 0, 23, 23, 0),  # A layer is a mixer or experts: 52 in all.
        ("kimi-linear-48b-a3b", 7, 0, 20, 26, 1),
    ],
)
def test_every_layer_has_its_kind(name: str, full: int, sliding: int, linear: int, experts: int, dense: int) -> None:
    model = catalog.model(name)
    assert [model.num_attention_layers(kind) for kind in ("full", "sliding", "linear")] == [full, sliding, linear]
    assert model.attention_kind(0) == ("full" if full == model.num_layers else "sliding" if sliding else "linear")
    mlps = [model.mlp_kind(layer) for layer in range(model.num_layers)]
    assert (mlps.count("experts"), mlps.count("dense")) == (experts, dense)


@pytest.mark.parametrize(
    ("name", "kilobytes"),
    [  # DeepSeek, Insights into DeepSeek-V3 (2025), table 1: KV cache per token in bf16.
        ("deepseek-v3", 70.272),
        ("qwen2.5-72b", 327.680),
        ("llama-3.1-405b", 516.096),
    ],
)
def test_kv_bytes_per_token_are_the_published_ones(name: str, kilobytes: float) -> None:
    assert catalog.model(name).kv_bytes_per_token("bf16") == pytest.approx(1000 * kilobytes)


def test_a_million_tokens_of_deepseek_v4_take_the_published_memory() -> None:
    """9.62 GiB in bf16 (release notes): 30 layers of entries for 4 tokens with index keys, 31 of entries for 128."""
    pro = catalog.model("deepseek-v4-pro")
    assert pro.kv_bytes_per_token("bf16") * 2**20 / 2**30 == pytest.approx(9.62, abs=0.005)
    assert pro.kv_bytes_per_token("bf16") == 30 * (1024 + 256) / 4 + 31 * 1024 / 128
    # A sequence also keeps its last 128 tokens in every layer, and the compressors' unfinished entries in 32 bits.
    more = pro.sequence_bytes(1000, "bf16") - 1000 * pro.kv_bytes_per_token("bf16")
    assert more == 61 * 128 * 1024 + 30 * 2 * 4 * 2 * (512 + 128) * 4 + 31 * 2 * 128 * 512 * 4


def test_an_index_adds_one_fp8_key_per_layer() -> None:
    plain, sparse = catalog.model("deepseek-v3"), catalog.model("deepseek-v3.2")
    assert sparse.kv_bytes_per_token("bf16") - plain.kv_bytes_per_token("bf16") == 61 * 132
    assert sparse.kv_bytes_per_token("fp8") - plain.kv_bytes_per_token("fp8") == 61 * 132


def test_windows_keep_their_last_tokens_and_states_do_not_grow() -> None:
    oss = catalog.model("gpt-oss-120b")
    per_layer = 2 * 8 * 64 * 2
    assert oss.kv_bytes_per_token() == 18 * per_layer
    assert oss.sequence_bytes(100) == 36 * 100 * per_layer
    assert oss.sequence_bytes(1000) == 18 * 1000 * per_layer + 18 * 128 * per_layer
    qwen = catalog.model("qwen3.5-397b-a17b")
    state = 64 * 128 * 128 * 4 + 3 * (2 * 16 + 64) * 128 * 2
    assert qwen.state_bytes_per_sequence() == 45 * state
    assert qwen.state_bytes_per_sequence(8) == 45 * state / 8
    assert qwen.sequence_bytes(1000) == 45 * state + 1000 * 15 * 2 * 2 * 256 * 2
    assert oss.state_bytes_per_sequence() == 0


def test_the_planner_spreads_windows_and_states_over_a_sequence() -> None:
    model, device = catalog.model("gpt-oss-120b"), catalog.device("h100")
    one, most = catalog.Parallelism(), model.max_context_tokens
    short = catalog.plan_memory(model, device, one, max_tokens=most, sequence_tokens=128)
    long = catalog.plan_memory(model, device, one, max_tokens=most, sequence_tokens=128 * 1024)
    assert short.block_bytes == 16 * 36 * 2048
    assert long.block_bytes == pytest.approx(16 * 18 * 2048, rel=0.002)
    assert long.num_kv_tokens == pytest.approx(2 * short.num_kv_tokens, rel=0.002)


def test_kinds_with_heads_of_their_own() -> None:
    gemma = catalog.model("gemma-4-31b")
    assert gemma.heads_of("full") == (32, 4, 512, 512)
    assert gemma.heads_of("sliding") == (32, 16, 256, 256)
    assert gemma.kv_bytes_per_layer("bf16") == 2 * 4 * 512 * 2
    keys_only = sum(one.count for one in attention_weights(gemma, "full") if one.ways == 4)
    assert keys_only == 5376 * 4 * 512, "values come from the keys' projection"


def test_kv_projections_and_latent_projections_are_held_whole_where_they_cannot_be_split() -> None:
    latent = {(one.group, one.ways) for one in attention_weights(catalog.model("deepseek-v3"), "full")}
    assert ("attention", 1) in latent
    qwen = catalog.model("qwen3.5-397b-a17b")
    kv = next(one for one in attention_weights(qwen, "full") if one.ways == 2)
    assert kv.per_rank(8) == kv.per_rank(2) == kv.count / 2


@pytest.mark.parametrize("name", catalog.model_names())
def test_every_model_has_an_operator_graph(name: str) -> None:
    operators = stage_operators(catalog.model(name), catalog.Parallelism())
    assert {"embedding", "lm_head"} <= {one.name for one in operators}
    assert all(one.count > 0 for one in operators)


CONFIGS = find_spec("aiconfigurator_core")


@pytest.mark.skipif(CONFIGS is None, reason="needs the extra [silicon] for its collection of config.json files")
def test_published_config_files_are_read() -> None:
    assert CONFIGS is not None and CONFIGS.submodule_search_locations
    folder = Path(CONFIGS.submodule_search_locations[0]) / "model_configs"
    known = {
        "deepseek-ai--DeepSeek-R1": "deepseek-r1",
        "deepseek-ai--DeepSeek-V3.2": "deepseek-v3.2",
        "MiniMaxAI--MiniMax-M2.5": "minimax-m2.5",
        "Qwen--Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
        "Qwen--Qwen3.5-27B": "qwen3.5-27b",
        "openai--gpt-oss-20b": "gpt-oss-20b",
        "zai-org--GLM-5-FP8": "zai-org/GLM-5-FP8",
        "moonshotai--Kimi-K2.5": "kimi-k2.5",
        "google--gemma-4-26B-A4B": "gemma-4-26b-a4b",
        "meta-llama--Llama-4-Maverick-17B-128E-Instruct": "llama-4-maverick",
        "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "nemotron-3-nano-30b-a3b",
        "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": "nemotron-3-ultra-550b-a55b",
        "nvidia--Kimi-K2.5-NVFP4": "nvidia/Kimi-K2.5-NVFP4",
        "nvidia--GLM-5.1-NVFP4": "nvidia/GLM-5.1-NVFP4",
    }
    one = catalog.Parallelism()
    for file, name in known.items():
        config = json.loads((folder / f"{file}_config.json").read_text())
        read, built_in = parse_config(config, name=file, where=file), catalog.model(name)
        assert (read.kinds(), read.num_parameters) == (built_in.kinds(), built_in.num_parameters)
        assert read.attention_layers == built_in.attention_layers
        assert read.checkpoint == built_in.checkpoint
        assert read.weight_bytes_per_rank(one) == built_in.weight_bytes_per_rank(one)


def test_a_scenario_plans_by_the_mean_length_of_its_requests() -> None:
    from gnomon.serving.scenario import Scenario
    from gnomon.serving.scenario.pools import resolve
    from gnomon.workload import generate

    def blocks(output_tokens: int, model: str) -> int:
        lengths = {"distribution": "fixed", "prompt": 512, "output": output_tokens}
        scenario = build(Scenario, {"model": model, "device": "h200", "workload": {"lengths": lengths}})
        return resolve(scenario, generate(scenario.workload, 0))[0].num_kv_blocks

    assert blocks(8192, "qwen3.5-27b") > 1.5 * blocks(512, "qwen3.5-27b"), "a state is spread over more tokens"
    assert blocks(8192, "qwen3-32b") == blocks(512, "qwen3-32b")


def test_the_listing_counts_every_layer_with_attention(cli) -> None:
    rows = {row.split()[0]: row for row in cli("catalog", "models").output.splitlines() if row.strip()}
    assert "41 sparse, 2 sliding" in rows["deepseek-v4-flash"]
    assert "12 full, 36 linear" in rows["qwen3-next-80b-a3b"]
