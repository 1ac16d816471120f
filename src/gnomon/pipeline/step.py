"""One training step from its description: assembled and run."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gnomon.core.arrays import Floats
from gnomon.core.config import build
from gnomon.core.errors import ConfigError
from gnomon.pipeline import pytorch_csv
from gnomon.pipeline.costs import TRANSFERS, StepCosts
from gnomon.pipeline.execution import execute, monte_carlo
from gnomon.pipeline.memory import Curve, micro_batches_held
from gnomon.pipeline.run import Run
from gnomon.pipeline.schedule import Schedule
from gnomon.pipeline.step_config import StepConfig
from gnomon.pipeline.study import simulate, step_costs, study_plan
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


@dataclass(frozen=True)
class StepRecord:
    """A training step that has run, as it was asked for."""

    config: StepConfig
    run: Run
    schedule: Schedule | None = None
    """None for the study, whose ranks take whatever is ready."""
    draws: Floats | None = None
    """Make-spans of the steps that were drawn, with jitter."""
    notes: list[str] = field(default_factory=list)

    @property
    def memory(self) -> list[Curve]:
        """What every rank holds, in micro-batches."""
        return micro_batches_held(self.run)


def run_step(config: StepConfig) -> StepRecord:
    """Assemble the step and run it."""
    config.check()
    if config.is_study:
        return StepRecord(config, simulate(config))
    schedule, costs = _assembled(config)
    if config.overlap_len is not None and not any(action.parts for order in schedule.ranks for action in order):
        raise ConfigError(
            f"overlap_len has no effect with the schedule {schedule.name}: no forward and backward run as one.",
            fix="Leave it out.",
        )
    run = execute(schedule, costs, seed=config.seed)
    draws = monte_carlo(schedule, costs, draws=config.draws, seed=config.seed) if costs.jitter > 0.0 else None
    return StepRecord(config, run, schedule, draws)


def _assembled(config: StepConfig) -> tuple[Schedule, StepCosts]:
    """The schedule and its costs."""
    name = config.schedule or "1f1b"
    plan = Plan(config.stages, config.n, config.chunks, memory_limit=config.memory_limit)
    if config.is_from_file:
        read = load_schedule(name, plan)
        plan = replace(plan, ranks=read.num_ranks, microbatches=read.num_microbatches)
    if config.costs is not None:
        return load_schedule(name, plan), _changed(config.costs, config)
    schedule = load_schedule(name, study_plan(config, plan, config.weight_grad_len, config.latency))
    pieces = schedule.num_stages / schedule.num_ranks
    costs = step_costs(config, pieces=pieces, weight_grad_len=config.weight_grad_len)
    return schedule, _changed(costs, config)


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
