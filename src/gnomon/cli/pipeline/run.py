"""`gnomon pipeline run`: one training step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gnomon.cli.pipeline.options import (
    LENGTHS,
    SPELLING,
    number,
    option,
    pair,
    priorities_of,
    refuse_beside,
    say_if_compiling,
    study_of,
    study_options,
    training_of,
    training_options,
)
from gnomon.cli.pipeline.show import percentiles, show
from gnomon.cli.printing import json_option
from gnomon.core.errors import ConfigError

if TYPE_CHECKING:
    from gnomon.pipeline.costs import StepCosts
    from gnomon.pipeline.schedule import Schedule
    from gnomon.pipeline.training import TrainingCosts


@click.command(context_settings=SPELLING)
@study_options
@option("--schedule", default=None, help="A name of `gnomon pipeline schedules`, or a PyTorch CSV file.")
@option("--dispatch", type=click.Choice(["greedy", "strict"]), default=None, help="Of the study: who goes next.")
@option("--ideal", is_flag=True, help="Every transfer at full rate.")
@option("--chunks", type=int, default=2, help="Stages per rank, for interleaved.")
@option("--weight-grad-len", type=float, default=None, help="Part of a backward that can be put off.  [default: half]")
@option("--overlap-len", type=float, default=None, help="A forward and a backward together.  [default: their sum]")
@option("--latency", type=float, default=None, help="Added to every transfer.")
@option("--straggler", "stragglers", multiple=True, metavar="RANK=FACTOR", help="Slow down a rank.")
@option("--link", "links", multiple=True, metavar="A-B=SPEED", help="Relative speed of one link.")
@option("--jitter", type=float, default=None, help="Spread of the passes' times, e.g. 0.05.")
@option("--draws", type=int, default=200, help="Steps to draw when there is jitter.")
@option("--seed", type=int, default=0, help="Of the jitter.")
@option("--memory-limit", type=float, default=None, help="Activations a rank may hold, in micro-batches.")
@option("--costs", type=click.Path(exists=True, dir_okay=False), default=None, help="YAML file of costs per stage.")
@training_options
@click.option(
    "--view", "--simulator", "view", type=click.Choice(["single_channel", "dual_channel"]), default="single_channel"
)
@option("--show-throttling", is_flag=True, help="Mark transfers that their receiver slowed.")
@option("--show-completion-time", is_flag=True, help="Write the make-span on GPU 1.")
@option("--what-if", type=float, default=None, metavar="FACTOR", help="What each link would bring if so much faster.")
@option("--out", type=click.Path(file_okay=False), default=None, help="Write HTML, PNG, Perfetto trace and CSV here.")
@option("--open", "open_page", is_flag=True, help="Show the page in the browser.")
@click.option("--no-show", is_flag=True, hidden=True)
@json_option
def command(**given: Any) -> None:
    """Run one training step and show where its time goes.

    Without --schedule this is the communication-priority study: 1F1B with greedy dispatch. With a schedule the same
    lengths apply, in its strict order; with --model the costs are those of a model on a GPU.

    \b
    Examples:
      gnomon pipeline run --sync-freq 2 --tier grad_prop=a
      gnomon pipeline run --schedule zb-v --stages 8 -n 32 --prop-len 0.1 --out runs/zbv
      gnomon pipeline run --model llama-3-8b --device h100 --tensor-parallel 8 -n 32 --schedule 1f1b
      gnomon pipeline run --schedule 1f1b --straggler 2=1.3 --jitter 0.05
    """
    if given["sync_solo_w"] is not None:
        click.echo("--sync-solo-w has no effect: a lone grad_sync always has the whole link.", err=True)
    say_if_compiling()
    is_study = given["schedule"] is None and given["model"] is None and given["costs"] is None
    (_study if is_study else _step)(given)


def _study(given: dict[str, Any]) -> None:
    from gnomon.pipeline.study import simulate

    for name in ("stragglers", "links", "jitter", "latency", "overlap_len", "weight_grad_len", "memory_limit"):
        if given[name]:
            flag = {"stragglers": "straggler", "links": "link"}.get(name, name).replace("_", "-")
            raise ConfigError(f"--{flag} needs a schedule.", fix="Add --schedule 1f1b, for example.")
    study = study_of(given, dispatch=given["dispatch"] or "greedy", ideal=given["ideal"])
    show(given, simulate(study), {})


def _step(given: dict[str, Any]) -> None:
    from gnomon.pipeline.execution import execute, monte_carlo
    from gnomon.pipeline.step import training_figures

    if given["dispatch"] == "greedy":
        raise ConfigError(
            "greedy dispatch is the study's: a schedule has an order of its own.", fix="Leave out --schedule."
        )
    schedule, costs, model_costs = _schedule_and_costs(given)
    costs = _changed(costs, given)
    run = execute(schedule, costs, seed=given["seed"])
    more: dict[str, Any] = {"schedule": schedule.name}
    if costs.jitter > 0.0:
        more["draws"] = percentiles(monte_carlo(schedule, costs, draws=given["draws"], seed=given["seed"]))
    if model_costs is None:
        show(given, run, more)
        return
    figures = training_figures(model_costs, schedule, run)
    show(given, run, more, figures)
    for note in model_costs.timer.notes():
        click.echo(note, err=True)
    if not figures.fits:
        click.echo("It does not fit into the memory of the GPUs.", err=True)


def _schedule_and_costs(given: dict[str, Any]) -> tuple[Schedule, StepCosts, TrainingCosts | None]:
    from gnomon.core import config
    from gnomon.pipeline.costs import StepCosts
    from gnomon.pipeline.step import load_schedule, training_plan
    from gnomon.pipeline.study import step_costs, study_plan
    from gnomon.pipeline.training import TrainingCosts
    from gnomon.pipeline.zoo import Plan

    name = given["schedule"] or "1f1b"
    plan = Plan(given["stages"], given["n"], given["chunks"], memory_limit=given["memory_limit"])
    if name.lower().endswith(".csv"):
        refuse_beside(given, "a schedule from a file", ("n", "stages", "chunks"))
        loaded = load_schedule(name, plan)
        given |= {"n": loaded.num_microbatches, "stages": loaded.num_ranks}
        plan = replace(plan, ranks=loaded.num_ranks, microbatches=loaded.num_microbatches)
    if given["model"]:
        refuse_beside(given, "--model", (*LENGTHS, "weight_grad_len", "costs"))
        training = training_of(given)
        schedule = load_schedule(name, training_plan(training, plan))
        model_costs = TrainingCosts(training, schedule.num_stages)
        return schedule, model_costs.step_costs(schedule, given["sync_freq"]), model_costs
    if given["costs"]:
        refuse_beside(given, "--costs", (*LENGTHS, "weight_grad_len", "sync_freq"))
        return load_schedule(name, plan), config.load(StepCosts, given["costs"]), None
    study = study_of(given, ideal=given["ideal"])
    schedule = load_schedule(name, study_plan(study, plan, given["weight_grad_len"], given["latency"] or 0.0))
    pieces = schedule.num_stages / schedule.num_ranks
    return schedule, step_costs(study, pieces=pieces, weight_grad_len=given["weight_grad_len"]), None


def _changed(costs: StepCosts, given: dict[str, Any]) -> StepCosts:
    """The costs with what the other options say."""
    from gnomon.core.config import build
    from gnomon.pipeline.costs import StepCosts

    changes: dict[str, Any] = dict(priorities_of(given))
    for name, field in (("fwd_impact", "fwd_impact"), ("bwd_impact", "bwd_impact"), ("latency", "latency"),
                        ("overlap_len", "overlapped"), ("jitter", "jitter")):  # fmt: skip
        if given[name] is not None:
            changes[field] = given[name]
    if given["stragglers"]:
        pairs = (pair(text, "--straggler") for text in given["stragglers"])
        changes["stragglers"] = {int(number(rank, "--straggler")): number(by, "--straggler") for rank, by in pairs}
    if given["links"]:
        pairs = (pair(text, "--link") for text in given["links"])
        changes["link_speed"] = costs.link_speed | {name: number(speed, "--link") for name, speed in pairs}
    if given["ideal"]:
        changes["contention"] = False
    return build(StepCosts, costs.model_dump() | changes)
