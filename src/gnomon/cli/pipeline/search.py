"""`gnomon pipeline search`: the best schedule within a memory limit."""

from __future__ import annotations

from typing import Any

import click

from gnomon.api.pipeline import search_schedules
from gnomon.cli.options import SectionedCommand
from gnomon.cli.pipeline.options import SPELLING, option, step_of, study_options, training_options
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress


@click.command(cls=SectionedCommand, context_settings=SPELLING)
@study_options
@training_options
@option("--memory-limit", type=float, default=None, help="Micro-batches per rank.")
@option("--weight-grad-len", type=float, default=None, help="Part of a backward that can be put off.  [default: half]")
@option("--out", type=click.Path(dir_okay=False), default=None, help="Draw the Pareto front into this HTML file.")
@json_option
def command(**given: Any) -> None:
    """Execute every built-in schedule, and name the fastest one whose memory stays within the limit.

    Schedules on the Pareto front are marked: nothing is both faster and smaller.

    \b
    Example:
      gnomon pipeline search --stages 8 -n 32 --prop-len 0.1 --sync-base-len 0 --memory-limit 6
    """
    with progress("searching"):
        found = search_schedules(step_of(given))
    show(found, as_json=given["as_json"])
    if given["out"]:
        path = found.write_front(given["out"])
        click.echo(f"wrote {path}", err=given["as_json"])
