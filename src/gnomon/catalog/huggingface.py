"""A Hugging Face `config.json` as a `Model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from gnomon.catalog.models import Model
from gnomon.core.errors import ConfigError

# What a family's code fixes without saying it in config.json.
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "mixtral": {},
    "internlm": {},
    "phi": {
        "is_gated": False,
        "qkv_bias": True,
        "o_bias": True,
        "mlp_bias": True,
        "head_bias": True,
        "norm_bias": True,
        "parallel_attention": True,
    },
    "qwen": {"qkv_bias": True},
    "qwen2": {"qkv_bias": True},
    "qwen2_moe": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
    "deepseek_v2": {},
    "deepseek_v3": {"router_bias": True},
    "kimi_k2": {"router_bias": True},
}

_REQUIRED = {
    "num_hidden_layers": "number of layers",
    "hidden_size": "width of the residual stream",
    "num_attention_heads": "number of attention heads",
    "vocab_size": "number of tokens in the vocabulary",
    "max_position_embeddings": "longest context",
    "intermediate_size": "width of the MLP",
}
_REQUIRED_OF_MLA = {
    "qk_rope_head_dim": "part of a key that carries the position",
    "qk_nope_head_dim": "part of a key without position",
    "v_head_dim": "width of each head's value",
}
# Read before the model checks its own fields; the first two must be above 0.
_NUMBERS = (
    "num_attention_heads", "hidden_size", "intermediate_size", "moe_intermediate_size",
    "shared_expert_intermediate_size", "n_routed_experts", "num_experts", "num_local_experts",
)  # fmt: skip


def parse_config(config: Mapping[str, Any], *, name: str, where: str) -> Model:
    """The shape that a `config.json` describes; `where` (its path) goes into errors.

    Read: dense and mixture-of-experts decoders with multi-head, grouped-query, multi-query or multi-head latent
    attention. An unknown `model_type` is read as a Llama-like decoder from the keys it has, which its notes say.
    """
    config = config.get("text_config") or config
    if not isinstance(config, Mapping):
        raise ConfigError("text_config must be a JSON object.", where=where)
    family = str(config.get("model_type", ""))
    required = _REQUIRED | (_REQUIRED_OF_MLA if config.get("kv_lora_rank") else {})
    missing = [key for key in required if config.get(key) is None and not _replaced(config, key)]
    if missing:
        listing = ", ".join(f"{key!r} ({required[key]})" for key in missing)
        raise ConfigError(
            f"the model configuration lacks {listing}.",
            where=where,
            fix="Take config.json from the model's Hugging Face repository.",
        )
    for key in _NUMBERS:
        value, least = config.get(key), int(key in _NUMBERS[:2])
        if value is not None and (not isinstance(value, int) or value < least):
            wanted = "positive whole number" if least else "whole number from 0 on"
            raise ConfigError(f"{key} must be a {wanted}, not {value!r}.", where=where)
    facts = {
        "name": name,
        "hf_id": str(config.get("_name_or_path", "")),
        "model_type": family,
        "num_layers": config["num_hidden_layers"],
        "hidden_size": config["hidden_size"],
        "vocab_size": config["vocab_size"],
        "max_context_tokens": config.get("max_position_embeddings") or config.get("seq_length"),
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        **_attention(config),
        **_FAMILIES.get(family, {}),
        **_biases(config, family),
        **_mlp(config, family, where),
        "notes": _notes(config, family),
    }
    try:
        return Model.model_validate(facts)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{key} = {first['input']!r} makes no sense: {first['msg']}.", where=where) from None


def _replaced(config: Mapping[str, Any], key: str) -> bool:
    """Whether another key of `config` says the same."""
    if key == "max_position_embeddings":
        return config.get("seq_length") is not None
    return key == "intermediate_size" and config.get("moe_intermediate_size") is not None


def _notes(config: Mapping[str, Any], family: str) -> tuple[str, ...]:
    notes = []
    if family not in _FAMILIES:
        notes.append(f"model_type {family!r} is not known: read as a Llama-like decoder.")
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True)
    if windowed or any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        notes.append("sliding-window or linear attention is not modelled: taken as full attention.")
    return tuple(notes)


def _attention(config: Mapping[str, Any]) -> dict[str, Any]:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    facts: dict[str, Any] = {
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config.get("kv_channels") or hidden // heads,
    }
    if config.get("kv_lora_rank"):
        facts["mla"] = {
            "q_rank": config.get("q_lora_rank") or 0,
            "kv_rank": config["kv_lora_rank"],
            "rope_dim": config["qk_rope_head_dim"],
            "nope_dim": config["qk_nope_head_dim"],
            "v_dim": config["v_head_dim"],
        }
    return facts


def _biases(config: Mapping[str, Any], family: str) -> dict[str, bool]:
    """Biases that the file itself switches on."""
    if family.startswith("qwen"):
        return {"qkv_bias": True, "o_bias": True} if config.get("attention_bias") else {}
    has_bias = bool(config.get("attention_bias", config.get("bias", False)))
    facts = {"qkv_bias": True, "o_bias": True} if has_bias else {}
    return facts | ({"mlp_bias": True} if config.get("mlp_bias") else {})


def _mlp(config: Mapping[str, Any], family: str, where: str) -> dict[str, Any]:
    ffn = config.get("intermediate_size") or 0
    if family == "qwen":  # The first Qwen counts gate and up together.
        ffn //= 2
    experts = config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts") or 0
    if experts <= 1:
        return {"ffn_size": ffn}
    active = config.get("num_experts_per_tok", 1)
    if not isinstance(active, int) or not 1 <= active <= experts:
        raise ConfigError(f"num_experts_per_tok = {active!r} makes no sense with {experts} experts.", where=where)
    width = config.get("moe_intermediate_size") or ffn
    shared = config.get("shared_expert_intermediate_size") or width * (config.get("n_shared_experts") or 0)
    return {
        "ffn_size": ffn,
        "num_experts": experts,
        "experts_per_token": active,
        "expert_ffn_size": width,
        "shared_ffn_size": shared,
        "num_dense_layers": config.get("first_k_dense_replace") or 0,
    }
