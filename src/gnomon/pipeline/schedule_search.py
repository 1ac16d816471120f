"""The best schedule within a memory limit, and the front of schedules that nothing beats in both time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

LIMITS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
"""Memory limits to pack zb-auto for, in activations per rank of the pipe."""


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
    for name, family, variant in _variants(plan):
        try:
            schedule = SCHEDULES[family].make(variant)
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


def _variants(plan: Plan) -> Iterator[tuple[str, str, Plan]]:
    for family in SCHEDULES:
        if family == "interleaved":
            for chunks in (2, 3, 4):
                yield f"interleaved v={chunks}", family, replace(plan, chunks=chunks)
        elif family == "zb-auto":
            for factor in LIMITS:
                limit = factor * plan.ranks
                yield f"zb-auto {limit:g}", family, replace(plan, memory_limit=limit)
        elif family not in ("zb-1p", "zb-2p"):  # Those are zb-auto at p and 2p.
            yield family, family, replace(plan, memory_limit=None)


def _with_front(candidates: list[Candidate]) -> list[Candidate]:
    """Mark the front of candidates that are sorted by time: each must need less memory than all faster ones."""
    smallest = np.inf
    marked = []
    for one in candidates:
        marked.append(replace(one, is_on_front=one.memory < smallest - 1e-9))
        smallest = min(smallest, one.memory)
    return marked
