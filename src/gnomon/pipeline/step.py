"""One training step from its description: a schedule, and costs that are given or come from a model and a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.errors import DoesNotFitError
from gnomon.core.units import GB
from gnomon.pipeline import pytorch_csv
from gnomon.pipeline.memory import Curve, activations
from gnomon.pipeline.run import Run
from gnomon.pipeline.schedule import Schedule
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


def training_plan(training: Training, plan: Plan) -> Plan:
    """The plan with the times of a model's average rank, for schedules that are made to measure."""
    costs = TrainingCosts(training, plan.ranks)
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
    device_bytes: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether every rank's memory is enough."""
        return bool((self.peak_bytes <= self.device_bytes).all())

    def check(self) -> None:
        """Raise unless it fits."""
        if not self.fits:
            rank = int(np.argmax(self.peak_bytes))
            raise DoesNotFitError(
                f"rank {rank} needs {self.peak_bytes[rank] / GB:.1f} GB of the GPU's {self.device_bytes / GB:.1f} GB.",
                fix="Raise tensor_parallel or the number of stages, shard the optimizer, or recompute.",
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
