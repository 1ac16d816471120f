"""One training step from its description: assembled, run, and what it comes to for a model on a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.config import build
from gnomon.core.errors import ConfigError, DoesNotFitError
from gnomon.core.units import GB
from gnomon.pipeline import pytorch_csv
from gnomon.pipeline.costs import TRANSFERS, StepCosts
from gnomon.pipeline.execution import execute, monte_carlo
from gnomon.pipeline.memory import Curve, activations, micro_batches_held
from gnomon.pipeline.run import Run
from gnomon.pipeline.schedule import Schedule
from gnomon.pipeline.schedule_search import Found, search
from gnomon.pipeline.step_config import StepConfig
from gnomon.pipeline.study import simulate, step_costs, study_plan
from gnomon.pipeline.training import WEIGHT_GRAD_MEMORY, Training, TrainingCosts
from gnomon.pipeline.validation import validate
from gnomon.pipeline.zoo import SCHEDULES, Plan, make


def load_schedule(name: str, plan: Plan) -> Schedule:
    """A built-in schedule for `plan`, or one from a PyTorch CSV file; valid, and within the plan's memory limit."""
    if name.lower().endswith(".csv"):
        schedule = pytorch_csv.read(name)
        validate(schedule, where=str(Path(name)), memory_limit=plan.memory_limit)
        return schedule
    schedule = make(name, plan)
    validate(schedule, memory_limit=None if SCHEDULES[name].keeps_limit else plan.memory_limit)
    return schedule


@lru_cache(maxsize=32)
def training_costs(training: Training, num_stages: int) -> TrainingCosts:
    """A model's costs, kept for the next step of the same model."""
    return TrainingCosts(training, num_stages)


@lru_cache(maxsize=32)
def training_plan(training: Training, plan: Plan) -> Plan:
    """The plan with the times of a model's average rank, for schedules that are made to measure."""
    costs = training_costs(training, plan.ranks)
    stages = costs.stages
    hop = costs.step_costs(make("1f1b", plan))
    return replace(
        plan,
        forward=float(np.mean([s.forward for s in stages])),
        input_grad=float(np.mean([s.input_grad for s in stages])),
        weight_grad=float(np.mean([s.weight_grad for s in stages])),
        hop=hop.latency + float(np.max(np.atleast_1d(hop.send))),
        weight_grad_memory=WEIGHT_GRAD_MEMORY,
    )


@dataclass(frozen=True)
class TrainingFigures:
    """What a training step of a real model comes to."""

    step_s: float
    samples_per_s: float
    tokens_per_s: float
    mfu: float
    """Model FLOPs over what all GPUs' peak would do; recomputation does not count."""
    peak_bytes: Floats
    """Per GPU of each rank: weights, gradients, optimizer, activations."""
    memory: list[Curve] = field(repr=False)
    """Per rank, in GB."""
    device_bytes: float

    @property
    def fits(self) -> bool:
        """Whether every rank's memory is enough."""
        return bool((self.peak_bytes <= self.device_bytes).all())

    def check(self) -> None:
        """Raise unless it fits."""
        if not self.fits:
            rank = int(np.argmax(self.peak_bytes))
            peak = float(self.peak_bytes[rank])
            times = math.ceil(peak / self.device_bytes)
            raise DoesNotFitError(
                f"rank {rank} needs {peak / GB:.1f} GB of the GPU's {self.device_bytes / GB:.1f} GB:"
                f" {(peak - self.device_bytes) / GB:.1f} GB too many.",
                fix=f"Cut each copy over {times} times as many GPUs (tensor_parallel, stages), shard the optimizer over"
                " data-parallel copies, recompute, or take smaller micro-batches.",
            )


def training_figures(costs: TrainingCosts, schedule: Schedule, run: Run) -> TrainingFigures:
    """Throughput, efficiency and memory of a run with a model's costs."""
    t = costs.training
    m = schedule.num_microbatches
    samples = m * t.micro_batch * t.data_parallel / run.total_time
    gpus = schedule.num_ranks * t.tensor_parallel
    static = costs.static_bytes(schedule)
    curves = activations(run, per_stage=costs.activation_bytes(), weight_grad_memory=WEIGHT_GRAD_MEMORY)
    return TrainingFigures(
        step_s=run.total_time,
        samples_per_s=samples,
        tokens_per_s=samples * t.sequence,
        mfu=costs.step_flops(m) / (run.total_time * gpus * costs.device.flops(costs.timer.context.dtype)),
        peak_bytes=np.array([held + curve.peak for held, curve in zip(static, curves, strict=True)]),
        memory=[Curve(c.times, (c.values + held) / GB) for held, c in zip(static, curves, strict=True)],
        device_bytes=float(costs.device.memory_bytes),
    )


@dataclass(frozen=True)
class StepRecord:
    """A training step that has run, as it was asked for."""

    config: StepConfig
    run: Run
    schedule: Schedule | None = None
    """None for the study, whose ranks take whatever is ready."""
    training: TrainingFigures | None = None
    """For a model on a GPU."""
    draws: Floats | None = None
    """Make-spans of the steps that were drawn, with jitter."""
    notes: list[str] = field(default_factory=list)

    @property
    def memory(self) -> list[Curve]:
        """What every rank holds: GB for a model on a GPU, else micro-batches."""
        return self.training.memory if self.training else micro_batches_held(self.run)

    @property
    def memory_unit(self) -> str:
        """The unit of `memory`."""
        return "GB" if self.training else "micro-batches"


def run_step(config: StepConfig) -> StepRecord:
    """Assemble the step and run it."""
    config.check()
    if config.is_study:
        return StepRecord(config, simulate(config))
    schedule, costs, model_costs = _assembled(config)
    if config.overlap_len is not None and not any(action.parts for order in schedule.ranks for action in order):
        raise ConfigError(
            f"overlap_len has no effect with the schedule {schedule.name}: no forward and backward run as one.",
            fix="Leave it out.",
        )
    run = execute(schedule, costs, seed=config.seed)
    draws = monte_carlo(schedule, costs, draws=config.draws, seed=config.seed) if costs.jitter > 0.0 else None
    if model_costs is None:
        return StepRecord(config, run, schedule, draws=draws)
    figures = training_figures(model_costs, schedule, run)
    figures.check()
    return StepRecord(config, run, schedule, figures, draws, model_costs.timer.notes())


def _assembled(config: StepConfig) -> tuple[Schedule, StepCosts, TrainingCosts | None]:
    """The schedule and its costs; for a model also where they come from."""
    name = config.schedule or "1f1b"
    plan = Plan(config.stages, config.n, config.chunks, memory_limit=config.memory_limit)
    if config.is_from_file:
        read = load_schedule(name, plan)
        plan = replace(plan, ranks=read.num_ranks, microbatches=read.num_microbatches)
    if config.training is not None:
        schedule = load_schedule(name, training_plan(config.training, plan))
        model_costs = training_costs(config.training, schedule.num_stages)
        sync_freq = config.sync_freq if config.is_given("sync_freq") else None
        return schedule, _changed(model_costs.step_costs(schedule, sync_freq), config), model_costs
    if config.costs is not None:
        return load_schedule(name, plan), _changed(config.costs, config), None
    schedule = load_schedule(name, study_plan(config, plan, config.weight_grad_len, config.latency))
    return schedule, _changed(_costs_by_lengths(config, schedule), config), None


def _costs_by_lengths(config: StepConfig, schedule: Schedule) -> StepCosts:
    pieces = schedule.num_stages / schedule.num_ranks
    return step_costs(config, pieces=pieces, weight_grad_len=config.weight_grad_len)


def _changed(costs: StepCosts, config: StepConfig) -> StepCosts:
    """The costs with what else was asked for."""
    names = ("fwd_impact", "bwd_impact", "latency", "jitter", "stragglers", *TRANSFERS)
    changes: dict[str, Any] = {name: getattr(config, name) for name in names if config.is_given(name)}
    if config.overlap_len is not None:
        changes["overlapped"] = config.overlap_len
    if config.link_speed:
        changes["link_speed"] = costs.link_speed | config.link_speed
    if config.ideal:
        changes["contention"] = False
    return build(StepCosts, costs.model_dump() | changes) if changes else costs


def search_schedules(config: StepConfig) -> Found:
    """Every built-in schedule with the step's costs, and the fastest whose memory stays within its limit.

    With a model the limit is the GPU's memory in GB unless given; else micro-batches, and none unless given.
    """
    config = config.model_copy(update={"schedule": "1f1b"}).check()  # Each in its own order, as that one is.
    training = config.training
    if training is None:
        plan = study_plan(config, Plan(config.stages, config.n), config.weight_grad_len)
        return search(plan, lambda schedule: _costs_by_lengths(config, schedule), limit=config.memory_limit)
    plan = training_plan(training, Plan(config.stages, config.n))
    limit = config.memory_limit
    if limit is None:
        limit = training_costs(training, plan.ranks).device.memory_bytes / GB
    sync_freq = config.sync_freq if config.is_given("sync_freq") else None

    def costs_of(schedule: Schedule) -> StepCosts:
        return training_costs(training, schedule.num_stages).step_costs(schedule, sync_freq)

    def memory_of(schedule: Schedule, run: Run) -> float:
        figures = training_figures(training_costs(training, schedule.num_stages), schedule, run)
        return float(figures.peak_bytes.max()) / GB

    return search(plan, costs_of, memory_of=memory_of, limit=limit)
