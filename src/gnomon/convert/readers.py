"""Values that need more than another name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gnomon.core.errors import ConfigError
from gnomon.core.registry import Registry
from gnomon.serving.engines import engine

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
    """0 means no limit."""
    return value if float(value) > 0 else None


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


@READERS.register("listed")
def listed(value: Any) -> list[Any]:
    """One value or several, as a list."""
    return value if isinstance(value, list) else [value]


@READERS.register("sglang_graph_sizes")
def sglang_graph_sizes(value: Any) -> list[int]:
    """The batch sizes for which SGLang captures CUDA graphs, up to the largest."""
    captured, largest = engine("sglang").settings["timing.graph_sizes"].value, whole_number(value)
    return [size for size in captured if size < largest] + [largest]


@READERS.register("trtllm_graph_sizes")
def trtllm_graph_sizes(value: Any) -> list[int]:
    """The batch sizes for which TensorRT-LLM captures CUDA graphs: 1, 2, 4, every 8 to 128, then powers of two, and
    the largest (tensorrt_llm/llmapi/llm_args.py)."""
    sizes = [1, 2, 4, *range(8, 129, 8), *(2**power for power in range(8, 16))]
    largest = whole_number(value)
    return [size for size in sizes if size < largest] + [largest]


@READERS.register("trtllm_speculative")
def trtllm_speculative(value: Any) -> dict[str, Any]:
    """TensorRT-LLM's `speculative_config`: how many tokens are drafted."""
    keys = ("num_nextn_predict_layers", "max_draft_len")
    drafted = next((value[key] for key in keys if isinstance(value, dict) and key in value), None)
    if drafted is None:
        raise ConfigError(f"speculative_config needs {' or '.join(keys)}.", where="the file")
    return {"num_tokens": drafted}


@READERS.register("speculative")
def speculative(value: Any) -> dict[str, Any]:
    """vLLM's `--speculative-config`: how many tokens are drafted, and by what."""
    if not isinstance(value, dict) or "num_speculative_tokens" not in value:
        raise ConfigError(
            "--speculative-config needs num_speculative_tokens.", where="the command", fix="Give it as JSON."
        )
    read: dict[str, Any] = {"num_tokens": value["num_speculative_tokens"]}
    if value.get("method") not in ("ngram", "mtp", "medusa") and "model" in value and value["model"] != "ngram":
        read["draft_model"] = value["model"]
    return read
