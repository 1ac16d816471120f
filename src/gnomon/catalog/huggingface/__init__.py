"""A Hugging Face `config.json` as a `Model`."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from gnomon.catalog.attention import MlpKind
from gnomon.catalog.huggingface.attention import FAMILIES, attention_facts, shortest_period
from gnomon.catalog.huggingface.quantization import parse_quantization
from gnomon.catalog.models import Model
from gnomon.core.errors import ConfigError


def mlp_facts(config: Mapping[str, Any], family: str, where: str) -> dict[str, Any]:
    """The model's facts about MLPs and experts."""
    ffn = config.get("intermediate_size") or 0
    if family == "qwen":  # The first Qwen counts gate and up together.
        ffn //= 2
    experts = config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts") or 0
    if experts <= 1:
        return {"ffn_size": ffn, **_pattern(config)}
    active = config.get("num_experts_per_tok") or config.get("top_k_experts") or config.get("num_experts_per_token", 1)
    if not isinstance(active, int) or not 1 <= active <= experts:
        raise ConfigError(f"num_experts_per_tok = {active!r} makes no sense with {experts} experts.", where=where)
    width = config.get("moe_intermediate_size") or ffn
    return {
        "ffn_size": config.get("intermediate_size_mlp") or config.get("dense_intermediate_size") or ffn,
        "num_experts": experts, "experts_per_token": active, "expert_ffn_size": width,
        "expert_hidden_size": config.get("moe_latent_size") or config.get("routed_expert_hidden_size") or 0,
        "shared_ffn_size": _shared(config, family, ffn, width),
        "num_dense_layers": config.get("first_k_dense_replace") or 0, **_pattern(config),
    }  # fmt: skip


def _shared(config: Mapping[str, Any], family: str, ffn: int, width: int) -> int:
    if family == "llama4_text":  # One shared expert, as wide as the others.
        return width
    if family == "gemma4_text":  # The dense MLP runs beside the experts.
        return ffn
    own = config.get("shared_expert_intermediate_size") or config.get("shared_intermediate_size")
    number = config.get("n_shared_experts") or config.get("num_shared_experts") or 0
    return own or number * (config.get("moe_shared_expert_intermediate_size") or width)


def _pattern(config: Mapping[str, Any]) -> dict[str, Any]:
    """Which layers have experts, where that is not "all after the first dense ones"."""
    kinds: list[MlpKind] = []
    num_layers = config["num_hidden_layers"]
    if blocks := config.get("layers_block_type"):
        by_name: dict[str, MlpKind] = {"moe": "experts", "mlp": "dense"}
        kinds = [by_name.get(block, "none") for block in blocks]
    elif (step := config.get("interleave_moe_layer_step", 1)) > 1:
        kinds = ["experts" if (layer + 1) % step == 0 else "dense" for layer in range(num_layers)]
    elif isinstance(flags := config.get("moe_layer_freq"), list):
        kinds = ["experts" if flag else "dense" for flag in flags]
    elif (step := config.get("decoder_sparse_step") or 1) > 1 or config.get("mlp_only_layers"):
        dense = config.get("mlp_only_layers") or ()
        kinds = [
            "experts" if layer not in dense and (layer + 1) % step == 0 else "dense" for layer in range(num_layers)
        ]
    return {"mlp_layers": shortest_period(kinds)} if kinds else {}


FACTS, DEFAULTS = FAMILIES["facts"], FAMILIES["defaults"]
"""What a family's code fixes without saying it, and keys that its files may leave out, by `model_type`."""
_MOST_LAYERS = 10_000


def parse_config(config: Mapping[str, Any], *, name: str, where: str) -> Model:
    """The shape that a `config.json` describes; `where` (its path) goes into errors.

    Read: dense and mixture-of-experts decoders with multi-head, grouped-query, multi-query or multi-head latent
    attention, full, sparse, within windows or linear, and how their weights are quantised. Towers for images and sound
    are left out. An unknown `model_type` is read as a Llama-like decoder from the keys it has, which its notes say.
    """
    whole, config = config, config.get("text_config") or config.get("llm_config") or config
    if not isinstance(config, Mapping):
        raise ConfigError("text_config must be a JSON object.", where=where)
    family = str(config.get("model_type", ""))
    config = {**DEFAULTS.get(family, {}), **{key: value for key, value in config.items() if value is not None}}
    for key in (*FAMILIES["lists"], *FAMILIES["objects"]):
        value, is_list = config.get(key), key in FAMILIES["lists"]
        if value is not None and not isinstance(value, list if is_list else Mapping):
            wanted = "list" if is_list else "JSON object"
            raise ConfigError(f"{key} must be a {wanted}, not {value!r}.", where=where)
    if blocks := _blocks(config):
        config |= {"layers_block_type": blocks, "num_hidden_layers": len(blocks)}
    required = FAMILIES["required"] | (FAMILIES["required_of_mla"] if config.get("kv_lora_rank") else {})
    missing = [key for key in required if config.get(key) is None and not _replaced(config, key)]
    if missing:
        listing = ", ".join(f"{key!r} ({required[key]})" for key in missing)
        fix = "Take config.json from the model's Hugging Face repository."
        raise ConfigError(f"the model configuration lacks {listing}.", where=where, fix=fix)
    if isinstance(num_layers := config["num_hidden_layers"], int) and num_layers > _MOST_LAYERS:
        raise ConfigError(f"num_hidden_layers = {num_layers} makes no sense: at most {_MOST_LAYERS}.", where=where)
    for key in (*FAMILIES["positive"], *FAMILIES["from_zero"]):
        value, least = config.get(key), int(key in FAMILIES["positive"])
        if value is not None and (not isinstance(value, int) or value < least):
            wanted = "positive whole number" if least else "whole number from 0 on"
            raise ConfigError(f"{key} must be a {wanted}, not {value!r}.", where=where)
    try:
        model = _model(whole, config, family, name, where)
        quantised = whole.get("quantization_config") or config.get("quantization_config")
        experts = {"expert_dtype": config["expert_dtype"]} if config.get("expert_dtype") else {}
        own = parse_quantization({**quantised, **experts}, model, where) if quantised else model.checkpoint
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
        raise ConfigError(f"a key has a value of a kind that makes no sense: {error}.", where=where) from None
    return model.model_copy(update={"checkpoint": own})


def _model(whole: Mapping[str, Any], config: Mapping[str, Any], family: str, name: str, where: str) -> Model:
    names = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
    facts = {
        "name": name, "hf_id": str(config.get("_name_or_path", "")), "model_type": family,
        "num_layers": config["num_hidden_layers"], "hidden_size": config["hidden_size"],
        "vocab_size": config["vocab_size"],
        "max_context_tokens": config.get("max_position_embeddings") or config.get("seq_length"),
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)), **attention_facts(config, family, where),
        **FACTS.get(family, {}), **_switches(config, family), **mlp_facts(config, family, where),
        "num_mtp_layers": next((config[name] for name in names if config.get(name)), 0),
        "notes": _notes(whole, config, family),
    }  # fmt: skip
    try:
        return Model.model_validate(facts)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{key} = {first['input']!r} makes no sense: {first['msg']}.", where=where) from None


def _blocks(config: Mapping[str, Any]) -> list[str]:
    """The layers of a Nemotron by name; older files have a letter for each."""
    letters = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
    pattern = config.get("hybrid_override_pattern") or ""
    return [letters.get(letter, letter) for letter in pattern] or list(config.get("layers_block_type") or ())


def _replaced(config: Mapping[str, Any], key: str) -> bool:
    """Whether another key of `config` says the same."""
    if key == "max_position_embeddings":
        return config.get("seq_length") is not None
    return key == "intermediate_size" and config.get("moe_intermediate_size") is not None


def _notes(whole: Mapping[str, Any], config: Mapping[str, Any], family: str) -> tuple[str, ...]:
    notes = []
    if family not in FACTS:
        notes.append(f"model_type {family!r} is not known: read as a Llama-like decoder.")
    towers = [name for key, name in (("vision_config", "images"), ("audio_config", "sound")) if whole.get(key)]
    if towers:
        notes.append(f"Towers for {' and '.join(towers)} are left out: text only.")
    if config.get("hidden_size_per_layer_input"):
        notes.append("Per-layer embeddings are not modelled.")
    if "shared" in (config.get("indexer_types") or ()):
        notes.append("Layers that share another's index are taken to have one of their own.")
    sparse = config.get("sparse_attention_config") or {}
    if 0 in (sparse.get("sparse_attention_freq") or ()):
        notes.append("Layers without an index are taken to have one.")
    return tuple(notes)


def _switches(config: Mapping[str, Any], family: str) -> dict[str, bool]:
    """Biases and norms that the file itself switches on."""
    facts = {}
    if config.get("attention_bias", config.get("bias", False)):
        facts = {"qkv_bias": True, "o_bias": family != "glm4_moe"}
    if family == "glm4_moe":
        facts["qk_norm"] = bool(config.get("use_qk_norm"))
    switches = (("mlp_bias", "mlp_bias"), ("qk_norm", "use_qk_norm"), ("router_bias", "use_routing_bias"))
    return facts | {fact: True for fact, key in switches if config.get(key)}
