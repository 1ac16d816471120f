"""The timing sources by name, with their traits: what the configuration asks of a source before one is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gnomon.core.registry import Registry


@dataclass(frozen=True)
class SourceSpec:
    """A registered timing source with all its traits."""

    name: str
    make: Callable[[Any], Any]
    """Makes the source for a `gnomon.timing.sources.Context`."""
    about: str = "added by the user"
    """One line for `gnomon catalog sources`."""
    reads_path: bool = False
    """Its measurements lie in a folder that the scenario may name (`timing.path`)."""
    gives_iterations: bool = False
    """It has no operators: the seconds of whole iterations stand in the scenario (`timing.table`)."""


SOURCES: Registry[SourceSpec] = Registry(
    "timing source",
    SourceSpec,
    built_in={
        **{name: f"gnomon.timing.sources.{name}" for name in ("auto", "roofline", "profile", "silicon", "table")},
        "recorded": "gnomon.timing.sources",
    },
    where="timing.source",
)
