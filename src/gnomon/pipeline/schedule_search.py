"""The best schedule within a memory limit, and the front of schedules that nothing beats in both time and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gnomon.core.errors import ConfigError
from gnomon.pipeline.costs import StepCosts
from gnomon.pipeline.execution import execute
from gnomon.pipeline.memory import micro_batches_held
from gnomon.pipeline.run import Run
from gnomon.pipeline.schedule import Schedule
from gnomon.pipeline.validation import validate
from gnomon.pipeline.zoo import SCHEDULES, Plan


@dataclass(frozen=True)
class Candidate:
    """One schedule and what it comes to."""

    name: str
    schedule: Schedule
    total_time: float
    bubble: float
    memory: float
    """Peak of the fullest rank, in the unit of the search's limit."""
    is_on_front: bool = False
    """No other candidate is as fast with less memory, or as small and faster."""


@dataclass(frozen=True)
class Found:
    """The outcome of a search."""

    candidates: list[Candidate]
    """By time."""
    skipped: dict[str, str]
    """Schedules that this plan does not allow, and why."""
    limit: float | None

    @property
    def best(self) -> Candidate | None:
        """The fastest within the limit."""
        return next((one for one in self.candidates if self.limit is None or one.memory <= self.limit), None)


CostsOf = Callable[[Schedule], StepCosts]
MemoryOf = Callable[[Schedule, Run], float]


def search(plan: Plan, costs_of: CostsOf, *, memory_of: MemoryOf | None = None, limit: float | None = None) -> Found:
    """Execute every built-in schedule that fits `plan` and compare their time and memory.

    Memory is counted in one micro-batch's activations on one rank, unless `memory_of` says otherwise.
    """
    candidates, skipped = [], {}
    specs = [SCHEDULES[name] for name in SCHEDULES]
    for spec, name, variant in [(one, *named) for one in specs for named in one.variants(one.name, plan).items()]:
        try:
            schedule = spec.make(variant)
            costs = costs_of(schedule)
        except ConfigError as error:
            skipped[name] = error.what
            continue
        validate(schedule)
        run = execute(schedule, costs, record=False)
        memory = memory_of(schedule, run) if memory_of else max(curve.peak for curve in micro_batches_held(run))
        candidates.append(Candidate(name, schedule, run.total_time, run.bubble, memory))
    candidates.sort(key=lambda one: (one.total_time, one.memory))
    return Found(_with_front(candidates), skipped, limit)


def _with_front(candidates: list[Candidate]) -> list[Candidate]:
    """Mark the front of candidates that are sorted by time: each must need less memory than all faster ones."""
    smallest = np.inf
    marked = []
    for one in candidates:
        marked.append(replace(one, is_on_front=one.memory < smallest - 1e-9))
        smallest = min(smallest, one.memory)
    return marked
