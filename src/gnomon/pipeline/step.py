"""One training step: as it is asked for (a schedule, and costs as lengths or per stage), assembled and run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from gnomon.core.arrays import Floats
from gnomon.core.config import build
from gnomon.core.errors import ConfigError
from gnomon.pipeline import pytorch_csv
from gnomon.pipeline.costs import TRANSFERS, Length, StepCosts
from gnomon.pipeline.execution import execute, monte_carlo
from gnomon.pipeline.memory import Curve, micro_batches_held
from gnomon.pipeline.run import Run
from gnomon.pipeline.schedule import Schedule
from gnomon.pipeline.study import Study, simulate, step_costs, study_plan
from gnomon.pipeline.validation import validate
from gnomon.pipeline.zoo import SCHEDULES, Plan, make

LENGTHS = ("fwd_len", "bwd_len", "prop_len", "grad_prop_len", "sync_base_len")
OF_A_SCHEDULE = (
    "stragglers", "link_speed", "jitter", "latency", "overlap_len", "weight_grad_len", "memory_limit",
)  # fmt: skip
"""Fields that mean something only where a schedule has an order of its own."""


class StepConfig(Study):
    """A training step. Without a schedule and costs it is the communication-priority study: 1F1B whose ranks
    take whatever is ready. With a schedule the same lengths apply, in its strict order."""

    schedule: str | None = None
    """A name of `gnomon pipeline schedules`, or a PyTorch CSV file; 1f1b for costs unless given."""
    costs: StepCosts | None = None
    """Costs per stage, instead of lengths."""
    chunks: PositiveInt = 2
    """Stages per rank, for interleaved."""
    weight_grad_len: Length | None = None
    """Part of a backward that can be put off; half unless given."""
    overlap_len: Length | None = None
    """A forward and a backward together; their sum unless given."""
    latency: Length = 0.0
    """Added to every transfer."""
    stragglers: dict[int, PositiveFloat] = Field(default_factory=dict)
    """Ranks whose passes take this many times as long."""
    link_speed: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Relative speed of single links, such as `1-2: 0.5` for what rank 1 sends to rank 2."""
    jitter: Length = 0.0
    """Spread of the passes' times, e.g. 0.05."""
    draws: PositiveInt = 200
    """Steps to draw when there is jitter."""
    seed: NonNegativeInt = 0
    """Of the jitter."""
    memory_limit: float | None = None
    """Activations a rank may hold, in micro-batches."""
    what_if: PositiveFloat | None = None
    """Also say what each link would bring if it were so many times as fast."""

    @property
    def is_study(self) -> bool:
        """Whether ranks take whatever is ready, instead of following a schedule."""
        return self.schedule is None and self.costs is None

    def is_given(self, name: str) -> bool:
        """Whether a field was set, be it to its default."""
        return name in self.model_fields_set

    def check(self) -> StepConfig:
        """Refuse what makes no sense, and fields that would have no effect, rather than ignore them."""
        if self.is_study:
            for name in OF_A_SCHEDULE:
                if getattr(self, name):
                    raise ConfigError(f"{name} needs a schedule.", fix="Add the schedule 1f1b, for example.")
        elif self.is_given("dispatch") and self.dispatch == "greedy":
            fix = "Leave out the schedule."
            raise ConfigError("greedy dispatch is the study's: a schedule has an order of its own.", fix=fix)
        takes_chunks = self.schedule is None or self.schedule not in SCHEDULES or SCHEDULES[self.schedule].takes_chunks
        has_jitter = self.jitter or (self.costs and self.costs.jitter)
        for is_so, reason, names in (
            (self.is_study, "the study", ("chunks", "draws")),
            (not takes_chunks, f"the schedule {self.schedule}", ("chunks",)),
            (not has_jitter, "passes without jitter", ("draws",)),
            (self.costs is not None, "costs per stage", (*LENGTHS, "weight_grad_len", "sync_freq")),
            (self.is_from_file, "a schedule from a file", ("n", "stages", "chunks")),
        ):
            for name in names:
                if is_so and self.is_given(name) and getattr(self, name) is not None:
                    raise ConfigError(f"{name} has no effect with {reason}.", fix="Leave it out.")
        if self.costs is None and self.sync_freq > self.n:  # Possible, but nobody's wish.
            what = f"sync_freq {self.sync_freq} is more than the {self.n} micro-batches."
            raise ConfigError(what, fix="Choose sync_freq between 1 and n.")
        return self

    @property
    def is_from_file(self) -> bool:
        """Whether the schedule is a CSV file, which says its size itself."""
        return (self.schedule or "").lower().endswith(".csv")


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
        return micro_batches_held(self.run)


def run_step(config: StepConfig) -> StepRecord:
    config.check()
    if config.is_study:
        return StepRecord(config, simulate(config))
    schedule, costs = _assembled(config)
    if config.overlap_len is not None and not any(action.parts for order in schedule.ranks for action in order):
        what = f"overlap_len has no effect with the schedule {schedule.name}: no forward and backward run as one."
        raise ConfigError(what, fix="Leave it out.")
    run = execute(schedule, costs, seed=config.seed)
    draws = monte_carlo(schedule, costs, draws=config.draws, seed=config.seed) if costs.jitter > 0.0 else None
    return StepRecord(config, run, schedule, draws)


def _assembled(config: StepConfig) -> tuple[Schedule, StepCosts]:
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
