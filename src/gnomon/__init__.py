"""Gnomon tells how long an LLM system will take before anyone buys the GPUs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Loaded on first use, so that `import gnomon` and `gnomon --help` stay fast.
_LAZY: dict[str, str] = {
    "Comparison": "gnomon.api",
    "Result": "gnomon.api",
    "Scenario": "gnomon.serving.scenario",
    "compare": "gnomon.api",
    "simulate": "gnomon.api",
}

__all__ = ["__version__", *_LAZY]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gnomon' has no attribute {name!r}")
