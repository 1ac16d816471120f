"""Attention as a `config.json` describes it: heads, latent vectors, windows, linear layers, sparse ones."""

from collections.abc import Mapping
from typing import Any

from gnomon.catalog.attention import AttentionKind
from gnomon.catalog.library import DATA
from gnomon.core.errors import ConfigError
from gnomon.core.text import own_yaml

FAMILIES: dict[str, Any] = own_yaml(DATA / "families.yaml")
_KINDS: dict[str, AttentionKind] = FAMILIES["layer_types"]


def attention_facts(config: Mapping[str, Any], family: str, where: str) -> dict[str, Any]:
    """The model's facts about attention."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config.get("kv_channels") or hidden // heads
    facts: dict[str, Any] = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim}
    layers = attention_layers(config, family, where)
    if config.get("compress_ratios"):
        low, high = _ratios(config)
        facts["compressed"] = _named("compressed", config) | {"ratio": high, "sparse_ratio": low}
        facts["residual_streams"] = config.get("hc_mult") or 1
    if "sliding" in layers:
        own = {name: config.get(f"swa_{name}") for name in ("num_attention_heads", "num_key_value_heads", "head_dim")}
        dim = own["head_dim"] or head_dim
        facts["sliding"] = {
            "window": config.get("attention_chunk_size") or config.get("sliding_window"),
            "num_heads": own["num_attention_heads"] or heads,
            "num_kv_heads": own["num_key_value_heads"] or kv_heads,
            "head_dim": dim,
            "v_head_dim": config.get("swa_v_head_dim") or dim,
        }
    if config.get("global_head_dim"):  # Gemma 4: the full layers have heads of their own.
        facts["head_dim"] = config["global_head_dim"]
        facts["num_kv_heads"] = config.get("num_global_key_value_heads") or kv_heads
        facts["shared_kv"] = bool(config.get("attention_k_eq_v"))
    if "linear" in layers:
        facts["linear"] = _linear(config, FAMILIES["linear_of"].get(family, "gated_delta_net"))
    if config.get("kv_lora_rank"):
        facts["mla"] = _named("mla", config) | {"q_rank": config.get("q_lora_rank") or 0}
    if config.get("index_topk"):
        facts["indexer"] = _named("indexer", config)
    if (sparse := config.get("sparse_attention_config") or {}).get("use_sparse_attention"):  # MiniMax: whole blocks.
        facts["indexer"] = {
            "num_heads": sparse["sparse_num_index_heads"],
            "head_dim": sparse["sparse_index_dim"],
            "top_k": sparse["sparse_topk_blocks"] * sparse["sparse_block_size"],
        }
    return facts | {"attention_layers": shortest_period(layers)}


def attention_layers(config: Mapping[str, Any], family: str, where: str) -> list[AttentionKind]:
    """The kind of every layer's attention."""
    num_layers = config["num_hidden_layers"]
    if blocks := config.get("layers_block_type"):  # Nemotron: a layer is either a mixer or an MLP.
        kinds: dict[str, AttentionKind] = {"mamba": "linear", "attention": "full"}
        return [kinds.get(block, "none") for block in blocks]
    if ratios := config.get("compress_ratios"):  # DeepSeek-V4; the last ones are those of its MTP layers.
        low, high = _ratios(config)
        by_ratio: dict[int, AttentionKind] = {0: "sliding", low: "compressed_sparse", high: "compressed"}
        if len(ratios) < num_layers or any(ratio not in by_ratio for ratio in ratios):
            fix = "One of three numbers for every layer: 0, a small and a large one."
            raise ConfigError(f"compress_ratios = {ratios!r} makes no sense.", where=where, fix=fix)
        return [by_ratio[ratio] for ratio in ratios[:num_layers]]
    if names := config.get("layer_types"):
        unknown = [name for name in names if name not in _KINDS]
        if unknown:
            known = ", ".join(_KINDS)
            raise ConfigError(f"layer_types has {unknown[0]!r}.", where=where, fix=f"Known are: {known}.")
        return [_KINDS[name] for name in names]
    if full := (config.get("linear_attn_config") or {}).get("full_attn_layers"):  # Kimi: counted from 1.
        return ["full" if layer + 1 in full else "linear" for layer in range(num_layers)]
    if flags := config.get("hybrid_layer_pattern"):  # MiMo: 1 for a window.
        return ["sliding" if flag else "full" for flag in flags]
    if family == "llama4_text":  # Every fourth layer has no rotary embedding and sees everything.
        rotary = config.get("no_rope_layers") or [(layer + 1) % 4 for layer in range(num_layers)]
        return ["sliding" if flag else "full" for flag in rotary]
    if interval := config.get("full_attention_interval"):
        return ["full" if (layer + 1) % interval == 0 else "linear" for layer in range(num_layers)]
    if not config.get("sliding_window") or not config.get("use_sliding_window", True):
        return ["full"]
    if period := config.get("sliding_window_pattern"):
        return ["full" if (layer + 1) % period == 0 else "sliding" for layer in range(num_layers)]
    return ["sliding"]


def _ratios(config: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of an entry in the layers with an indexer, and in the others."""
    known = sorted(set(config["compress_ratios"]) - {0})
    return known[0], known[-1]


def _named(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {fact: config[key] for fact, key in FAMILIES["attention"][kind].items()}


def _linear(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    own = config["linear_attn_config"] if kind == "kda" else config
    found = {fact: own.get(key) for fact, key in FAMILIES["linear"][kind].items()}
    dtype = {"bfloat16": "bf16", "float16": "fp16"}.get(str(found.get("state_dtype")), "fp32")
    conv_kernel = 4 if found["conv_kernel"] is None else found["conv_kernel"]
    return found | {"kind": kind, "conv_kernel": conv_kernel, "state_dtype": dtype}


def shortest_period(kinds: list[Any]) -> tuple[Any, ...]:
    """The shortest beginning of `kinds` that, repeated, gives all of it."""
    for length in range(1, len(kinds)):
        if all(kind == kinds[at % length] for at, kind in enumerate(kinds)):
            return tuple(kinds[:length])
    return tuple(kinds)
