"""`gnomon pipeline run`: one training step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.api.pipeline import PipelineStep, pipeline
from gnomon.cli.options import SectionedCommand
from gnomon.cli.pipeline.options import (
    SPELLING,
    option,
    step_of,
    study_options,
    warn_of_legacy,
)
from gnomon.cli.printing import json_option, print_json, show
from gnomon.cli.progress import progress


@click.command(cls=SectionedCommand, context_settings=SPELLING)
@study_options
@option("--schedule", default=None, help="A name of `gnomon pipeline schedules`, or a PyTorch CSV file.")
@option("--dispatch", type=click.Choice(["greedy", "strict"]), default=None, help="Of the study: who goes next.")
@option("--ideal", is_flag=True, help="Every transfer at full rate.")
@option("--chunks", type=int, default=2, help="Stages per rank, for interleaved.")
@option("--weight-grad-len", type=float, default=None, help="Part of a backward that can be put off.  [default: half]")
@option("--overlap-len", type=float, default=None, help="A forward and a backward together.  [default: their sum]")
@option("--latency", type=float, default=None, help="Added to every transfer.")
@option("--straggler", "stragglers", multiple=True, metavar="RANK=FACTOR", help="Slow down a rank.")
@option("--link", "link_speed", multiple=True, metavar="A-B=SPEED", help="Relative speed of one link.")
@option("--jitter", type=float, default=None, help="Spread of the passes' times, e.g. 0.05.")
@option("--draws", type=int, default=200, help="Steps to draw when there is jitter.")
@option("--seed", type=int, default=0, help="Of the jitter.")
@option("--memory-limit", type=float, default=None, help="Activations a rank may hold, in micro-batches.")
@option("--model", default=None, hidden=True)
@option("--costs", type=click.Path(exists=True, dir_okay=False), default=None, help="YAML file of costs per stage.")
@click.option(
    "--view", "--simulator", "view", type=click.Choice(["single_channel", "dual_channel"]), default="single_channel"
)
@option("--show-throttling", is_flag=True, help="Mark transfers that their receiver slowed.")
@option("--show-completion-time", is_flag=True, help="Mark the end of the step with a dashed red line.")
@option("--what-if", type=float, default=None, metavar="FACTOR", help="What each link would bring if so much faster.")
@option("--out", type=click.Path(file_okay=False), default=None, help="Write HTML, PNG, Perfetto trace and CSV here.")
@option("--open", "open_page", is_flag=True, help="Show the page in the browser.")
@click.option("--no-show", is_flag=True, hidden=True)
@json_option
def command(**given: Any) -> None:
    """Run one training step and show where its time goes.

    Without --schedule this is the communication-priority study: 1F1B with greedy dispatch. With a schedule the same
    lengths apply, in its strict order. A model on GPUs is timed by `gnomon train step`.

    \b
    Examples:
      gnomon pipeline run --sync-freq 2 --tier grad_prop=a
      gnomon pipeline run --schedule zb-v --stages 8 -n 32 --prop-len 0.1 --out runs/zbv
      gnomon pipeline run --schedule 1f1b --straggler 2=1.3 --jitter 0.05
    """
    warn_of_legacy(given)
    with progress("running"):
        step = pipeline(step_of(given))
    files = _written(step, given)
    if given["as_json"]:
        print_json(step.to_dict() | {"files": [str(file) for file in files]})
        return
    show(step, as_json=False)
    if given["show_throttling"]:
        click.echo(step.throttled_words())
    for file in files:
        click.echo(f"wrote {file}")


def _written(step: PipelineStep, given: dict[str, Any]) -> list[Path]:
    """The files of the step, where any are asked for."""
    if not given["out"] and not given["open_page"]:
        return []
    look = {name: given[name] for name in ("view", "show_throttling", "show_completion_time")}
    folder = step.save(given["out"] or "outputs/pipeline", **look)
    if given["open_page"]:
        click.launch((folder / "step.html").resolve().as_uri())
    return sorted(folder.glob("step.*"))
