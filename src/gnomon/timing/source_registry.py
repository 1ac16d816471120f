"""The timing sources by name, with their traits: what the configuration asks of a source before one is made."""

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
    server_error: float = 0.18
    """Standard deviation (of the logarithm) of what a server's iterations take beside their kernels' times: settings,
    host time and overlaps that nobody told (docs/intervals.md). The roofline's is what silicon's was before the
    engines' host times were fitted; no better known."""
    first_token_error: float = 0.49
    """Standard deviation of what times to the first token are off by beside that: front end, clients, admission."""
    errors_of: Callable[[Any], tuple[float, float]] | None = None
    """Gives both for a `gnomon.timing.sources.Context`, where it is known which cases are off by more than others."""

    def errors(self, context: Any) -> tuple[float, float]:
        """Of servers and of their first tokens in this context."""
        return self.errors_of(context) if self.errors_of else (self.server_error, self.first_token_error)


SOURCES: Registry[SourceSpec] = Registry(
    "timing source",
    SourceSpec,
    built_in={
        **{name: f"gnomon.timing.sources.{name}" for name in ("auto", "roofline", "profile", "silicon", "table")},
        "recorded": "gnomon.timing.sources",
    },
    where="timing.source",
    of=object,
)


def traits_of(name: str) -> SourceSpec:
    """The spec of a source that calls itself so; the usual traits where none is registered under that name."""
    return SOURCES.get(name) or SourceSpec(name, make=lambda context: None)
