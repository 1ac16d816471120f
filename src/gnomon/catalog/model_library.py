"""Models by built-in name, Hugging Face id, or path of a `config.json`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat

from gnomon.catalog.huggingface import parse_config
from gnomon.catalog.library import DATA, Library
from gnomon.catalog.models import Model
from gnomon.core.config import Config
from gnomon.core.errors import ConfigError, DataError, UnknownNameError
from gnomon.core.text import read_json


class ModelEntry(Config):
    """One built-in model: its Hugging Face configuration and its published size."""

    name: str
    aliases: tuple[str, ...] = ()
    hf_id: str
    published_parameters: PositiveFloat
    """As counted on its model card."""
    sources: dict[str, str]
    config: dict[str, Any]
    """The keys of `config.json` that its shape depends on."""


MODELS = Library("model", DATA / "models", ModelEntry)


def model(name_or_path: str | Path) -> Model:
    """A model by built-in name ("llama-3-8b"), Hugging Face id, or path of a `config.json` (or its folder)."""
    path = Path(name_or_path)
    name = str(name_or_path)
    if path.suffix == ".json" or (path.is_dir() and MODELS.resolve(name) is None):
        return _read(path / "config.json" if path.is_dir() else path)
    return _built_in(name)


@cache
def _built_in(name: str) -> Model:
    try:
        entry = MODELS[name]
    except UnknownNameError as error:
        fix = f"{error.fix} Any other: the path of its Hugging Face config.json."
        raise ConfigError(error.what, fix=fix) from None
    parsed = parse_config(entry.config, name=entry.name, where=f"model {entry.name}")
    return parsed.model_copy(update={"hf_id": entry.hf_id})


def _read(path: Path) -> Model:
    if not path.exists():
        raise ConfigError("no such file.", where=str(path), fix="Give a config.json or the folder that has it.")
    try:
        config = read_json(path)
    except DataError as error:
        raise ConfigError(f"not readable as JSON: {error.what}", where=error.where, fix=error.fix) from None
    if not isinstance(config, dict):
        raise ConfigError("a model configuration is a JSON object.", where=str(path))
    name = str(config.get("_name_or_path") or path.resolve().parent.name)
    return parse_config(config, name=name, where=str(path))


def model_names() -> list[str]:
    """Every built-in model."""
    return MODELS.names
