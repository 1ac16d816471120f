"""A schedule run with given seconds per stage: the graph of tasks is made once for all steps of its size.

Activations between stages, gradients and weights between copies run as transfers of the fluid engine, beside the passes
and on the links that they share.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.pipeline.costs import StepCosts
from gnomon.pipeline.execution import execute
from gnomon.pipeline.fluid import COMPUTE
from gnomon.pipeline.memory import micro_batches_held
from gnomon.pipeline.run import Run
from gnomon.pipeline.zoo import SCHEDULES, Plan, make
from gnomon.training.config import TrainConfig

KINDS = ("forward", "input_grad", "weight_grad", "backward", "grad_sync", "gather", "send", "latency", "overlap")
"""Rows of the table of seconds that tasks take theirs from."""
IN_TURN = ("1f1b", "gpipe", "interleaved")  # Schedules whose ranks hold every p-th stage.


@dataclass(frozen=True)
class StageSeconds:
    """One micro-batch through every stage, and what copies exchange, on one GPU of each."""

    forward: Floats
    input_grad: Floats
    weight_grad: Floats
    send: float
    """Activations to the next stage over an idle link."""
    latency: float
    sync: Floats
    """Gradients of a stage added up over copies."""
    gather: Floats
    """Weights of a stage gathered from copies."""
    exchange: Floats
    """Of the forward, tokens to their experts and back, which another micro-batch's backward can hide."""
    exchange_back: Floats
    """The same of the backward."""
    buckets: int = 1
    fully_sharded: bool = False
    own_links: bool = False
    impact: float = 0.0
    """Share of its rate that a pass loses while copies exchange over the whole link."""

    @property
    def has_data(self) -> bool:
        """Whether copies exchange anything."""
        return bool(self.sync.any() or self.gather.any())


@dataclass(frozen=True)
class Template:
    """A schedule that has run with costs of one, and what each of its tasks is."""

    run: Run
    kind: Ints
    """Index into `KINDS`."""
    stage: Ints
    other: Ints
    """Of an overlap: the backward's stage."""
    share: Floats
    """Of the whole pass or transfer."""

    def with_seconds(self, s: StageSeconds) -> Run:
        ones = np.ones_like(s.forward)
        rows = [s.forward, s.input_grad, s.weight_grad, s.input_grad + s.weight_grad, s.sync, s.gather]
        table = np.vstack([*rows, s.send * ones, s.latency * ones, s.forward])
        work = table[self.kind, self.stage] * self.share
        pairs = self.kind == KINDS.index("overlap")
        if pairs.any():
            f, b = self.stage[pairs], self.other[pairs]
            sent = s.exchange[f] + s.exchange_back[b]
            both = s.forward[f] + table[3][b] - sent
            work[pairs] = np.maximum(both, sent)
        tasks = self.run.graph.tasks.copy()
        tasks.work = tasks.remaining = np.maximum(work, 1e-12)
        tasks.impact = np.where(tasks.channel == COMPUTE, s.impact, 0.0)
        return self.run.again(self.run.graph._replace(tasks=tasks))


@lru_cache(maxsize=256)
def template(
    name: str, ranks: int, microbatches: int, chunks: int, buckets: int = 0, sharded: bool = False, own: bool = False
) -> Template:
    """A schedule of this size; `buckets` of 0 leaves out what copies exchange."""
    plan = Plan(ranks, microbatches, chunks if SCHEDULES[name].takes_chunks else 2)
    data = (
        {"sync": 1.0, "gather": 1.0, "buckets": buckets, "fully_sharded": sharded, "own_links": own} if buckets else {}
    )
    if sharded:
        data["sync_freq"] = 1
    run = execute(make(name, plan), StepCosts(forward=1.0, send=1.0, latency=1.0, **data), record=False)
    names = {kind: at for at, kind in enumerate(KINDS)} | {"fwd_prop": 6, "grad_prop": 6}
    labels = run.labels
    return Template(
        run, np.array([names[label.kind] for label in labels]), np.array([label.stage for label in labels]),
        np.array([label.other.stage if label.other else label.stage for label in labels]),
        np.array([label.share for label in labels]),
    )  # fmt: skip


def span(config: TrainConfig, seconds: StageSeconds, *, with_data: bool = True) -> tuple[float, Run]:
    """The make-span of a configuration's schedule, and its run.

    Once a schedule is under way it repeats: of many micro-batches only as many run as show how long each takes (those
    whose chunks lie in a V, or that put weight gradients off, are under way later).
    """
    c, ranks, microbatches = config, config.pipeline_parallel, config.num_microbatches
    few = ranks * (2 if c.schedule_name in IN_TURN or SCHEDULES[c.schedule_name].takes_chunks or ranks == 1 else 3)

    def run(count: int) -> Run:
        data = (seconds.buckets, seconds.fully_sharded, seconds.own_links) if with_data and seconds.has_data else ()
        return template(c.schedule_name, ranks, count, c.virtual_stages, *data).with_seconds(seconds)

    if microbatches <= 2 * few:
        whole = run(microbatches)
        return whole.total_time, whole
    first, more = run(few), run(few + ranks)
    each = (more.total_time - first.total_time) / ranks
    return first.total_time + (microbatches - few) * each, first


def stages_of_rank(config: TrainConfig, rank: int) -> list[int]:
    """The stages whose weights a pipeline rank holds."""
    p, name = config.pipeline_parallel, config.schedule_name
    if name in IN_TURN or SCHEDULES[name].takes_chunks or p == 1:
        return list(range(rank, config.num_stages, p))
    return _placement(name, p)[rank]


@lru_cache(maxsize=64)
def _placement(name: str, ranks: int) -> list[list[int]]:
    schedule = make(name, Plan(ranks, 2 * ranks))
    return [schedule.stages_of(rank) for rank in range(ranks)]


def in_flight(config: TrainConfig, rank: int) -> float:
    """Micro-batches whose activations a pipeline rank holds at once, as many whole ranks' worth."""
    p, v, m, name = config.pipeline_parallel, config.virtual_stages, config.num_microbatches, config.schedule_name
    if p == 1:
        return 1.0
    if name == "gpipe":
        return float(m)
    if name == "1f1b":
        return float(min(m, p - rank))
    if name == "interleaved":
        return min(m * v, (p - rank - 1) * 2 + (v - 1) * p + 1) / v
    return _held(name, p, min(m, 4 * p), v)[rank]


@lru_cache(maxsize=64)
def _held(name: str, ranks: int, microbatches: int, chunks: int) -> list[float]:
    """The same from the run of a schedule."""
    return [curve.peak for curve in micro_batches_held(template(name, ranks, microbatches, chunks).run)]
