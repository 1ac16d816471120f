"""What a family's code fixes without saying it in `config.json`, by `model_type`."""

from __future__ import annotations

from typing import Any

_DEEPSEEK: dict[str, Any] = {"router_bias": True}
_QWEN3_5: dict[str, Any] = {"qk_norm": True, "output_gate": True}

FACTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama4_text": {},
    "mistral": {},
    "ministral3": {},
    "mixtral": {},
    "internlm": {},
    "phi": {
        "is_gated": False, "qkv_bias": True, "o_bias": True, "mlp_bias": True, "head_bias": True, "norm_bias": True,
        "parallel_attention": True,
    },
    "qwen": {"qkv_bias": True},
    "qwen2": {"qkv_bias": True},
    "qwen2_moe": {"qkv_bias": True, "shared_gate": True},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
    "qwen3_vl_text": {"qk_norm": True},
    "qwen3_vl_moe_text": {"qk_norm": True},
    "qwen3_next": {**_QWEN3_5, "shared_gate": True},
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe_text": {**_QWEN3_5, "shared_gate": True},
    "deepseek_v2": {},
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "deepseek_v4": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "kimi_linear": _DEEPSEEK,
    "glm4_moe": {"router_bias": True},
    "glm_moe_dsa": _DEEPSEEK,
    "gpt_oss": {"mlp_bias": True, "router_bias": True},
    "minimax_m2": {"qk_norm": True, "joint_qk_norm": True, "router_bias": True},
    "minimax_m3": {"qk_norm": True, "router_bias": True},
    "mimo_v2_flash": {"router_bias": True},
    "nemotron_h": {"is_gated": False, "router_bias": True},
    "gemma3_text": {"qk_norm": True, "post_norm": True},
    "gemma4_text": {"qk_norm": True, "post_norm": True},
}  # fmt: skip
"""Facts of the model."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131072, "sliding_window": 4096, "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    },
    "gemma4_text": {"tie_word_embeddings": True},
    "llama4_text": {"attention_chunk_size": 8192},
}  # fmt: skip
"""Keys that a `config.json` of the family may leave out."""
