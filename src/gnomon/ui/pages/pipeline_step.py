"""From the controls of the Pipeline page to a training step that has run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gnomon.core.config import build
from gnomon.pipeline.costs import TRANSFERS, Priority, StepCosts
from gnomon.pipeline.execution import execute
from gnomon.pipeline.memory import Curve
from gnomon.pipeline.run import Run
from gnomon.pipeline.step import load_schedule, training_figures, training_plan
from gnomon.pipeline.study import Study, check_sync_freq, simulate, step_costs, study_plan
from gnomon.pipeline.sweep_config import priority_grid
from gnomon.pipeline.sweeps import SweepTable, total_times
from gnomon.pipeline.training import Training, TrainingCosts
from gnomon.pipeline.zoo import Plan
from gnomon.report.pipeline.figures import step_cards, training_cards
from gnomon.report.pipeline.heat_map import Cell, cell_text
from gnomon.ui.controls import ControlError

STUDY = "study"
"""The schedule of the priority study: 1F1B whose ranks take whatever is ready."""
MODEL = "model"
MAX_PASSES = 1024
"""Stages x micro-batches that a page can still draw in a second."""
LENGTHS = {
    "n": "n", "stages": "stages", "fwd": "fwd_len", "bwd": "bwd_len", "prop": "prop_len", "sync": "sync_base_len",
    "sync_freq": "sync_freq", "fwd_impact": "fwd_impact", "bwd_impact": "bwd_impact", "fwd_prop": "fwd_prop",
    "grad_prop": "grad_prop", "grad_sync": "grad_sync", "ideal": "ideal",
}  # fmt: skip
"""The field of a study behind each control."""
TRAINING = ("model", "device", "tensor_parallel", "data_parallel", "micro_batch", "sequence", "recompute",
            "shard_optimizer")  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A step and how to show it."""

    run: Run
    cards: dict[str, str]
    memory: list[Curve] | None = None
    memory_unit: str = "micro-batches"
    notes: list[str] = field(default_factory=list)


def step_of(values: Mapping[str, Any]) -> Step:
    """Run the step that the controls describe."""
    if values["stages"] * values["n"] > MAX_PASSES:
        most = MAX_PASSES // values["stages"]
        raise ControlError("n", f"A page draws at most {most:,} micro-batches of {values['stages']} stages.")
    if values["schedule"] == STUDY:
        run = simulate(_study(values))
        return Step(run, step_cards(run))
    return _of_model(values) if values["costs"] == MODEL else _of_lengths(values)


def _study(values: Mapping[str, Any]) -> Study:
    return check_sync_freq(build(Study, {key: values[name] for name, key in LENGTHS.items()}))


def _plan(values: Mapping[str, Any]) -> Plan:
    return Plan(values["stages"], values["n"], values["chunks"], memory_limit=values["limit"])


def _of_lengths(values: Mapping[str, Any]) -> Step:
    study = _study(values)
    plan = study_plan(study, _plan(values), values["wgrad"], values["latency"])
    schedule = load_schedule(values["schedule"], plan)
    pieces = schedule.num_stages / schedule.num_ranks
    costs = step_costs(study, pieces=pieces, weight_grad_len=values["wgrad"])
    run = execute(schedule, costs.model_copy(update={"latency": values["latency"]}))
    return Step(run, step_cards(run))


def _of_model(values: Mapping[str, Any]) -> Step:
    training = build(Training, {name: values[name] for name in TRAINING})
    schedule = load_schedule(values["schedule"], _training_plan(training, _plan(values)))
    model_costs = _training_costs(training, schedule.num_stages)
    costs = model_costs.step_costs(schedule)
    shares = {name: values[name] for name in TRANSFERS}
    run = execute(schedule, build(StepCosts, costs.model_dump() | shares | {"contention": not values["ideal"]}))
    figures = training_figures(model_costs, schedule, run)
    notes = [] if figures.fits else ["It does not fit into the memory of the GPUs."]
    cards = step_cards(run) | training_cards(figures, training, run.num_ranks)
    return Step(run, cards, figures.memory, "GB", notes + model_costs.timer.notes())


@lru_cache(maxsize=32)
def _training_plan(training: Training, plan: Plan) -> Plan:
    return training_plan(training, plan)


@lru_cache(maxsize=32)
def _training_costs(training: Training, num_stages: int) -> TrainingCosts:
    return TrainingCosts(training, num_stages)


def priority_table(run: Run, step: float) -> SweepTable:
    """The total time of the same step under every priority of the grid."""
    grid = priority_grid(step)
    totals = total_times(run.graph, run.num_ranks, grid)
    return SweepTable({}, [texts(cell) for cell in grid], totals)


def texts(cell: tuple[Priority, Priority, Priority]) -> tuple[str, str, str]:
    """A cell's priorities as the controls write them."""
    fwd, grad, sync = (cell_text(str(one)) for one in cell)
    return fwd, grad, sync


def priorities_at(step: float, at: Cell) -> tuple[str, str, str] | None:
    """The priorities of the cell at these places of the axes."""
    return next((found for cell in priority_grid(step) if (found := texts(cell))[:2] == at), None)
