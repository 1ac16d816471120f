"""What a schedule is made for, and the registry that schedules add themselves to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gnomon.core.errors import ConfigError
from gnomon.core.registry import Registry
from gnomon.pipeline.schedule import Schedule


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


@dataclass(frozen=True)
class Family:
    """A schedule's generator and what to say about it."""

    make: Callable[[Plan], Schedule]
    summary: str
    source: str
    bubble: str
    """Closed form of the idle time of a rank, without communication."""
    memory: str
    """Peak activations, in those of one micro-batch on one rank."""


SCHEDULES: Registry[Family] = Registry("schedule")
