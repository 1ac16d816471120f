"""Engine presets: what vLLM, SGLang and TensorRT-LLM do when they are not told otherwise, as data with sources.

A preset fills in keys of `batching`, `replica`, `timing` and `front_end` that the scenario leaves open.
"""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar

import yaml
from pydantic import Field

from gnomon import catalog
from gnomon.catalog.attention import AttentionFamily
from gnomon.core.config import Config, build
from gnomon.core.errors import GnomonError, UnknownNameError
from gnomon.serving.scenario.sampling import SamplerEra

FOLDER = files("gnomon.serving.scenario") / "data" / "engines"

Sections = dict[str, dict[str, Any]]


class EngineConfig(Config):
    """The engine that serves: a preset for all that is not given."""

    shorthand: ClassVar[str] = "name"

    name: str
    """vllm, sglang or trtllm."""
    version: str = ""
    """Its version, for the kernels of the source silicon; the newest measured one if not given."""


class Setting(Config):
    """One value and where it comes from."""

    value: Any
    source: str


class When(Config):
    """For which scenarios a variant is meant; what is not given does not matter."""

    models: tuple[str, ...] = ()
    """Patterns of model names."""
    attention: tuple[AttentionFamily, ...] = ()
    """Families of the model's attention."""
    devices: tuple[str, ...] = ()
    """Patterns of device names."""
    not_devices: tuple[str, ...] = ()
    memory_gb_from: float | None = None
    """The GPU has at least this much memory."""
    memory_gb_below: float | None = None

    def matches(self, model: str, attention: AttentionFamily | None, device: str, memory_gb: float) -> bool:
        """Whether a scenario is meant."""
        return (
            (not self.models or any(fnmatch(model, pattern) for pattern in self.models))
            and (not self.attention or attention in self.attention)
            and (not self.devices or any(fnmatch(device, pattern) for pattern in self.devices))
            and not any(fnmatch(device, pattern) for pattern in self.not_devices)
            and (self.memory_gb_from is None or memory_gb >= self.memory_gb_from)
            and (self.memory_gb_below is None or memory_gb < self.memory_gb_below)
        )


class Variant(Config):
    """Other values for some scenarios; a later variant overrides an earlier one."""

    source: str
    when: When
    settings: dict[str, Any]


class EnginePreset(Config):
    """An engine as data: dotted keys of the scenario, each with its value and source."""

    description: str
    settings: dict[str, Setting]
    variants: tuple[Variant, ...] = Field(default=())
    sampling: tuple[SamplerEra, ...]
    """How its versions choose tokens, in their order."""

    def sections(self, model: str, device: str) -> Sections:
        """The preset's values for a scenario, by section."""
        values = {key: setting.value for key, setting in self.settings.items()}
        name, attention = _known_model(model)
        gpu, memory_gb = _known_device(device)
        for variant in self.variants:
            if variant.when.matches(name, attention, gpu, memory_gb):
                values |= variant.settings
        return nested(values)


def engine_names() -> list[str]:
    """The engines that are built in."""
    return sorted(f.name.removesuffix(".yaml") for f in FOLDER.iterdir() if f.name.endswith(".yaml"))


@cache
def engine(name: str) -> EnginePreset:
    """One engine by its name."""
    if name not in engine_names():
        raise UnknownNameError("engine", name, engine_names(), where="engine.name")
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return build(EnginePreset, yaml.safe_load(text), where=f"{name}.yaml")


def nested(values: dict[str, Any]) -> Sections:
    """Dotted keys as sections within sections."""
    out: Sections = {}
    for dotted, value in values.items():
        *path, last = dotted.split(".")
        at: dict[str, Any] = out
        for key in path:
            at = at.setdefault(key, {})
        at[last] = value
    return out


def filled_in(given: Any, preset: Any) -> Any:
    """What is given, with the preset's values where it says nothing."""
    if given is None:
        return preset
    if not isinstance(given, dict) or not isinstance(preset, dict):
        return given
    return {**given, **{key: filled_in(given.get(key), value) for key, value in preset.items()}}


def _known_device(name: str) -> tuple[str, float]:
    """The GPU's own name and its memory; of an unknown one none, for the scenario's own check says more about it."""
    try:
        known = catalog.device(name)
    except GnomonError:
        return name, 0.0
    return known.name, known.memory_gb


def _known_model(name: str) -> tuple[str, AttentionFamily | None]:
    """What the catalog calls a model, however it is spelled (deepseek-ai/DeepSeek-R1, a path), and the family of its
    attention."""
    try:
        known = catalog.model(name)
    except GnomonError:
        return name, None
    return known.name.lower(), known.attention_family
