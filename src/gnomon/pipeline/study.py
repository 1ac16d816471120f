"""The communication-priority study: one training step of 1F1B whose transfers share links by priority."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from pydantic import model_validator

from gnomon.core.config import Config
from gnomon.core.errors import ConfigError
from gnomon.pipeline import fluid
from gnomon.pipeline.fluid import FWD_PROP, GRAD_PROP, GRAD_SYNC, NO_TIER, Floats, Ints, TaskGraph, Trace
from gnomon.pipeline.graph import GraphBuilder

TRANSFERS = ("fwd_prop", "grad_prop", "grad_sync")
Priority = float | str
"""A weight in [0, 1], or the letter of an exclusive tier: 'a' goes before 'b'."""


class Study(Config):
    """One run of the study."""

    n: int = 8
    """Micro-batches."""
    stages: int = 4
    """Pipeline stages, one GPU each."""
    fwd_len: float = 1.0
    """Time of a forward pass of one micro-batch through one stage."""
    bwd_len: float = 2.0
    """Time of a backward pass."""
    prop_len: float = 1.0
    """Time to send activations, or their gradients, at the full link."""
    sync_base_len: float = 2.0
    """Time to synchronise one micro-batch's gradients at the full link."""
    fwd_impact: float = 0.2
    """Share of its rate that a forward loses while grad_sync has the whole link."""
    bwd_impact: float = 0.2
    """The same for a backward."""
    sync_freq: int = 1
    """Synchronise gradients after every this many micro-batches."""
    fwd_prop: Priority = 0.5
    """Weight of activations on the link, or an exclusive tier."""
    grad_prop: Priority = 0.5
    """Weight of activation gradients on the link, or an exclusive tier."""
    grad_sync: Priority = 0.5
    """Weight of gradient synchronisation on the link, or an exclusive tier."""
    dispatch: Literal["greedy", "strict"] = "greedy"
    """greedy: lowest ready forward, else lowest ready backward; strict: true 1F1B order."""
    ideal: bool = False
    """Every ready transfer at full rate: no sharing, no back-pressure, no interference."""

    @model_validator(mode="after")
    def _sensible(self) -> Study:
        for name in ("n", "stages", "sync_freq"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1 (given: {getattr(self, name)}).")
        if self.sync_freq > self.n:
            raise ConfigError(
                f"sync_freq {self.sync_freq} is more than the {self.n} micro-batches.",
                fix="Choose sync_freq between 1 and n.",
            )
        for name in ("fwd_len", "bwd_len", "prop_len", "sync_base_len"):
            if not 0.0 <= getattr(self, name) < np.inf:
                raise ConfigError(f"{name} must be a length of at least 0 (given: {getattr(self, name)}).")
        for name in ("fwd_impact", "bwd_impact"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"{name} must be in [0, 1) (given: {getattr(self, name)}).")
        for name in TRANSFERS:
            _check_priority(name, getattr(self, name))
        return self


@dataclass(frozen=True)
class StudyResult:
    """A run of the study, with everything a picture needs."""

    study: Study
    graph: TaskGraph
    labels: list[tuple[str, int, int]]
    trace: Trace

    @property
    def total_time(self) -> float:
        """The make-span of the step."""
        return float(self.trace.total_time)

    @property
    def throttled(self) -> list[tuple[str, int, int]]:
        """(type, micro-batch, stage) of the transfers that back-pressure slowed, sorted."""
        return sorted(self.labels[task] for task in np.flatnonzero(self.trace.tasks.throttled))


def simulate(study: Study, *, record: bool = True) -> StudyResult:
    """Run one configuration; `record` keeps the shares over time."""
    graph, labels = study_graph(study)
    weights, tiers = priorities(study.fwd_prop, study.grad_prop, study.grad_sync)
    trace = fluid.run(graph, study.stages, weights, tiers, record=record)
    return StudyResult(study, graph, labels, trace)


def priorities(*values: Priority) -> tuple[Floats, Ints]:
    """Weights and tiers as the engine reads them, from weights and tier letters in the order of `TRANSFERS`."""
    weights = np.array([0.0 if isinstance(v, str) else v for v in values])
    tiers = np.array([ord(v) - ord("a") if isinstance(v, str) else NO_TIER for v in values], dtype=np.int64)
    return weights, tiers


def _check_priority(name: str, value: Priority) -> None:
    if isinstance(value, str):
        good = len(value) == 1 and "a" <= value <= "z"
    else:
        good = 0.0 <= value < np.inf
    if not good:
        raise ConfigError(f"{name} must be a weight of at least 0 or a tier letter a-z (given: {value!r}).")


def study_graph(study: Study) -> tuple[TaskGraph, list[tuple[str, int, int]]]:
    """Tasks and dependencies of one study; structures are cached, lengths filled in."""
    graph, labels, units = _structure(study.n, study.stages, study.sync_freq, study.dispatch, study.ideal)
    lengths = np.array([study.fwd_len, study.bwd_len, study.prop_len, study.prop_len, study.sync_base_len])
    impacts = np.array([study.fwd_impact, study.bwd_impact, 0.0, 0.0, 0.0])
    tasks = graph.tasks.copy()
    tasks.work = tasks.remaining = units @ lengths
    tasks.impact = (units > 0) @ impacts
    return graph._replace(tasks=tasks), labels


@lru_cache(maxsize=64)
def _structure(
    n: int, stages: int, sync_freq: int, dispatch: str, ideal: bool
) -> tuple[TaskGraph, list[tuple[str, int, int]], Floats]:
    """The graph without lengths, and per task how many of each length it takes (forward, backward, 3 transfers)."""
    b = GraphBuilder()
    last = stages - 1
    fwd = [[b.compute(("forward", i, j), j, 1.0, i) for j in range(stages)] for i in range(n)]
    bwd = [[b.compute(("backward", i, j), j, 1.0, n + i) for j in range(stages)] for i in range(n)]

    def send(kind: int, i: int, sender: int, receiver: int) -> int:
        label = (TRANSFERS[kind], i, sender)
        if ideal:
            return b.free(label, sender, 1.0, kind)
        return b.transfer(label, sender, receiver, kind, 1.0, i * len(TRANSFERS) + kind)

    gradients: dict[int, int] = {}
    for i in range(n):
        for j in range(stages):
            b.after(bwd[i][j], fwd[i][j])
            if j < last:
                prop = send(FWD_PROP, i, j, j + 1)
                b.after(prop, fwd[i][j])
                b.after(fwd[i][j + 1], prop)
            if j > 0:
                prop = send(GRAD_PROP, i, j, j - 1)
                b.after(prop, bwd[i][j])
                b.after(bwd[i][j - 1], prop)
    for j in range(stages):
        _sync_gradients(b, n, j, sync_freq, bwd, send, gradients)
    if dispatch == "greedy":
        _greedy_edges(b, n, stages, fwd, bwd)
    else:
        for j in range(stages):
            order = _strict_order(n, stages - j - 1, [fwd[i][j] for i in range(n)], [bwd[i][j] for i in range(n)])
            for before, task in pairwise(order):
                b.after(task, before)
    kinds = ("forward", "backward", *TRANSFERS)
    units = np.zeros((len(b.labels), len(kinds)))
    for task, (kind, _, _) in enumerate(b.labels):
        units[task, kinds.index(kind)] = gradients.get(task, 1)
    return b.build(), b.labels, units


def _sync_gradients(
    b: GraphBuilder, n: int, stage: int, sync_freq: int, bwd: list[list[int]], send: Any, gradients: dict[int, int]
) -> None:
    """Add the grad_syncs of one stage: each waits for the one before, but a leftover one does not."""
    previous = None
    for i in range(sync_freq - 1, n, sync_freq):
        sync = send(GRAD_SYNC, i, stage, -1)
        gradients[sync] = sync_freq
        b.after(sync, bwd[i][stage])
        if previous is not None:
            b.after(sync, previous)
        previous = sync
    if n % sync_freq:
        sync = send(GRAD_SYNC, n - 1, stage, -1)
        gradients[sync] = n % sync_freq
        b.after(sync, bwd[n - 1][stage])


def _greedy_edges(b: GraphBuilder, n: int, stages: int, fwd: list[list[int]], bwd: list[list[int]]) -> None:
    """What holds forwards back when ranks are free to choose: p micro-batches in flight, one at the last stage."""
    for i in range(1, n):
        if i < stages:
            b.after(fwd[i][0], fwd[i - 1][0])
        else:
            b.after(fwd[i][0], bwd[i - stages][0])
        if stages > 1:
            b.after(fwd[i][-1], bwd[i - 1][-1])


def _strict_order(n: int, warm_up: int, fwd: list[int], bwd: list[int]) -> list[int]:
    """1F1B: `warm_up` forwards, then one forward and one backward in turn, then the rest."""
    warm_up = min(warm_up, n)
    order = fwd[:warm_up]
    for i in range(n):
        order += fwd[warm_up + i : warm_up + i + 1]
        order.append(bwd[i])
    return order
