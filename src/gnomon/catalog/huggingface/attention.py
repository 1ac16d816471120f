"""Attention as a `config.json` describes it: heads, latent vectors, windows, linear layers, sparse ones."""

from collections.abc import Mapping
from typing import Any

from gnomon.catalog.attention import AttentionKind
from gnomon.core.errors import ConfigError

_KINDS: dict[str, AttentionKind] = {
    "full_attention": "full", "attention": "full", "deepseek_sparse_attention": "full", "sliding_attention": "sliding",
    "chunked_attention": "sliding", "linear_attention": "linear",
}  # fmt: skip


def attention_facts(config: Mapping[str, Any], family: str, where: str) -> dict[str, Any]:
    """The model's facts about attention."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config.get("kv_channels") or hidden // heads
    facts: dict[str, Any] = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim}
    layers = attention_layers(config, family, where)
    if config.get("compress_ratios"):
        facts["compressed"] = _compressed(config)
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
        facts["linear"] = _LINEAR.get(family, _gated_delta_net)(config)
    if config.get("kv_lora_rank"):
        facts["mla"] = {
            "q_rank": config.get("q_lora_rank") or 0,
            "kv_rank": config["kv_lora_rank"],
            "rope_dim": config["qk_rope_head_dim"],
            "nope_dim": config["qk_nope_head_dim"],
            "v_dim": config["v_head_dim"],
        }
    if config.get("index_topk"):
        facts["indexer"] = {
            "num_heads": config["index_n_heads"],
            "head_dim": config["index_head_dim"],
            "top_k": config["index_topk"],
        }
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


def _compressed(config: Mapping[str, Any]) -> dict[str, Any]:
    low, high = _ratios(config)
    return {
        "q_rank": config["q_lora_rank"], "rope_dim": config["qk_rope_head_dim"], "window": config["sliding_window"],
        "o_groups": config["o_groups"], "o_rank": config["o_lora_rank"], "ratio": high, "sparse_ratio": low,
    }  # fmt: skip


def _gated_delta_net(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": "gated_delta_net", "num_key_heads": config.get("linear_num_key_heads"),
        "num_value_heads": config.get("linear_num_value_heads"), "key_dim": config.get("linear_key_head_dim"),
        "value_dim": config.get("linear_value_head_dim"), "conv_kernel": config.get("linear_conv_kernel_dim", 4),
        "state_dtype": _state_dtype(config.get("mamba_ssm_dtype")),
    }  # fmt: skip


def _mamba2(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": "mamba2", "num_key_heads": config.get("n_groups"), "num_value_heads": config.get("mamba_num_heads"),
        "key_dim": config.get("ssm_state_size"), "value_dim": config.get("mamba_head_dim"),
        "conv_kernel": config.get("conv_kernel", 4), "state_dtype": _state_dtype(config.get("mamba_ssm_cache_dtype")),
    }  # fmt: skip


def _kda(config: Mapping[str, Any]) -> dict[str, Any]:
    own = config["linear_attn_config"]
    return {
        "kind": "kda", "num_key_heads": own.get("num_heads"), "num_value_heads": own.get("num_heads"),
        "key_dim": own.get("head_dim"), "value_dim": own.get("head_dim"),
        "conv_kernel": own.get("short_conv_kernel_size", 4),
    }  # fmt: skip


_LINEAR = {"nemotron_h": _mamba2, "kimi_linear": _kda}


def _state_dtype(name: object) -> str:
    return {"bfloat16": "bf16", "float16": "fp16"}.get(str(name), "fp32")


def shortest_period(kinds: list[Any]) -> tuple[Any, ...]:
    """The shortest beginning of `kinds` that, repeated, gives all of it."""
    for length in range(1, len(kinds)):
        if all(kind == kinds[at % length] for at, kind in enumerate(kinds)):
            return tuple(kinds[:length])
    return tuple(kinds)
