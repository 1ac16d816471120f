"""Engine presets: what vLLM, SGLang and TensorRT-LLM do when they are not told otherwise, as data with sources.

A preset fills in keys of `batching`, `replica`, `timing` and `front_end` that the scenario leaves open.
"""

from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Literal

from pydantic import Field

from gnomon import catalog
from gnomon.catalog.attention import AttentionFamily
from gnomon.core.config import Config, build
from gnomon.core.errors import GnomonError, UnknownNameError
from gnomon.core.text import own_yaml
from gnomon.serving.scenario.engine_versions import order_of
from gnomon.serving.scenario.sampling import SamplerEra

FOLDER = files("gnomon.serving.scenario") / "data" / "engines"

NO_ENGINE = "none"  # Kernels only.
Sections = dict[str, dict[str, Any]]
Drafting = Literal["head", "model", "free"]
"""What drafts tokens: layers of the model's own kind (multi-token prediction, EAGLE), a model, or something whose time
does not count (n-grams)."""


class EngineConfig(Config):
    """The engine that serves: a preset for all that is not given."""

    shorthand: ClassVar[str] = "name"

    name: str
    """{gnomon.serving.scenario.engine_presets.engine_names}; none: kernels only."""
    version: str = ""
    """Its version, e.g. 0.19.0: decides defaults, overlapped scheduling and the kernels of the source silicon; the
    newest if not given."""


class Setting(Config):
    """One value and where it comes from."""

    value: Any
    source: str


@dataclass(frozen=True)
class Case:
    """What a variant may depend on."""

    model: str
    attention: AttentionFamily | None
    products: str
    device: str
    memory_gb: float
    version: str
    drafting: Drafting | None


class When(Config):
    """For which scenarios a variant is meant; what is not given does not matter."""

    models: tuple[str, ...] = ()
    """Patterns of model names."""
    attention: tuple[AttentionFamily, ...] = ()
    """Families of the model's attention."""
    products: tuple[str, ...] = ()
    """Number formats of attention's projections."""
    devices: tuple[str, ...] = ()
    """Patterns of device names."""
    not_devices: tuple[str, ...] = ()
    memory_gb_from: float | None = None
    """The GPU has at least this much memory."""
    memory_gb_below: float | None = None
    version_from: str | None = None
    """The engine's version is at least this."""
    version_below: str | None = None
    drafting: tuple[Drafting, ...] = ()
    """What drafts tokens, where something does."""

    def matches(self, case: Case) -> bool:
        version = order_of(case.version)
        return (
            (not self.models or any(fnmatch(case.model, pattern) for pattern in self.models))
            and (not self.attention or case.attention in self.attention)
            and (not self.products or case.products in self.products)
            and (not self.devices or any(fnmatch(case.device, pattern) for pattern in self.devices))
            and not any(fnmatch(case.device, pattern) for pattern in self.not_devices)
            and (self.memory_gb_from is None or case.memory_gb >= self.memory_gb_from)
            and (self.memory_gb_below is None or case.memory_gb < self.memory_gb_below)
            and (self.version_from is None or version >= order_of(self.version_from))
            and (self.version_below is None or version < order_of(self.version_below))
            and (not self.drafting or case.drafting in self.drafting)
        )


class Variant(Config):
    """Other values for some scenarios; a later variant overrides an earlier one."""

    source: str
    when: When
    settings: dict[str, Any]


class EnginePreset(Config):
    """An engine as data: dotted keys of the scenario, each with its value and source."""

    description: str
    versions: tuple[str, ...]
    """The series (their first two numbers) that it is meant for."""
    settings: dict[str, Setting]
    variants: tuple[Variant, ...] = Field(default=())
    sampling: tuple[SamplerEra, ...]
    """How its versions choose tokens, in their order."""

    def sections(
        self, model: str, device: str, version: str = "", drafting: Drafting | None = None, dtype: str = "auto"
    ) -> Sections:
        """The preset's values for a scenario, by section."""
        values = {key: setting.value for key, setting in self.settings.items()}
        name, attention, products = _known_model(model, dtype)
        gpu, memory_gb = _known_device(device)
        case = Case(name, attention, products, gpu, memory_gb, version, drafting)
        for variant in self.variants:
            if variant.when.matches(case):
                values |= variant.settings
        return nested(values)


def engine_names() -> list[str]:
    return sorted(f.name.removesuffix(".yaml") for f in FOLDER.iterdir() if f.name.endswith(".yaml"))


@cache
def engine(name: str) -> EnginePreset:
    if name not in engine_names():
        raise UnknownNameError("engine", name, engine_names(), where="engine.name")
    return build(EnginePreset, own_yaml(FOLDER / f"{name}.yaml"), where=f"{name}.yaml")


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


def _known_model(name: str, dtype: str) -> tuple[str, AttentionFamily | None, str]:
    """What the catalog calls a model, however it is spelled (deepseek-ai/DeepSeek-R1, a path), the family of its
    attention, and the number format of its projections. Where none is named, none is meant: no path either."""
    if not name:
        return name, None, ""
    try:
        known = catalog.model(name)
        return known.name.lower(), known.attention_family, known.precision(dtype)["attention"].name
    except (GnomonError, OSError):
        return name, None, ""
