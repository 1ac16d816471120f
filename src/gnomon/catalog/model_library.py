"""Models by built-in name, Hugging Face id, or path of a `config.json`."""

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveFloat

from gnomon.catalog.huggingface import parse_config
from gnomon.catalog.library import DATA, Library, folded
from gnomon.catalog.models import Model
from gnomon.catalog.quantization import Checkpoint, split_name
from gnomon.core.config import Config
from gnomon.core.errors import ConfigError, DataError, UnknownNameError, nearest
from gnomon.core.text import read_json


class ModelEntry(Config):
    """One built-in model: its Hugging Face configuration and its published size."""

    name: str
    aliases: tuple[str, ...] = ()
    hf_id: str
    published_parameters: PositiveFloat | None = None
    """As counted on its model card, without MTP layers and towers for images."""
    published_parameters_with_mtp: PositiveFloat | None = None
    """With the MTP layers (which may have copies of embedding and head)."""
    checkpoints: dict[str, Checkpoint] = Field(default_factory=dict)
    """Other published checkpoints of the model, and how each is quantised."""
    sources: dict[str, str]
    config: dict[str, Any]
    """The keys of `config.json` that its shape depends on."""


MODELS = Library("model", DATA / "models", ModelEntry)

MAX_PATH = 1000  # Characters of the path of a folder: what is longer is no path.
MAX_NAME = 200  # Characters of a Hugging Face id.


def model(name_or_path: str | Path) -> Model:
    """A model by built-in name ("llama-3-8b"), Hugging Face id, or path of a `config.json` (or its folder)."""
    path = Path(name_or_path)
    name = str(name_or_path)
    if path.suffix == ".json" or (len(name) < MAX_PATH and path.is_dir() and MODELS.resolve(name) is None):
        return _read(path / "config.json" if path.is_dir() else path)
    if "/" in name and MODELS.resolve(_split(name)[0]) is None and (cached := _downloaded(name)):
        return _read(cached).model_copy(update={"name": name.rpartition("/")[2].lower(), "hf_id": name})
    return _built_in(name)


def _downloaded(hf_id: str) -> Path | None:
    """The newest config.json of a model in Hugging Face's cache, or None."""
    home = os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
    hub = Path(os.environ.get("HF_HUB_CACHE", os.path.join(home, "hub")))
    if len(hf_id) > MAX_NAME or not re.fullmatch(r"[\w.-]+/[\w.-]+", hf_id):
        return None
    found = (hub / f"models--{hf_id.replace('/', '--')}" / "snapshots").glob("*/config.json")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


@cache
def _built_in(name: str) -> Model:
    known, quantised = _split(name)
    try:
        entry = MODELS[known]
    except UnknownNameError as error:
        near = nearest(name.rpartition("/")[2], MODELS.names)
        guess = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
        fix = f"{guess}`gnomon catalog models` lists all {len(MODELS.names)}. Any other: the path of its config.json"
        hub = " (one in Hugging Face's cache is found by its id)" if "/" in name else ""
        raise ConfigError(error.what, fix=f"{fix}{hub}.") from None
    parsed = parse_config(entry.config, name=_called(known, entry), where=f"model {entry.name}")
    schemes = tuple(dict.fromkeys(one.scheme for one in entry.checkpoints.values()))
    asked = name if "/" in name else None
    model = parsed.model_copy(update={"hf_id": asked or _published_as(known, entry), "schemes": schemes})
    for one, how in entry.checkpoints.items():
        if folded(name) in (folded(one), folded(one.rpartition("/")[2])):
            return model.model_copy(update={"checkpoint": how.quantization, "hf_id": asked or one})
    if quantised is None:
        return model
    own = model.precision(quantised.scheme).model_copy(update={"kv_dtype": quantised.kv_dtype})
    return model.model_copy(update={"checkpoint": own, "hf_id": asked or ""})


def _called(name: str, entry: ModelEntry) -> str:
    """What results and messages call a model: its entry's name, or that of another model of the same shape, as it was
    asked for (deepseek-r1, whose entry is deepseek-v3)."""
    base, _ = split_name(name) or (name, None)
    short = base.rpartition("/")[2]
    words = re.split("[-_ ]", short.lower())
    is_entry = folded(short) == folded(entry.name) or set(entry.name.split("-")) <= set(words)
    return entry.name if is_entry else short.lower()


def _published_as(name: str, entry: ModelEntry) -> str:
    """The Hugging Face id of a name: of entries for several models, that of the one asked for."""
    if _called(name, entry) == entry.name:
        return entry.hf_id
    asked, tails = folded(name), {one: folded(one.rpartition("/")[2]) for one in entry.aliases if "/" in one}
    like = sorted((one for one, tail in tails.items() if tail.startswith(asked)), key=lambda one: tails[one] != asked)
    return next(iter(like), entry.hf_id)


def _split(name: str) -> tuple[str, Checkpoint | None]:
    """The model that a name stands for, and how its ending (`-FP8`, `-AWQ`, `-NVFP4`) says it is quantised."""
    split = split_name(name)
    if MODELS.resolve(name) or split is None:
        return name, None
    base, how = split
    known = next((one for one in (base, base.rpartition("/")[2]) if MODELS.resolve(one)), None)
    return (known, how) if known else (name, None)


def _read(path: Path) -> Model:
    config = _json(path)
    beside = path.parent / "hf_quant_config.json"
    if "quantization_config" not in config and beside.is_file():
        config["quantization_config"] = _json(beside)
    name = str(config.get("_name_or_path") or path.resolve().parent.name)
    return parse_config(config, name=name, where=str(path))


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ConfigError("no such file.", where=str(path), fix="Give a config.json or the folder that has it.")
    try:
        config = read_json(path)
    except DataError as error:
        raise ConfigError(f"not readable as JSON: {error.what}", where=error.where, fix=error.fix) from None
    if not isinstance(config, dict):
        raise ConfigError("a model configuration is a JSON object.", where=str(path))
    return config


def model_names() -> list[str]:
    """Every built-in model."""
    return MODELS.names
