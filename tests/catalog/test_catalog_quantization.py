"""Number formats of checkpoints: read from their files and names, and weighed against their published sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gnomon import catalog
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.core.units import GIB

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512,
}  # fmt: skip
MOE = LLAMA | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}


@pytest.mark.parametrize(
    ("name", "published_bytes", "mtp_bytes"),
    [
        ("deepseek-v3", 688.6e9, 1.0),  # Its files on Hugging Face, with the MTP layer and its embedding and head.
        ("deepseek-v4-pro", 865e9, 0.55),  # As downloaded, with its MTP layer, whose experts are in FP4 too.
        ("deepseek-v4-flash", 160e9, 0.55),
        ("gpt-oss-120b", 60.8 * GIB, 0.0),  # gpt-oss model card, table 1: checkpoint size.
        ("gpt-oss-20b", 12.8 * GIB, 0.0),
        ("moonshotai/Kimi-K2-Thinking", 594e9, 0.0),  # Its files on Hugging Face.
        ("minimax-m2.5", 230e9, 0.0),
        ("Qwen/Qwen3-32B-AWQ", 19.3e9, 0.0),
        ("nvidia/Kimi-K2.5-NVFP4", 591e9, 0.0),  # With 0.9 GB of vision tower.
    ],
)
def test_weight_bytes_are_those_of_the_published_files(name: str, published_bytes: float, mtp_bytes: float) -> None:
    model = catalog.model(name)
    mtp = mtp_bytes * (model.num_mtp_parameters + 2 * 2 * model.num_mtp_layers * model.num_embedding_parameters)
    assert model.weight_bytes_per_rank(catalog.Parallelism()) + mtp == pytest.approx(published_bytes, rel=0.005)


@pytest.mark.parametrize(
    ("name", "called", "scheme", "kv_dtype"),
    [
        ("deepseek-r1", "deepseek-r1", "fp8_block", None),
        ("llama-3-8b", "llama-3-8b", "bf16", None),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b", "fp8_block", None),
        ("Qwen/Qwen3-32B-AWQ", "qwen3-32b", "int4", None),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.3-70b-instruct", "fp8", None),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", "llama-3.1-70b", "fp8", "fp8"),
        ("nvidia/DeepSeek-V3.1-NVFP4", "deepseek-v3.1", "nvfp4_mlp_and_output", "fp8"),
        ("nvidia/DeepSeek-R1-0528-FP4-v2", "deepseek-r1-0528", "nvfp4_mlp_and_output", None),
        ("openai/gpt-oss-20b", "gpt-oss-20b", "mxfp4", None),
    ],
)
def test_a_name_says_how_the_checkpoint_is_quantised(name: str, called: str, scheme: str, kv_dtype: str | None) -> None:
    model = catalog.model(name)
    assert (model.name, model.checkpoint.name, model.checkpoint.kv_dtype) == (called, scheme, kv_dtype)
    assert model.kv_precision() == (kv_dtype or "bf16")


@pytest.mark.parametrize(
    ("name", "dtype", "scheme"),
    [
        ("llama-3-8b", "auto", "bf16"),
        ("deepseek-v3", "auto", "fp8_block"),
        ("deepseek-v3", "fp8", "fp8_block"),  # Its own checkpoint is in fp8.
        ("deepseek-v3", "bf16", "bf16"),
        ("deepseek-v3", "nvfp4", "nvfp4_mlp_and_output"),  # As NVIDIA publishes it.
        ("qwen3.5-397b-a17b", "nvfp4", "nvfp4_experts"),
        ("llama-3-8b", "nvfp4", "nvfp4"),
        ("llama-3-8b", "fp8", "fp8"),
        ("gpt-oss-20b", "fp4", "mxfp4"),
        ("llama-3.1-405b", "fp8", "fp8"),  # NVIDIA's, as training in FP8; Meta's has a scheme of its own.
        ("llama-3.1-405b", "fp8_mlp", "fp8_mlp"),
        ("meta-llama/Llama-3.1-405B-Instruct-FP8", "fp8", "fp8_mlp"),
    ],
)
def test_dtype_means_the_published_checkpoint_where_there_is_one(name: str, dtype: str, scheme: str) -> None:
    assert catalog.model(name).precision(dtype).name == scheme


def test_what_stays_in_16_bits_stays() -> None:
    model = catalog.model("nvidia/DeepSeek-V3.1-NVFP4")
    assert model.precision()["attention"].name == "bf16"
    assert model.precision()["attention_output"].name == "nvfp4"
    assert model.precision()["routed_experts"].bytes_per_weight == 0.5625
    assert model.precision()["routed_experts"].product == "fp4"
    for group in ("router", "embedding", "head", "other"):
        assert model.precision()[group].name == "bf16"


def read(tmp_path: Path, config: dict[str, Any], **quantization: Any) -> catalog.Quantization:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"quantization_config": quantization}))
    return catalog.model(path).checkpoint


def test_every_method_is_read(tmp_path: Path) -> None:
    def group(bits: int, kind: str, size: int | None = None, activations: Any = None) -> dict[str, Any]:
        weights = {"num_bits": bits, "type": kind, "group_size": size}
        return {"config_groups": {"group_0": {"weights": weights, "input_activations": activations}}}

    assert read(tmp_path, LLAMA, quant_method="fp8").name == "fp8"
    assert read(tmp_path, LLAMA, quant_method="fp8", weight_block_size=[128, 128]).name == "fp8_block"
    assert read(tmp_path, LLAMA, quant_method="awq", bits=4, group_size=128).name == "int4"
    assert read(tmp_path, LLAMA, quant_method="gptq", bits=4, group_size=64)["dense_mlp"].bytes_per_weight == 0.5390625
    assert read(tmp_path, LLAMA, quant_method="gptq", bits=4, group_size=-1)["dense_mlp"].bytes_per_weight == 0.5
    assert read(tmp_path, LLAMA, quant_method="compressed-tensors", **group(8, "float", None, {})).name == "fp8"
    assert read(tmp_path, LLAMA, quant_method="compressed-tensors", **group(8, "int", None, {})).name == "int8"
    stored = read(tmp_path, LLAMA, quant_method="compressed-tensors", **group(8, "int"))
    assert (stored["dense_mlp"].name, stored["dense_mlp"].product) == ("int8_weights", "bf16")
    assert read(tmp_path, MOE, quant_method="mxfp4").name == "mxfp4"
    modelopt = read(tmp_path, LLAMA, quant_method="modelopt", quant_algo="FP8", kv_cache_scheme={"num_bits": 8})
    assert (modelopt.name, modelopt.kv_dtype) == ("fp8", "fp8")


@pytest.mark.parametrize(
    ("weights", "activations", "expected"),
    [
        ({"num_bits": 8, "type": "float"}, {}, "fp8"),
        ({"num_bits": 8, "type": "float", "strategy": "block"}, {}, "fp8_block"),
        ({"num_bits": 4, "type": "float", "group_size": 32}, {}, "mxfp4"),
        ({"num_bits": 4, "type": "float", "group_size": 16}, {}, "nvfp4"),
        ({"num_bits": 4, "type": "float", "group_size": 16}, None, "nvfp4_weights"),
        ({"num_bits": 8, "type": "int"}, {}, "int8"),
        ({"num_bits": 8, "type": "int"}, None, "int8_weights"),
        ({"num_bits": 4, "type": "int"}, None, "int4"),
        ({"num_bits": 4, "type": "int", "group_size": 32}, {}, "int4_group32"),
    ],
)
def test_groups_of_compressed_tensors(tmp_path: Path, weights: Any, activations: Any, expected: str) -> None:
    groups = {"group_0": {"weights": weights, "input_activations": activations}}
    found = read(tmp_path, LLAMA, quant_method="compressed-tensors", config_groups=groups)
    assert found["dense_mlp"].name == expected


def test_groups_of_a_scale_each(tmp_path: Path) -> None:
    """Half a byte a weight, and for each group two bytes of scale and half a byte of zero; one scale for a whole row is
    not counted."""
    sizes = {-1: 0.5, 1: 3.0, 64: 0.5 + 2.5 / 64}
    for size, expected in sizes.items():
        found = read(tmp_path, LLAMA, quant_method="gptq", bits=4, group_size=size)["dense_mlp"]
        assert found.bytes_per_weight == expected
    assert read(tmp_path, LLAMA, quant_method="gptq", bits=4, group_size=32).name == "int4_group32"
    assert read(tmp_path, LLAMA, quant_method="gptq", bits=8, group_size=64)["dense_mlp"].name == "int8_weights"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"kv_cache_scheme": {"num_bits": 8}}, "fp8"),
        ({"kv_cache_scheme": {"num_bits": 4}}, "fp4"),
        ({"kv_cache_scheme": {"type": "float"}}, "fp8"),
        ({"kv_cache_scheme": {"num_bits": 16}}, None),
        ({"kv_cache_quant_algo": "int8"}, "int8"),
        ({"kv_cache_quant_algo": "NVFP4"}, "fp4"),
    ],
)
def test_number_formats_of_the_kv_cache(tmp_path: Path, given: dict[str, Any], expected: str | None) -> None:
    assert read(tmp_path, LLAMA, quant_method="modelopt", quant_algo="FP8", **given).kv_dtype == expected


def test_left_out_modules_are_found_by_name_glob_and_expression(tmp_path: Path) -> None:
    names = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(4)]
    by_name = read(tmp_path, MOE, quant_method="fp8", modules_to_not_convert=["lm_head", *names])
    assert (by_name["attention"].name, by_name["attention_output"].name) == ("bf16", "fp8")
    by_glob = read(tmp_path, MOE, quant_algo="NVFP4", ignore=["model.language_model.layers.*.self_attn*"])
    assert (by_glob["attention"].name, by_glob["attention_output"].name) == ("bf16", "bf16")
    expressions = ["re:.*self_attn.*", "re:.*shared_experts.*"]
    by_expression = read(tmp_path, MOE, quant_method="fp8", ignore=expressions)
    assert [by_expression[group].name for group in ("attention", "shared_experts", "routed_experts")] == [
        "bf16",
        "bf16",
        "fp8",
    ]
    few = read(tmp_path, MOE, quant_method="fp8", modules_to_not_convert=names[:1])
    assert few["attention"].name == "fp8", "a group takes the format of most of its layers"


def test_formats_may_differ_by_layer_list(tmp_path: Path) -> None:
    rules = {f"model.layers.{layer}.mlp.experts": {"quant_algo": "W4A16_NVFP4"} for layer in range(4)}
    rules |= {f"model.layers.{layer}.self_attn.q_proj": {"quant_algo": "FP8"} for layer in range(4)}
    mixed = read(tmp_path, MOE, quant_algo="MIXED_PRECISION", quantized_layers=rules)
    assert [mixed[group].name for group in ("routed_experts", "attention", "attention_output")] == [
        "nvfp4_weights",
        "fp8",
        "bf16",
    ]


def test_hf_quant_config_beside_a_config_json_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    quantised = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantised))
    assert (catalog.model(tmp_path).checkpoint.name, catalog.model(tmp_path).kv_precision()) == ("fp8", "fp8")


def test_mistakes_are_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown dtype 'fp9'.*fp8"):
        catalog.model("llama-3-8b").precision("fp9")
    with pytest.raises(ConfigError, match="llama-3-8b has none"):
        catalog.model("llama-3-8b").precision("mxfp4")
