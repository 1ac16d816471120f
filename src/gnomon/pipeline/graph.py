"""Building task graphs: tasks are added one by one, edges by number, and frozen into arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnomon.pipeline.fluid import TASK, TaskGraph

_COLUMNS = ("work", "channel", "rank", "order", "type", "receiver", "impact")


class Label(NamedTuple):
    """What a task is, for people and pictures."""

    kind: str  # forward, backward, input_grad, weight_grad, overlap; fwd_prop, grad_prop, grad_sync, gather, latency.
    microbatch: int
    stage: int
    other: Label | None = None  # Of an overlap: the backward that runs beside the forward.
    share: float = 1.0  # Of a pass or a transfer in pieces: this one's part of it.

    def __str__(self) -> str:
        text = f"{self.kind} {self.microbatch} at stage {self.stage}"
        return f"{text} with {self.other}" if self.other else text


class GraphBuilder:
    """Collects tasks and edges; `build` turns them into the arrays the engine runs."""

    def __init__(self) -> None:
        self.labels: list[Label] = []
        self._rows: list[tuple[float, ...]] = []
        self._edges: list[tuple[int, int]] = []

    def add(
        self, label: Label, work: float, channel: int, rank: int, *, order: int = 0, kind: int = 0, receiver: int = -1,
        impact: float = 0.0,
    ) -> int:  # fmt: skip
        """A task (`TASK` says what the columns are); returns its number."""
        self.labels.append(label)
        self._rows.append((work, channel, rank, order, kind, receiver, impact))
        return len(self._rows) - 1

    def after(self, task: int, *predecessors: int) -> None:
        self._edges.extend((predecessor, task) for predecessor in predecessors)

    def build(self) -> TaskGraph:
        edges = np.array(self._edges, dtype=np.int64).reshape(-1, 2)
        edges = edges[np.argsort(edges[:, 0], kind="stable")]
        rows = np.searchsorted(edges[:, 0], np.arange(len(self._rows) + 1))
        tasks = np.zeros(len(self._rows), TASK).view(np.recarray)
        for name, column in zip(_COLUMNS, zip(*self._rows, strict=True), strict=True):
            tasks[name] = column
        tasks.remaining = tasks.work
        tasks.first_successor, tasks.end_successor = rows[:-1], rows[1:]
        tasks.missing = np.bincount(edges[:, 1], minlength=tasks.size)
        tasks.ready = tasks.start = tasks.end = np.nan
        return TaskGraph(tasks, np.ascontiguousarray(edges[:, 1]))
