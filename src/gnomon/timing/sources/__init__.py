"""Where operator times come from: one protocol, found by name.

A source answers only for what it knows: `measured` says which sizes it covers. Baking asks inside that range, scales
by the roofline beyond it, takes the roofline for operators a source lacks, and reports both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gnomon.catalog.devices import Device
from gnomon.catalog.models import Model
from gnomon.catalog.nodes import Node
from gnomon.catalog.parallelism import Parallelism
from gnomon.catalog.quantization import Quantization
from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError
from gnomon.timing.operators import Operator, stage_operators
from gnomon.timing.source_registry import SOURCES

if TYPE_CHECKING:
    from gnomon.timing.config import TimingConfig

Range = tuple[tuple[float, float], ...]
"""Smallest and largest covered value of each size of an operator, in the order of its kind's sizes."""

ANY = (0.0, float("inf"))


class Source(Protocol):
    """Seconds of operators, with the range in which they were measured."""

    name: str

    def measured(self, operator: Operator) -> Range | None:
        """The covered sizes of `operator`; None where this source does not know it."""

    def seconds(self, operator: Operator, *sizes: Floats) -> Floats:
        """Seconds of one call, element by element over arrays of one shape, all within `measured`.

        The sizes are those of the operator's kind (see `gnomon.timing.operators`). An operator that is part of
        another one's measurement is answered with zeros.
        """

    def uncertainty(self, operator: Operator) -> float:
        """Relative error to expect (median, held out), e.g. 0.03; 0 where the times are exact by definition."""

    def skew(self, decodes: Floats) -> Floats | None:
        """[decodes, 16]: how far skewed KV lengths move a decode towards its longest; see `IterationTables.skew`."""


@dataclass(frozen=True)
class Context:
    """What a source is made for."""

    model: Model
    device: Device
    node: Node
    parallelism: Parallelism
    config: TimingConfig

    @property
    def precision(self) -> Quantization:
        """The number formats of the weights: the checkpoint's own unless the configuration says otherwise."""
        return self.model.precision(self.config.dtype)

    @property
    def dtype(self) -> str:
        """The number format that most weights are in."""
        return self.precision.dtype

    @property
    def kv_dtype(self) -> str:
        return self.model.kv_precision(self.config.kv_dtype, self.config.dtype)

    @property
    def is_plain(self) -> bool:
        """Whether all layers attend in full, over keys and values of their own."""
        return self.model.mla is None and set(self.model.attention_layers) == {"full"}

    def operators(self, stage: int = 0) -> list[Operator]:
        """What one rank of a pipeline stage runs."""
        names = ("dtype", "kv_dtype", "expert_load", "expert_exchange", "sampler")
        return stage_operators(
            self.model, self.parallelism, stage, **{name: getattr(self.config, name) for name in names}
        )


Factory = Callable[[Context], Source]

_SHIPPED = Path(__file__).parent.parent / "data"


def timing_source(name: str, **traits: Any) -> Callable[[Factory], Factory]:
    """Make a source available as `timing.source: NAME`; `traits` are the fields of its spec (`source_registry`)."""
    return SOURCES.register(name, **traits)


def make_source(context: Context, name: str | None = None) -> Source:
    return SOURCES[name or context.config.source].make(context)


def shipped_profile(device: Device, dtype: str) -> Path | None:
    """The folder of measurements of this device that comes with the package, if there is one."""
    folder = _SHIPPED / device.name
    return folder if dtype == "bf16" and folder.is_dir() else None


@timing_source("recorded", about="the stage times of a recorded run, batch by batch (gnomon verify vidur)")
def _recorded(context: Context) -> Source:
    fix = "Replay it with `gnomon verify vidur`."
    raise ConfigError("recorded times belong to a recorded run.", where="timing.source", fix=fix)
