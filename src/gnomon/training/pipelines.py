"""A schedule run with given seconds per stage: the graph of tasks is made once for all steps of its size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.pipeline.costs import StepCosts
from gnomon.pipeline.execution import execute
from gnomon.pipeline.fluid import COMPUTE, LINK
from gnomon.pipeline.run import Run
from gnomon.pipeline.zoo import SCHEDULES, Plan, make

PASSES = ("forward", "input_grad", "weight_grad", "backward")


@dataclass(frozen=True)
class Template:
    """A schedule that has run with costs of one, and what each of its tasks is."""

    run: Run
    stage: Ints
    kind: Ints
    """Index into `PASSES`; 4 for a transfer, 5 for its latency."""

    def with_seconds(self, seconds: Floats, send: float, latency: float) -> Run:
        """This run with other `seconds` of forward, input and weight gradient per stage ([3, stages])."""
        tasks = self.run.graph.tasks.copy()
        table = np.vstack([seconds, seconds[1] + seconds[2]])
        work = np.where(self.kind == 4, send, latency)
        is_pass = self.kind < 4
        work[is_pass] = table[self.kind[is_pass], self.stage[is_pass]]
        tasks.work = tasks.remaining = np.maximum(work, 1e-12)
        return self.run.again(self.run.graph._replace(tasks=tasks))


@lru_cache(maxsize=256)
def template(name: str, ranks: int, microbatches: int, chunks: int) -> Template:
    """A schedule of this size."""
    plan = Plan(ranks, microbatches, chunks if SCHEDULES[name].takes_chunks else 2)
    run = execute(make(name, plan), StepCosts(forward=1.0, send=1.0, latency=1.0), record=False)
    tasks = run.graph.tasks
    kinds = [
        PASSES.index(label.kind) if channel == COMPUTE else 4 if channel == LINK else 5
        for label, channel in zip(run.labels, tasks.channel, strict=True)
    ]
    return Template(run, np.array([label.stage for label in run.labels]), np.array(kinds))


def span(
    name: str, ranks: int, chunks: int, microbatches: int, seconds: Floats, send: float, latency: float
) -> tuple[float, Run]:
    """The make-span of a schedule, and its run.

    Once a schedule is under way it repeats: of many micro-batches only as many run as show how long each takes.
    """
    few = 2 * ranks
    if microbatches <= 2 * few:
        run = template(name, ranks, microbatches, chunks).with_seconds(seconds, send, latency)
        return run.total_time, run
    first, more = (
        template(name, ranks, count, chunks).with_seconds(seconds, send, latency) for count in (few, few + ranks)
    )
    each = (more.total_time - first.total_time) / ranks
    return first.total_time + (microbatches - few) * each, first
