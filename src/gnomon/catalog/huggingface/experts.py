"""MLPs and experts as a `config.json` describes them."""

from collections.abc import Mapping
from typing import Any

from gnomon.catalog.attention import MlpKind
from gnomon.catalog.huggingface.attention import shortest_period
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
    """Width of all shared experts together."""
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
