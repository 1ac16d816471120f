"""What a schedule is made for, and the registry that schedules add themselves to."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gnomon.core.errors import ConfigError
from gnomon.core.registry import Registry
from gnomon.core.text import own_yaml
from gnomon.pipeline.schedule import Schedule

T = TypeVar("T", bound=Callable[..., Schedule])

MAX_PASSES = 250_000  # Micro-batches times stages: each is a handful of tasks, and a bar in the picture.


def check_passes(ranks: int, microbatches: int, chunks: int = 1) -> None:
    """Refuse a step that is larger than anybody can look at."""
    passes = ranks * microbatches * chunks
    if passes > MAX_PASSES:
        what = f"{microbatches:,} micro-batches x {ranks * chunks:,} stages: {passes:,} passes, at most {MAX_PASSES:,}."
        raise ConfigError(what, fix="A step with fewer micro-batches has the same shape.")


@dataclass(frozen=True)
class Plan:
    """What a schedule is made for. Times are those of a whole rank for one micro-batch, in any one unit."""

    ranks: int
    microbatches: int
    chunks: int = 2
    """Stages per rank, for interleaved schedules."""
    forward: float = 1.0
    input_grad: float = 1.0
    weight_grad: float = 1.0
    hop: float = 0.0
    """Time from the end of a pass to its result on the next rank."""
    memory_limit: float | None = None
    """For the memory-limited heuristics: activations per rank, in those of one micro-batch on one rank."""
    weight_grad_memory: float = 1.0
    """How much of a pass's activations stays until its weight gradient is done."""

    def __post_init__(self) -> None:
        for name in ("ranks", "microbatches", "chunks"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1 (given: {getattr(self, name)}).")
        check_passes(self.ranks, self.microbatches, self.chunks if self.chunks > 2 else 1)
        if self.memory_limit is not None and not 0 < self.memory_limit < math.inf:
            raise ConfigError(f"memory_limit must be positive (given: {self.memory_limit}).")


@dataclass(frozen=True)
class ScheduleSpec:
    """A registered schedule with all its traits."""

    name: str
    make: Callable[[Plan], Schedule]
    summary: str = ""
    """What it does, in one line."""
    source: str = ""
    """Where it comes from."""
    bubble: str = ""
    """Closed form of the idle time of a rank, without communication."""
    memory: str = ""
    """Peak activations, in those of one micro-batch on one rank."""
    takes_chunks: bool = False
    """It reads `Plan.chunks`."""
    stages_per_rank: int = 1
    """Pieces of the model over ranks, where it does not read `Plan.chunks`."""
    overlaps_exchange: bool = False
    """Experts' tokens of a forward are exchanged while a backward computes, and the other way round."""
    keeps_limit: bool = False
    """It keeps `Plan.memory_limit` by itself, counting exactly what stays for the weight gradient."""
    is_packed: bool = False
    """A heuristic packs its passes: two implementations of it may differ a little."""
    counts_spans: bool = False
    """Its papers count the longest span of a rank, not the make-span: the next step begins where a rank is done."""


_BUILT_IN: dict[str, dict[str, Any]] = own_yaml(Path(__file__).parent / "schedules.yaml")
SCHEDULES: Registry[ScheduleSpec] = Registry(
    "schedule",
    ScheduleSpec,
    built_in={name: f"gnomon.pipeline.zoo.{traits.pop('module')}" for name, traits in _BUILT_IN.items()},
)


def pipeline_schedule(name: str, **traits: Any) -> Callable[[T], T]:
    """Register a function from a `Plan` to a schedule under `name`; `traits` are the fields of its `ScheduleSpec`."""
    return SCHEDULES.register(name, **traits)


def built_in(name: str) -> Callable[[T], T]:
    """Register a schedule of this package, with its traits in schedules.yaml."""
    return pipeline_schedule(name, **_BUILT_IN[name])
