"""How models ask to be sampled: the `generation_config.json` beside their weights, which servers follow."""

from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from gnomon.catalog.library import DATA
from gnomon.catalog.model_library import model
from gnomon.core.text import own_yaml, read_json

KEYS = ("temperature", "top_k", "top_p", "repetition_penalty")


def generation_config(name_or_path: str) -> dict[str, float]:
    """What the model's generation_config.json sets of temperature, top_k, top_p and repetition_penalty: that of a
    built-in model, or the file beside a config.json; nothing where there is none."""
    path = Path(name_or_path)
    if path.suffix == ".json" or path.is_dir():
        beside = (path if path.is_dir() else path.parent) / "generation_config.json"
        return _kept(read_json(beside)) if beside.is_file() else {}
    published = model(name_or_path).hf_id.lower()
    return next((found for pattern, found in _known() if fnmatch(published, pattern)), {})


@cache
def _known() -> list[tuple[str, dict[str, float]]]:
    entries = own_yaml(DATA / "generation.yaml")["models"]
    return [(pattern.lower(), _kept(one)) for one in entries for pattern in one["like"]]


def _kept(config: Any) -> dict[str, float]:
    found = config if isinstance(config, dict) else {}
    return {key: float(found[key]) for key in KEYS if isinstance(found.get(key), int | float)}
