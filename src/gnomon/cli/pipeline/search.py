"""`gnomon pipeline search`: the best schedule within a memory limit."""

from __future__ import annotations

from typing import Any

import click

from gnomon.cli.pipeline.options import (
    SPELLING,
    option,
    say_if_compiling,
    study_of,
    study_options,
    training_of,
    training_options,
)
from gnomon.cli.printing import json_option, print_json, print_rows


@click.command(context_settings=SPELLING)
@study_options
@training_options
@option("--memory-limit", type=float, default=None, help="Micro-batches per rank; GB per GPU with --model.")
@option("--weight-grad-len", type=float, default=None, help="Part of a backward that can be put off.  [default: half]")
@option("--out", type=click.Path(dir_okay=False), default=None, help="Draw the Pareto front into this HTML file.")
@json_option
def command(**given: Any) -> None:
    """Execute every built-in schedule, and name the fastest one whose memory stays within the limit.

    With --model the costs and bytes are those of a model on a GPU, and the limit is the GPU's memory unless given.
    Schedules on the Pareto front are marked: nothing is both faster and smaller.

    \b
    Examples:
      gnomon pipeline search --stages 8 -n 32 --prop-len 0.1 --sync-base-len 0 --memory-limit 6
      gnomon pipeline search --model llama-3-70b --tensor-parallel 8 --stages 8 -n 32
    """
    say_if_compiling()
    found, unit = _with_model(given) if given["model"] else _with_lengths(given)
    rows = [
        {
            "schedule": one.name,
            "total_time": one.total_time,
            "idle %": 100 * one.bubble,
            f"memory ({unit})": one.memory,
            "fits": found.limit is None or one.memory <= found.limit,
            "front": one.is_on_front,
        }
        for one in found.candidates
    ]
    best = found.best
    if given["as_json"]:
        print_json(
            {"best": best.name if best else None, "limit": found.limit, "schedules": rows, "skipped": found.skipped}
        )
        return
    print_rows(rows, title="Schedules by time")
    for name, why in found.skipped.items():
        click.echo(f"left out {name}: {why}", err=True)
    within = "" if found.limit is None else f" within {found.limit:.4g} {unit}"
    click.echo(f"Best{within}: {best.name if best else 'none fits'}")
    if given["out"]:
        from gnomon.report.pipeline.front import write_front

        click.echo(f"wrote {write_front(found, given['out'], unit)}")


def _with_lengths(given: dict[str, Any]) -> tuple[Any, str]:
    from gnomon.pipeline.schedule_search import search
    from gnomon.pipeline.study import step_costs, study_plan
    from gnomon.pipeline.zoo import Plan

    study = study_of(given)
    plan = study_plan(study, Plan(study.stages, study.n), given["weight_grad_len"])

    def costs_of(schedule: Any) -> Any:
        pieces = schedule.num_stages / schedule.num_ranks
        return step_costs(study, pieces=pieces, weight_grad_len=given["weight_grad_len"])

    return search(plan, costs_of, limit=given["memory_limit"]), "micro-batches"


def _with_model(given: dict[str, Any]) -> tuple[Any, str]:
    from gnomon.core.units import GB
    from gnomon.pipeline.schedule_search import search
    from gnomon.pipeline.step import training_figures, training_plan
    from gnomon.pipeline.training import TrainingCosts
    from gnomon.pipeline.zoo import Plan

    training = training_of(given)
    plan = training_plan(training, Plan(given["stages"], given["n"]))
    limit = given["memory_limit"]
    if limit is None:
        limit = TrainingCosts(training, plan.ranks).device.memory_bytes / GB

    def costs_of(schedule: Any) -> Any:
        return TrainingCosts(training, schedule.num_stages).step_costs(schedule, given["sync_freq"])

    def memory_of(schedule: Any, run: Any) -> float:
        figures = training_figures(TrainingCosts(training, schedule.num_stages), schedule, run)
        return float(figures.peak_bytes.max()) / GB

    return search(plan, costs_of, memory_of=memory_of, limit=limit), "GB"
