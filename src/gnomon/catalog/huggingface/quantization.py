"""`quantization_config` of a `config.json`, or `hf_quant_config.json`, as number formats per group of weights."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gnomon.catalog.devices import Dtype
from gnomon.catalog.library import DATA
from gnomon.catalog.models import Model
from gnomon.catalog.quantization import (
    BF16,
    GROUPS,
    KEPT,
    Quantization,
    WeightFormat,
    WeightGroup,
    scheme,
    scheme_names,
    weight_format,
)
from gnomon.catalog.weights import layer_weights
from gnomon.core.errors import ConfigError
from gnomon.core.text import own_yaml

_WORDS: dict[str, Any] = own_yaml(DATA / "checkpoints.yaml")

_PREFIXES = re.compile(r"^(model\.)?(language_model\.)?(model\.|backbone\.)?")
_SYNONYMS = ((".block_sparse_moe.", ".mlp."), (".ffn.", ".mlp."), (".attn.", ".self_attn."))


def parse_quantization(config: Mapping[str, Any], model: Model, where: str) -> Quantization:
    """The number formats that a `quantization_config` or `hf_quant_config.json` gives `model`.

    A group takes the format that its matrices have in most of the layers that have them.
    """
    config = config.get("quantization") or config
    modules = _WORDS["modules_of"].get(model.model_type, _WORDS["modules"])
    if per_layer := config.get("quantized_layers"):
        others = weight_format("fp8_block") if config.get("weight_block_size") else BF16
        format_of = _listed({_below(name): _algorithm(rule, where) for name, rule in per_layer.items()}, others)
    else:
        keys = ("ignore", "ignored_layers", "exclude_modules", "modules_to_not_convert")
        format_of = _all_but(_matcher([name for key in keys for name in config.get(key) or ()]), _format(config, where))
    formats: dict[WeightGroup, WeightFormat] = dict.fromkeys(GROUPS, BF16)
    formats["head"] = format_of("lm_head") if per_layer and not config.get("weight_block_size") else BF16
    for group, names in modules.items():
        votes = Counter(
            format_of(*(f"layers.{layer}.{name}" for name in names)) for layer in _layers_with(model, group)
        )
        formats[group] = votes.most_common(1)[0][0] if votes else formats["attention"]
    if config.get("expert_dtype") == "fp4" and formats["routed_experts"] == weight_format("fp8_block"):
        formats["routed_experts"] = weight_format("mxfp4")  # DeepSeek-V4: all else is as `quantization_config` says.
    if config.get("quant_method") == "mxfp4":  # Written for experts; other matrices are never converted.
        formats = dict.fromkeys(GROUPS, BF16) | {"routed_experts": formats["routed_experts"]}
    return _named(formats, _kv_dtype(config))


def _layers_with(model: Model, group: WeightGroup) -> list[int]:
    return [
        layer
        for layer in range(model.num_layers)
        if any(
            one.group == group and one.count
            for one in layer_weights(model, model.attention_kind(layer), model.mlp_kind(layer))
        )
    ]


def _all_but(is_ignored: Callable[[str], bool], format_: WeightFormat) -> Callable[..., WeightFormat]:
    return lambda *names: BF16 if any(map(is_ignored, names)) else format_


def _listed(formats: Mapping[str, WeightFormat], others: WeightFormat) -> Callable[..., WeightFormat]:
    return lambda *names: next((formats[name] for name in names if name in formats), others)


def _named(formats: dict[WeightGroup, WeightFormat], kv: Dtype | None) -> Quantization:
    """The built-in scheme that has these formats; else one named after the format of most of its weights."""
    for name in scheme_names():
        if all(scheme(name)[group] == formats[group] for group in GROUPS if group not in KEPT):
            return scheme(name).model_copy(update={"formats": formats, "kv_dtype": kv})
    main = next(formats[g] for g in ("routed_experts", "dense_mlp") if formats[g] != BF16 or g == "dense_mlp")
    four_bits: Dtype = "int4" if main.name.startswith("int") else "fp4"
    dtype = main.product if main.bytes_per_weight >= 1.0 else four_bits
    return Quantization(name=main.name, dtype=dtype, formats=formats, kv_dtype=kv)


def _format(config: Mapping[str, Any], where: str) -> WeightFormat:
    """The format of everything that is not left out."""
    if config.get("quant_algo"):
        return _algorithm(config, where)
    method = config.get("quant_method")
    if method == "fp8":
        return weight_format("fp8_block" if config.get("weight_block_size") else "fp8")
    if method == "mxfp4":
        return weight_format("mxfp4")
    if groups := config.get("config_groups"):
        return _compressed(next(iter(groups.values())), where)
    bits = config.get("bits") or (4 if config.get("load_in_4bit") else 8 if config.get("load_in_8bit") else None)
    if method in ("awq", "gptq", "awq_marlin", "gptq_marlin", "auto-round", "bitsandbytes") and bits in (4, 8):
        return _integers(bits, config.get("group_size") or 128)
    fix = "Take it out and set timing.dtype."
    raise ConfigError(f"quantization_config with quant_method {method!r} is not known.", where=where, fix=fix)


def _algorithm(rule: Mapping[str, Any], where: str) -> WeightFormat:
    name = str(rule.get("quant_algo"))
    if name not in _WORDS["algorithms"]:
        raise ConfigError(f"quant_algo {name!r} is not known.", where=where, fix="Take it out and set timing.dtype.")
    return weight_format(_WORDS["algorithms"][name])


def _compressed(group: Mapping[str, Any], where: str) -> WeightFormat:
    weights = group.get("weights") or {}
    bits, kind, size = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    is_stored_only = group.get("input_activations") is None
    if kind == "float" and bits == 8:
        return weight_format("fp8_block" if weights.get("strategy") == "block" else "fp8")
    if kind == "float" and bits == 4:
        return weight_format("mxfp4" if size == 32 else "nvfp4_weights" if is_stored_only else "nvfp4")
    if kind == "int" and bits == 8 and not is_stored_only:
        return weight_format("int8")
    if kind == "int" and bits in (4, 8):
        return _integers(bits, size or 128)
    fix = "Take out quantization_config, set timing.dtype."
    raise ConfigError(f"{bits}-bit {kind} weights are not known.", where=where, fix=fix)


def _integers(bits: int, group_size: int) -> WeightFormat:
    """Integers with a 2-byte scale (and where groups are wide, a zero) per group, multiplied in bf16."""
    if bits == 8:
        return weight_format("int8_weights")
    if group_size < 1:  # -1: one scale per row, not counted.
        return WeightFormat(name="int4_rows", bytes_per_weight=0.5, product="bf16")
    name = {128: "int4", 32: "int4_group32"}.get(group_size)
    if name:
        return weight_format(name)
    return WeightFormat(name=f"int4_group{group_size}", bytes_per_weight=0.5 + 2.5 / group_size, product="bf16")


def _kv_dtype(config: Mapping[str, Any]) -> Dtype | None:
    wanted = config.get("kv_cache_quant_algo") or config.get("kv_cache_scheme")
    if isinstance(wanted, Mapping):
        wanted = {8: "FP8", 4: "NVFP4"}.get(wanted.get("num_bits", 8))
    names: dict[str, Dtype] = {"FP8": "fp8", "NVFP4": "fp4", "INT8": "int8"}
    return names.get(str(wanted).upper())


def _below(name: str) -> str:
    """A module's name below the language model, in the words of `catalog/data/checkpoints.yaml`."""
    name = _PREFIXES.sub("", name)
    for theirs, ours in _SYNONYMS:
        name = name.replace(theirs, ours)
    return name


def _compiled(expression: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise ValueError(f"{expression!r} is no regular expression: {error}") from None


def _matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Whether a name, or a module around it, is meant by one of the patterns: exact, glob, or `re:` expression."""
    exact: set[str] = set()
    globs: list[str] = []
    expressions: list[re.Pattern[str]] = []
    for pattern in patterns:
        if pattern.startswith("re:"):
            expressions.append(_compiled(pattern[3:]))
        elif "*" in pattern:
            globs.append(_below(pattern))
        else:
            exact.add(_below(pattern))

    def matches(name: str) -> bool:
        parts = name.split(".")
        around = [".".join(parts[: end + 1]) for end in range(len(parts))]
        if any(one in exact for one in (*around, *parts)):
            return True
        if any(expression.match(f"model.{name}") for expression in expressions):
            return True
        return any(fnmatchcase(one, pattern) for pattern in globs for one in around)

    return matches
