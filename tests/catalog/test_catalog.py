"""Devices, nodes and models: names, published sizes, parallelism, and the errors of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnomon import catalog
from gnomon.catalog.devices import DEVICES
from gnomon.catalog.model_library import MODELS
from gnomon.catalog.nodes import NODES
from gnomon.core.errors import ConfigError, UnknownNameError

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize("name", catalog.model_names())
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    model, entry = catalog.model(name), MODELS[name]
    assert entry.published_parameters or entry.published_parameters_with_mtp
    if entry.published_parameters:
        assert model.num_parameters == pytest.approx(entry.published_parameters, rel=0.005)
    if entry.published_parameters_with_mtp:
        all_of_it = model.num_parameters + model.num_mtp_parameters
        with_copies = all_of_it + 2 * model.num_mtp_layers * model.num_embedding_parameters
        counts = [pytest.approx(count, rel=0.005) for count in (all_of_it, with_copies)]
        assert entry.published_parameters_with_mtp in counts


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # Totals of the safetensors files as Hugging Face listed them in September 2026.
        ("gemma-3-1b", 999_885_952),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("minimax-m2.5", 228_689_764_864),  # Of MiniMax-M2.7, which has its shape.
        ("mistral-7b", 7_248_023_552),
        ("mistral-small-24b", 23_572_403_200),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-235b-a22b", 235_093_634_560),
    ],
)
def test_counts_are_those_of_the_files_to_the_last_parameter(name: str, parameters: int) -> None:
    assert catalog.model(name).num_parameters == parameters


@pytest.mark.parametrize(
    ("name", "copies", "parameters"),
    [  # GLM's MTP layer brings its own embedding and head; Qwen's uses the model's.
        ("glm-4.5", 2, 358_337_791_296),
        ("glm-4.5-air", 2, 110_468_824_832),
        ("qwen3-next-80b-a3b", 0, 81_324_862_720),
    ],
)
def test_counts_with_mtp_layers_are_those_of_the_files(name: str, copies: int, parameters: int) -> None:
    model = catalog.model(name)
    assert model.num_mtp_layers == 1
    with_mtp = model.num_parameters + model.num_mtp_parameters
    assert with_mtp + copies * model.num_embedding_parameters == parameters


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 12.9),
        ("deepseek-v3", 37.5),
        ("qwen3-30b-a3b", 3.35),
        ("qwen3-235b-a22b", 22.2),
        ("gpt-oss-120b", 5.13 + 0.58),  # Its card leaves out the embedding.
        ("gpt-oss-20b", 3.61 + 0.58),
        ("nemotron-3-nano-30b-a3b", 3.58),
        ("nemotron-3-super-120b-a12b", 12.7),
        ("gemma-4-26b-a4b", 3.8),
        ("llama-4-maverick", 17.2),
        ("deepseek-v4-pro", 49 + 0.93),  # Its card leaves out the embedding, and gives two digits.
    ],
)
def test_active_parameters(name: str, billions: float) -> None:
    assert catalog.model(name).num_active_parameters == pytest.approx(billions * 1e9, rel=0.01)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("a100", "a100-80gb"),
        ("A100", "a100-80gb"),
        ("RTXPRO6000", "rtx-pro-6000"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
    ],
)
def test_devices_answer_to_their_aliases(alias: str, name: str) -> None:
    assert catalog.device(alias).name == name


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b-2507"),
        ("codellama/CodeLlama-34b-Instruct-hf", "codellama-34b"),
        ("LLaMA_3.1-8B", "llama-3.1-8b"),
    ],
)
def test_models_answer_to_their_hugging_face_names(alias: str, name: str) -> None:
    assert catalog.model(alias).name == name


@pytest.mark.parametrize(
    ("asked", "called", "hf_id"),
    [
        ("deepseek-v3", "deepseek-v3", "deepseek-ai/DeepSeek-V3"),
        ("deepseek-r1", "deepseek-r1", "deepseek-ai/DeepSeek-R1"),
        ("deepseek-v3.1", "deepseek-v3.1", "deepseek-ai/DeepSeek-V3.1"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1-0528", "deepseek-ai/DeepSeek-R1-0528"),
        ("nvidia/DeepSeek-R1-0528-FP4-v2", "deepseek-r1-0528", "nvidia/DeepSeek-R1-0528-FP4-v2"),
        ("kimi-k2-thinking", "kimi-k2-thinking", "moonshotai/Kimi-K2-Thinking"),
    ],
)
def test_models_of_one_shape_keep_the_name_they_were_asked_by(asked: str, called: str, hf_id: str) -> None:
    found = catalog.model(asked)
    assert (found.name, found.hf_id) == (called, hf_id)


def test_messages_name_the_model_that_was_asked_for() -> None:
    with pytest.raises(ConfigError, match="heads of deepseek-r1"):
        catalog.Parallelism(tensor_parallel=3).check(catalog.model("deepseek-r1"))


def test_every_entry_is_named_after_its_file_and_says_where_its_facts_come_from() -> None:
    for library in (DEVICES, NODES, MODELS):
        for name in library.names:
            assert library[name].name == name
            assert all(text.strip() for text in library[name].sources.values())
    for name in catalog.device_names():
        facts = {
            "peak_flops",
            "memory_gb",
            "memory_bytes",
            "bandwidth_bytes_s",
            "num_sms",
            "l2_bytes",
            "price_per_hour",
        }
        assert facts <= set(catalog.device(name).sources)


def test_every_device_comes_in_a_node_and_every_node_has_a_device() -> None:
    for name in catalog.device_names():
        assert catalog.default_node(catalog.device(name)).device == name
    for name in catalog.node_names():
        node = catalog.node(name)
        assert catalog.device(node.device).name == node.device
        assert (node.far_link is not None) == (node.topology == "pairwise")


def test_roofline_has_at_most_ten_constants() -> None:
    assert len(catalog.RooflineConstants.model_fields) <= 10


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'h100'"):
        catalog.device("h10")
    with pytest.raises(ConfigError, match=r"unknown model 'lama-3-8b'.*llama-3-8b.*config\.json"):
        catalog.model("lama-3-8b")


def test_a_config_json_is_read_from_a_file_or_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    model = catalog.model(tmp_path)
    assert model == catalog.model(tmp_path / "config.json")
    attention = 64 * 64 * 2 + 2 * 64 * 32
    assert model.num_parameters == 2 * (attention + 3 * 64 * 128 + 2 * 64) + 2 * 100 * 64 + 64
    assert (model.head_dim, model.is_gated, model.tied_embeddings) == (16, True, False)


def test_what_is_not_modelled_is_noted(tmp_path: Path) -> None:
    assert not any(catalog.model(name).notes for name in catalog.model_names())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "seeing", "vision_config": {"a": 1}, "text_config": LLAMA}))
    assert "images are left out" in catalog.model(path).notes[0]
    path.write_text(json.dumps(LLAMA | {"model_type": "novelty"}))
    assert "'novelty' is not known" in catalog.model(path).notes[0]


def test_a_device_of_ones_own_is_a_file(tmp_path: Path) -> None:
    from gnomon.core.config import save

    path = tmp_path / "mine.yaml"
    save(catalog.device("h100").model_copy(update={"name": "mine", "price_per_hour": 1.0}), path)
    assert catalog.device(str(path)).price_per_hour == 1.0
    path.write_text(path.read_text().replace("num_sms: 132", "num_sms: -1"))
    with pytest.raises(ConfigError, match=r"mine\.yaml:\d+"):
        catalog.device(str(path))


def test_missing_keys_are_all_named_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({k: v for k, v in LLAMA.items() if k not in ("hidden_size", "vocab_size")}))
    with pytest.raises(ConfigError, match=r"config\.json: .*'hidden_size' .*'vocab_size'"):
        catalog.model(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": -64}, "positive whole number"),
        ({"num_hidden_layers": 0}, "num_layers = 0"),
        ({"vocab_size": "many"}, "vocab_size = 'many'"),
        ({"num_attention_heads": 0}, "positive whole number"),
        ({"num_local_experts": "8"}, "num_local_experts must be a whole number"),
        ({"num_local_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok = 9 makes no sense with 8 experts"),
        ({"kv_lora_rank": 512}, "lacks 'qk_rope_head_dim'"),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": -1}, r"mla\.v_dim = -1"),
        ({"text_config": [1]}, "text_config"),
        ({"layer_types": ["full_attention", "holographic_attention"]}, "layer_types has 'holographic_attention'"),
        ({"layer_types": ["full_attention", "linear_attention"]}, r"linear\.num_key_heads = None"),
        ({"quantization_config": "fp8"}, "of a kind that makes no sense"),
        ({"quantization_config": {"quant_method": "fp8", "ignore": ["re:("]}}, r"'\(' is no regular expression"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": "x"}}, "makes no sense"),
        ({"layer_types": 5}, "layer_types must be a list, not 5"),
        ({"layers_block_type": 5}, "layers_block_type must be a list"),
        ({"linear_attn_config": "kda"}, "linear_attn_config must be a JSON object, not 'kda'"),
        ({"num_hidden_layers": 10**9}, "at most 10000"),
        ({"quantization_config": {"quant_method": "guess"}}, "quant_method 'guess' is not known"),
    ],
)
def test_values_that_make_no_sense_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | change))
    with pytest.raises(ConfigError, match=message):
        catalog.model(path)


@pytest.mark.parametrize("text", ["{", "[1, 2]"])
def test_files_that_are_not_a_configuration_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        catalog.model(path)
    with pytest.raises(ConfigError, match="no such file"):
        catalog.model(tmp_path / "missing.json")


def test_layers_are_split_over_stages_without_loss() -> None:
    model = catalog.model("deepseek-v3")
    for stages in (1, 2, 3, 4, 7, 61):
        cut = catalog.Parallelism(pipeline_parallel=stages)
        layers = [layer for stage in range(stages) for layer in cut.layers_of_stage(model, stage)]
        assert layers == list(range(61))
        sizes = [len(cut.layers_of_stage(model, stage)) for stage in range(stages)]
        assert max(sizes) - min(sizes) <= 1
        assert sizes[-1] == min(sizes)


@pytest.mark.parametrize(
    ("name", "degrees", "message"),
    [
        ("llama-3-8b", {"tensor_parallel": 3}, r"does not divide the 32 attention heads.*1, 2, 4, 8, 16, 32"),
        ("qwen2.5-7b", {"tensor_parallel": 7}, "neither divides nor is a multiple of the 4 KV heads"),
        ("qwen3.5-27b", {"tensor_parallel": 24}, "neither divides nor is a multiple of the 16 key heads"),
        ("qwen3.5-27b", {"tensor_parallel": 3}, "neither divides nor is a multiple of the 4 KV heads"),
        ("llama-3-8b", {"pipeline_parallel": 33}, "32 layers"),
        ("llama-3-8b", {"expert_parallel": True}, "no experts"),
        ("llama-3-8b", {"data_parallel": 2}, "num_replicas"),
        ("mixtral-8x7b", {"tensor_parallel": 16, "expert_parallel": True}, "do not divide the 8 experts"),
    ],
)
def test_parallelism_that_does_not_suit_the_model_is_refused(
    name: str, degrees: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        catalog.Parallelism(**degrees).check(catalog.model(name))


def test_few_kv_heads_are_replicated() -> None:
    model = catalog.model("qwen2.5-7b")
    catalog.Parallelism(tensor_parallel=28 // 7).check(model)
    assert model.kv_bytes_per_token("bf16", 4) == model.kv_bytes_per_token("bf16", 1) / 4
    assert model.kv_bytes_per_token("bf16", 28) == model.kv_bytes_per_token("bf16", 4)
    assert catalog.model("llama-3-8b").kv_bytes_per_token() == 2 * 32 * 8 * 128 * 2
    assert catalog.model("deepseek-v3").kv_bytes_per_token("bf16", 8) == 61 * 576 * 2


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "llama-3.2-1b"])
def test_weights_of_all_ranks_add_up(name: str) -> None:
    model = catalog.model(name)
    assert model.weight_bytes_per_rank(catalog.Parallelism(), "bf16") == 2 * model.num_parameters
    h, layers, moe = model.hidden_size, model.num_layers, model.num_layers - model.num_dense_layers
    whole = (2 * layers + 1) * h + moe * model.num_experts * (h + model.router_bias)  # Norms and routers.
    if model.mla:  # Projections into the latent space, with their norms.
        whole += layers * ((h + 1) * (model.mla.q_rank + model.mla.kv_rank) + h * model.mla.rope_dim)
    for stages in (1, 2):
        cut = catalog.Parallelism(tensor_parallel=2, pipeline_parallel=stages)
        total = 2 * sum(model.weight_bytes_of_stage(cut, stage, "bf16") for stage in range(stages))
        copied = 2 * model.num_embedding_parameters if model.tied_embeddings and stages > 1 else 0
        assert total == pytest.approx(2 * (model.num_parameters + whole) + copied, rel=1e-9)


def test_tensor_ranks_hold_latent_projections_router_and_norms_whole() -> None:
    model = catalog.model("deepseek-v3")
    ranks = 8
    eight = model.weight_bytes_per_rank(catalog.Parallelism(tensor_parallel=ranks), "bf16")
    latents = 7168 * 1536 + 1536 + 7168 * (512 + 64) + 512  # Ways into the latents of queries and keys; their norms.
    norms, router = 2 * 7168, 256 * (7168 + 1)
    whole = 61 * (latents + norms) + 58 * router
    assert 2 * 61 * latents * 7 / 8 == pytest.approx(1.62e9, rel=0.01)
    split = model.num_parameters - whole
    assert eight == pytest.approx(2 * (whole + split / ranks), rel=1e-5)


def test_expert_ranks_hold_their_share_of_experts_only() -> None:
    model = catalog.model("qwen3-30b-a3b")
    alone = model.weight_bytes_per_rank(catalog.Parallelism())
    shared = model.weight_bytes_per_rank(catalog.Parallelism(data_parallel=4, expert_parallel=True))
    experts = 2 * 48 * 128 * 3 * 2048 * 768
    assert shared == pytest.approx(alone - experts + experts / 4)
