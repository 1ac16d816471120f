"""The communication-priority study: one training step of 1F1B whose transfers share links by priority."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import PositiveInt, model_validator

from gnomon.core.arrays import Floats
from gnomon.core.config import Config
from gnomon.core.errors import ConfigError
from gnomon.pipeline.costs import TRANSFERS, Length, Priority, Share, StepCosts, priorities
from gnomon.pipeline.execution import StepGraph, step_graph
from gnomon.pipeline.fluid import TaskGraph
from gnomon.pipeline.graph import Label
from gnomon.pipeline.run import Run, run_graph
from gnomon.pipeline.zoo import Plan, check_passes, make

KINDS = ("forward", "backward", *TRANSFERS)


class Study(Config):
    """One run of the study."""

    n: PositiveInt = 8
    """Micro-batches."""
    stages: PositiveInt = 4
    """Pipeline stages, one GPU each."""
    fwd_len: Length = 1.0
    """Time of a forward pass of one micro-batch through one stage."""
    bwd_len: Length = 2.0
    """Time of a backward pass."""
    prop_len: Length = 1.0
    """Time to send activations, or their gradients, over an idle link."""
    grad_prop_len: Length | None = None
    """Time to send gradients of activations, where it differs from `prop_len`."""
    sync_base_len: Length = 2.0
    """Time to synchronise one micro-batch's gradients over an idle link."""
    fwd_impact: Share = 0.2
    """Share of its rate that a forward loses while grad_sync has the whole link."""
    bwd_impact: Share = 0.2
    """Share of its rate that a backward loses while grad_sync has the whole link."""
    sync_freq: PositiveInt = 1
    """Synchronise gradients after every this many micro-batches; what is left over, at the end."""
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
        check_passes(self.stages, self.n)
        return self


def simulate(study: Study, *, record: bool = True) -> Run:
    """Run one configuration; `record` keeps the shares of links over time."""
    graph, labels = study_graph(study)
    title = f"1F1B, {study.dispatch} dispatch"
    wanted = priorities(study.fwd_prop, study.grad_prop, study.grad_sync)
    return run_graph(title, study.stages, graph, labels, wanted, record=record)


def study_graph(study: Study) -> tuple[TaskGraph, list[Label]]:
    """Tasks and dependencies of one study; `strict` is the 1F1B schedule, `greedy` has a graph of its own."""
    if study.dispatch == "strict":
        return step_graph(make("1f1b", Plan(study.stages, study.n)), step_costs(study))
    graph, labels, units = _greedy_structure(study.n, study.stages, study.sync_freq, study.ideal)
    back = study.prop_len if study.grad_prop_len is None else study.grad_prop_len
    lengths = np.array([study.fwd_len, study.bwd_len, study.prop_len, back, study.sync_base_len])
    impacts = np.array([study.fwd_impact, study.bwd_impact, 0.0, 0.0, 0.0])
    tasks = graph.tasks.copy()
    tasks.work = tasks.remaining = units @ lengths
    tasks.impact = (units > 0) @ impacts
    return graph._replace(tasks=tasks), labels


_SAME = ("sync_freq", "fwd_impact", "bwd_impact", "fwd_prop", "grad_prop", "grad_sync")
"""Fields of a study that are called so in the costs of a step too."""


def step_costs(study: Study, *, pieces: float = 1.0, weight_grad_len: float | None = None) -> StepCosts:
    """The study's lengths as the costs of any schedule.

    The lengths are those of a whole GPU, which a schedule may cut into `pieces` stages. Of a backward the weight
    gradient takes `weight_grad_len`, half of it unless given.
    """
    weight_grad = study.bwd_len / 2 if weight_grad_len is None else weight_grad_len
    if weight_grad > study.bwd_len:
        raise ConfigError(f"a weight gradient of {weight_grad:g} is longer than the backward ({study.bwd_len:g}).")
    return StepCosts(
        forward=study.fwd_len / pieces, input_grad=(study.bwd_len - weight_grad) / pieces,
        weight_grad=weight_grad / pieces, send=study.prop_len, send_grad=study.grad_prop_len,
        sync=study.sync_base_len / pieces, contention=not study.ideal,
        **{name: getattr(study, name) for name in _SAME},
    )  # fmt: skip


def study_plan(study: Study, plan: Plan, weight_grad_len: float | None = None, latency: float = 0.0) -> Plan:
    """The plan with the study's lengths, for schedules that are made to measure."""
    weight_grad = study.bwd_len / 2 if weight_grad_len is None else weight_grad_len
    return replace(
        plan, forward=study.fwd_len, input_grad=max(study.bwd_len - weight_grad, 0.0), weight_grad=weight_grad,
        hop=study.prop_len + latency,
    )  # fmt: skip


class _Greedy(StepGraph):
    """1F1B whose ranks take whatever is ready: the lowest forward, else the lowest backward."""

    def keep_order(self, passes: list[list[int]]) -> None:
        """Forwards are held back by p in flight, and by one at the last stage; nothing else is."""
        forwards, backwards = np.array(passes)[:, 0].reshape(2, -1).tolist()
        stages, stage = self.num_stages, self.builder.labels[forwards[0]].stage
        if stage == 0:
            for i, task in enumerate(forwards[1:], start=1):
                self.builder.after(task, forwards[i - 1] if i < stages else backwards[i - stages])
        if stage == stages - 1 > 0:
            for before, after in zip(backwards, forwards[1:], strict=False):
                self.builder.after(after, before)


@lru_cache(maxsize=64)
def _greedy_structure(n: int, stages: int, sync_freq: int, ideal: bool) -> tuple[TaskGraph, list[Label], Floats]:
    """The graph without lengths, and per task how many of each length of `KINDS` it takes."""
    ones = StepCosts(input_grad=0.5, weight_grad=0.5, send=1.0, sync=1.0, sync_freq=sync_freq, contention=not ideal)
    graph, labels = _Greedy(make("gpipe", Plan(stages, n)), ones).build()
    units = np.zeros((len(labels), len(KINDS)))
    units[np.arange(len(labels)), [KINDS.index(label.kind) for label in labels]] = graph.tasks.work
    return graph, labels, units
