"""`gnomon pipeline run`: one training step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnomon.cli.pipeline_options import (
    number,
    option,
    pair,
    say_if_compiling,
    study_of,
    study_options,
    study_plan,
    training_of,
    training_options,
)
from gnomon.cli.printing import json_option, print_json, print_rows
from gnomon.core.errors import ConfigError

if TYPE_CHECKING:
    from gnomon.pipeline.run import Run
    from gnomon.pipeline.step import TrainingFigures


@click.command()
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
@option("--jitter", type=float, default=0.0, help="Spread of the passes' times, e.g. 0.05.")
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

    for name in ("stragglers", "links", "jitter", "latency", "overlap_len", "weight_grad_len"):
        if given[name]:
            flag = {"stragglers": "straggler", "links": "link"}.get(name, name).replace("_", "-")
            raise ConfigError(f"--{flag} needs a schedule.", fix="Add --schedule 1f1b, for example.")
    study = study_of(given, dispatch=given["dispatch"] or "greedy", ideal=given["ideal"])
    _show(given, simulate(study), {})


def _step(given: dict[str, Any]) -> None:
    from gnomon.core import config
    from gnomon.pipeline.costs import StepCosts
    from gnomon.pipeline.execution import execute, monte_carlo
    from gnomon.pipeline.step import load_schedule, training_figures, training_plan
    from gnomon.pipeline.study import step_costs
    from gnomon.pipeline.training import TrainingCosts
    from gnomon.pipeline.zoo import Plan

    if given["dispatch"] == "greedy":
        raise ConfigError(
            "greedy dispatch is the study's: a schedule has an order of its own.", fix="Leave out --schedule."
        )
    plan = Plan(given["stages"], given["n"], given["chunks"], memory_limit=given["memory_limit"])
    name = given["schedule"] or "1f1b"
    model_costs = None
    if given["model"]:
        training = training_of(given)
        schedule = load_schedule(name, training_plan(training, plan))
        model_costs = TrainingCosts(training, schedule.num_stages)
        costs = model_costs.step_costs(schedule, given["sync_freq"])
    elif given["costs"]:
        costs = config.load(StepCosts, given["costs"])
        schedule = load_schedule(name, plan)
    else:
        study = study_of(given, ideal=given["ideal"])
        plan = study_plan(study, plan, given["weight_grad_len"], given["latency"])
        schedule = load_schedule(name, plan)
        pieces = schedule.num_stages / schedule.num_ranks
        costs = step_costs(study, pieces=pieces, weight_grad_len=given["weight_grad_len"])
    costs = _changed(costs, given)
    run = execute(schedule, costs, seed=given["seed"])
    more: dict[str, Any] = {"schedule": schedule.name}
    figures = training_figures(model_costs, schedule, run) if model_costs else None
    if costs.jitter > 0.0:
        more["draws"] = _percentiles(monte_carlo(schedule, costs, draws=given["draws"], seed=given["seed"]))
    _show(given, run, more, figures)
    if model_costs:
        for note in model_costs.timer.notes():
            click.echo(note, err=True)
        if figures and not figures.fits:
            click.echo("It does not fit into the memory of the GPUs.", err=True)


def _changed(costs: Any, given: dict[str, Any]) -> Any:
    """The costs with what the other options say."""
    from gnomon.core.config import build
    from gnomon.pipeline.costs import StepCosts

    changes: dict[str, Any] = {"jitter": given["jitter"] or costs.jitter}
    if given["stragglers"]:
        pairs = (pair(text, "--straggler") for text in given["stragglers"])
        changes["stragglers"] = {
            int(number(rank, "--straggler")): number(factor, "--straggler") for rank, factor in pairs
        }
    if given["links"]:
        pairs = (pair(text, "--link") for text in given["links"])
        changes["link_speed"] = costs.link_speed | {name: number(speed, "--link") for name, speed in pairs}
    if given["latency"] is not None:
        changes["latency"] = given["latency"]
    if given["overlap_len"] is not None:
        changes["overlapped"] = given["overlap_len"]
    if given["ideal"]:
        changes["contention"] = False
    return build(StepCosts, costs.model_dump() | changes)


def _show(given: dict[str, Any], run: Run, more: dict[str, Any], figures: TrainingFigures | None = None) -> None:
    from dataclasses import asdict

    from gnomon.pipeline.explain import critical_path, faster_links, idle_time, total
    from gnomon.pipeline.memory import activations

    ranks = idle_time(run)
    peaks = [curve.peak for curve in (figures.memory if figures else activations(run))]
    path: dict[str, float] = {}
    for step in critical_path(run):
        path[step.label.kind] = path.get(step.label.kind, 0.0) + step.end - step.start
    what_if = faster_links(run, given["what_if"]) if given["what_if"] else []
    files = _write(given, run, figures)
    if given["as_json"]:
        print_json(
            {
                "total_time": run.total_time,
                "bubble": run.bubble,
                **more,
                "ranks": [asdict(rank) | {"peak_memory": peak} for rank, peak in zip(ranks, peaks, strict=True)],
                "critical_path": path,
                "throttled": run.throttled,
                "what_if": [asdict(row) for row in what_if],
                **({"training": _training(figures)} if figures else {}),
                "files": [str(file) for file in files],
            }
        )
        return
    unit = " s" if figures else ""
    click.echo(f"total_time {run.total_time:.6f}{unit}   idle {100 * run.bubble:.2f} %")
    if figures:
        click.echo("   ".join(f"{name} {value:.4g}" for name, value in _training(figures).items() if name != "fits"))
    for name, value in more.get("draws", {}).items():
        click.echo(f"  {name} of {given['draws']} draws: {value:.6g}")
    columns = ("busy", "warm_up", "dependency", "communication", "contention", "cool_down")
    rows = [
        {"rank": str(at), **{c: asdict(rank)[c] for c in columns}, "peak memory": peak}
        for at, (rank, peak) in enumerate(zip(ranks, peaks, strict=True))
    ]
    rows.append({"rank": "all", **{c: asdict(total(ranks))[c] for c in columns}, "peak memory": max(peaks)})
    memory = "GB" if figures else "activations of a stage"
    print_rows(rows, title="Where the time goes", caption=f"Rows add up to the make-span. Memory in {memory}.")
    click.echo("Critical path: " + ", ".join(f"{kind} {value:.4g}" for kind, value in path.items()))
    if given["show_throttling"]:
        texts = [f"{kind} {i} at stage {stage}" for kind, i, stage in run.throttled]
        click.echo("Slowed by their receiver: " + ("; ".join(texts) or "none"))
    if what_if:
        title = f"If one link were {given['what_if']:g} times as fast"
        print_rows(
            [{"link": f"{w.sender}-{w.receiver}", "total_time": w.total_time, "gain %": 100 * w.gain} for w in what_if],
            title=title,
        )
    for file in files:
        click.echo(f"wrote {file}")


def _training(figures: TrainingFigures) -> dict[str, Any]:
    return {
        "step_s": figures.step_s,
        "samples_per_s": figures.samples_per_s,
        "tokens_per_s": figures.tokens_per_s,
        "mfu": figures.mfu,
        "peak_memory_gb": float(figures.peak_bytes.max()) / 1e9,
        "fits": figures.fits,
    }


def _write(given: dict[str, Any], run: Run, figures: TrainingFigures | None) -> list[Path]:
    if not given["out"] and not given["open_page"]:
        return []
    from gnomon.report.pipeline_html import write_html
    from gnomon.report.pipeline_perfetto import write_trace

    folder = Path(given["out"] or "outputs/pipeline")
    drawing = {name: given[name] for name in ("view", "show_throttling", "show_completion_time")}
    memory: dict[str, Any] = {"memory": figures.memory, "memory_unit": "GB"} if figures else {}
    facts = {}
    if figures:
        facts = {
            "samples/s": f"{figures.samples_per_s:.4g}",
            "tokens/s": f"{figures.tokens_per_s:,.0f}",
            "MFU": f"{100 * figures.mfu:.1f} %",
        }
    files = [write_html(run, folder / "step.html", **drawing, **memory, facts=facts)]
    files.append(write_trace(run, folder / "step.perfetto.json", memory=memory.get("memory")))
    files += _write_png(run, folder / "step.png", drawing | memory)
    if given["open_page"]:
        click.launch(files[0].resolve().as_uri())
    return files


def _write_png(run: Run, path: Path, drawing: dict[str, Any]) -> list[Path]:
    """The PNG, or a word about the missing package."""
    from gnomon.core.errors import MissingExtraError
    from gnomon.report.pipeline_png import write_gantt

    try:
        return [write_gantt(run, path, **drawing)]
    except MissingExtraError as error:
        click.echo(f"no {path.name}: {error}", err=True)
        return []


def _percentiles(times: Any) -> dict[str, float]:
    import numpy as np

    values = np.percentile(times, (5, 50, 95, 99))
    return {"mean": float(times.mean()), **dict(zip(("p5", "p50", "p95", "p99"), map(float, values), strict=True))}
