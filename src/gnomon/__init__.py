"""Gnomon tells how long an LLM system will take before anyone buys the GPUs."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

# Loaded on first use, so that `import gnomon` and `gnomon --help` stay fast.
_LAZY: dict[str, str] = {
    "Comparison": "gnomon.api.comparison",
    "Result": "gnomon.api.result",
    "bench": "gnomon.api.search",
    "calibrate": "gnomon.api.calibration",
    "capacity": "gnomon.api.load",
    "explain_gap": "gnomon.api.calibration",
    "Scenario": "gnomon.api.serving",
    "Simulation": "gnomon.api.serving",
    "check": "gnomon.api.check",
    "compare": "gnomon.api.comparison",
    "explain": "gnomon.api.explain",
    "route": "gnomon.api.routing",
    "serve": "gnomon.api.serving",
    "simulate": "gnomon.api.serving",
    "step_timer": "gnomon.api.time",
    "time": "gnomon.api.time",
    "train": "gnomon.api.train",
    "train_plan": "gnomon.api.train",
}
_PACKAGES = {name: f"gnomon.api.{name}" for name in ("pipeline", "posttrain", "search", "verify")}
"""Questions that share their name with the package that answers them: `gnomon.search(...)` asks `gnomon.search`."""

__all__ = ["__version__", *_LAZY, *_PACKAGES]


class _Askable(ModuleType):
    """A package that can be called: the call goes to the API's function of the same name."""

    def __call__(self, *given: Any, **more: Any) -> Any:
        name = self.__name__.rpartition(".")[2]
        return getattr(import_module(_PACKAGES[name]), name)(*given, **more)


class _Gnomon(ModuleType):
    """This module: it makes the packages of `_PACKAGES` callable when the import system puts them here."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _PACKAGES and isinstance(value, ModuleType):
            value.__class__ = _Askable
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Gnomon


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in _PACKAGES:
        return import_module(f"gnomon.{name}")
    raise AttributeError(f"module 'gnomon' has no attribute {name!r}")
