"""Values that need more than another name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gnomon.core.errors import ConfigError
from gnomon.core.registry import Registry

READERS: Registry[Callable[[Any], Any]] = Registry("reader of option values")


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
