"""Values that need more than another name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gnomon.core.errors import ConfigError
from gnomon.core.registry import Registry
from gnomon.timing.config import CAPTURED, captured_sizes

READERS: Registry[Callable[[Any], Any]] = Registry("reader of option values")


def whole_number(value: Any) -> int:
    """A whole number, or an error that names what was given instead."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{value!r} is not a whole number.", where="the command")
    return value


@READERS.register("rest_of_one")
def rest_of_one(value: Any) -> float:
    """Vidur gives the share of memory left free, a scenario the share used."""
    return float(round(1 - float(value), 12))


@READERS.register("positive_or_none")
def positive_or_none(value: Any) -> Any:
    """0 or less means no limit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{value!r} is not a number.", where="the command")
    return value if value > 0 else None


@READERS.register("tokens")
def tokens(value: Any) -> int:
    """vLLM's short numbers: 32k is 32,000 and 32K is 32,768."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG]?)", str(value))
    if match is None:
        raise ConfigError(f"{value!r} is not a number of tokens.", where="the command")
    power = " kmg".index(match[2].lower() or " ")
    return int(float(match[1]) * (1024 if match[2].isupper() else 1000) ** power)


@READERS.register("profiling_folder")
def profiling_folder(value: Any) -> str:
    """The folder of all measurements, of the path of one of its files."""
    return re.split(r"/(?:compute|network|cpu_overhead)/", str(value))[0]


@READERS.register("above_one")
def above_one(value: Any) -> bool:
    """A degree of parallelism that a scenario only switches on."""
    return whole_number(value) > 1


@READERS.register("zero_or_one")
def zero_or_one(value: Any) -> int:
    """A switch as a number."""
    return int(bool(value))


@READERS.register("demonstrators")
def demonstrators(value: Any) -> list[str]:
    """Routers that demonstrate, by the names that they have here."""
    return [{"lor": "vidur_lor"}.get(str(name), str(name)) for name in listed(value)]


@READERS.register("listed")
def listed(value: Any) -> list[Any]:
    """One value or several, as a list."""
    return value if isinstance(value, list) else [value]


def _captured(engine: str) -> Callable[[Any], list[int]]:
    return lambda value: list(captured_sizes(engine, whole_number(value)))


for _engine in CAPTURED:
    READERS.register(f"{_engine}_graph_sizes")(_captured(_engine))


@READERS.register("graph_mode")
def graph_mode(value: Any) -> list[int] | None:
    """vLLM's `cudagraph_mode`: NONE is no graphs at all; which parts the other modes capture is not modelled."""
    return [] if str(value).upper() == "NONE" else None


@READERS.register("word")
def word(value: Any) -> str:
    """A name."""
    return str(value)


def drafter(method: str, model: Any = None) -> dict[str, Any]:
    """What drafts, by an engine's name of the method: a head of one layer (multi-token prediction, EAGLE), a model, or
    something that costs nothing (n-grams of the text)."""
    if any(head in method.lower() for head in ("mtp", "nextn", "eagle")):
        return {"draft_layers": 1}
    if method.lower() in ("ngram", "ngram_gpu", "medusa", "suffix", "lookahead") or model in (None, "ngram"):
        return {}
    return {"draft_model": str(model)}


@READERS.register("trtllm_speculative")
def trtllm_speculative(value: Any) -> dict[str, Any]:
    """TensorRT-LLM's `speculative_config`: how many tokens are drafted, and by what."""
    keys = ("num_nextn_predict_layers", "max_draft_len")
    drafted = next((value[key] for key in keys if isinstance(value, dict) and key in value), None)
    if drafted is None:
        raise ConfigError(f"speculative_config needs {' or '.join(keys)}.", where="the file")
    model = value.get("speculative_model", value.get("speculative_model_dir"))
    return {"num_tokens": drafted, **drafter(str(value.get("decoding_type", "")), model)}


@READERS.register("speculative")
def speculative(value: Any) -> dict[str, Any]:
    """vLLM's `--speculative-config`: how many tokens are drafted, and by what."""
    if not isinstance(value, dict) or "num_speculative_tokens" not in value:
        raise ConfigError(
            "--speculative-config needs num_speculative_tokens.", where="the command", fix="Give it as JSON."
        )
    drafts = drafter(str(value.get("method", "")), value.get("model"))
    return {"num_tokens": value["num_speculative_tokens"], **drafts}


NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
"""What vLLM takes where it is told not to follow the model."""


@READERS.register("generation_config")
def generation(value: Any) -> dict[str, Any] | None:
    """vLLM's `--generation-config`: the model's own (auto), or none of its (vllm)."""
    return NEUTRAL if value == "vllm" else None


@READERS.register("override_generation_config")
def override_generation(value: Any) -> dict[str, Any]:
    """vLLM's `--override-generation-config`: what requests get that say nothing."""
    if not isinstance(value, dict):
        raise ConfigError("--override-generation-config needs a mapping.", where="the command", fix="Give it as JSON.")
    return {key: value[key] for key in NEUTRAL if key in value}
