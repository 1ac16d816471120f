"""A training step that has run: its tasks, what they are, and when they ran."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.pipeline import fluid
from gnomon.pipeline.fluid import COMPUTE, TaskGraph, Trace
from gnomon.pipeline.graph import Label


@dataclass(frozen=True)
class Run:
    """One finished training step."""

    title: str
    num_ranks: int
    graph: TaskGraph
    labels: list[Label]
    weights: Floats
    tiers: Ints
    trace: Trace

    @property
    def total_time(self) -> float:
        return self.trace.total_time

    @property
    def throttled(self) -> list[tuple[str, int, int]]:
        """(type, micro-batch, stage) of the transfers that back-pressure slowed, sorted."""
        return sorted(self.labels[task][:3] for task in np.flatnonzero(self.trace.tasks.throttled))

    @cached_property
    def computes(self) -> list[list[int]]:
        """For every rank its passes (numbers of tasks), by start."""
        tasks = self.trace.tasks
        lists: list[list[int]] = [[] for _ in range(self.num_ranks)]
        for task in np.flatnonzero(tasks.channel == COMPUTE):
            lists[tasks.rank[task]].append(int(task))
        return [sorted(numbers, key=lambda task: tasks.start[task]) for numbers in lists]

    @property
    def busy(self) -> Floats:
        tasks = self.trace.tasks
        return np.array([sum(tasks.end[k] - tasks.start[k] for k in numbers) for numbers in self.computes])

    @property
    def spans(self) -> Floats:
        """From the first start to the last end of each rank's passes."""
        tasks = self.trace.tasks
        return np.array([tasks.end[numbers[-1]] - tasks.start[numbers[0]] for numbers in self.computes])

    @property
    def bubble(self) -> float:
        """Idle share of all ranks' time."""
        return 1.0 - float(self.busy.sum()) / (self.num_ranks * self.total_time)

    def again(self, graph: TaskGraph) -> Run:
        """This step with other work."""
        return replace(self, graph=graph, trace=_trace(graph, self.num_ranks, self.weights, self.tiers, record=False))


def run_graph(
    title: str, num_ranks: int, graph: TaskGraph, labels: list[Label], priorities: tuple[Floats, Ints], *, record: bool
) -> Run:
    """Run a graph to its end; `record` keeps the shares of links over time."""
    weights, tiers = priorities
    return Run(title, num_ranks, graph, labels, weights, tiers, _trace(graph, num_ranks, weights, tiers, record=record))


def _trace(graph: TaskGraph, num_ranks: int, weights: Floats, tiers: Ints, *, record: bool) -> Trace:
    trace = fluid.run(graph, num_ranks, weights, tiers, record=record)
    assert not np.isnan(trace.tasks.end).any(), "a task never ran: the schedule was not validated"
    return trace
