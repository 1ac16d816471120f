"""`gnomon route tune`: weights of a rule for one's own fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.api.routing import TuneConfig, tune
from gnomon.cli.options import SectionedCommand, config_options, worker_options
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress
from gnomon.core.config import load


@click.command("tune", cls=SectionedCommand)
@click.argument("scenarios", nargs=-1, required=True)
@config_options(TuneConfig)
@worker_options
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the report and the scenarios."
)
@json_option
def command(
    scenarios: tuple[str, ...],
    overrides: dict[str, Any],
    jobs: int | None,
    ray: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Fit the weights of the router `unselfish` to SCENARIOS, and compare it on traces that it was not tuned on.

    SCENARIOS are built-in names or YAML files with an open load; several share one set of weights. Of a trace, windows
    of the first 70 % are for tuning, windows of the rest for comparing. No PyTorch needed.

    \b
    Examples:
      gnomon route tune examples/routing/my_cluster.yaml --out runs/tuned
      gnomon simulate runs/tuned/tuned/my_cluster.yaml
      gnomon route tune unequal --tail-weight 3 --generations 20
    """
    config = load(TuneConfig, None, overrides)
    with progress("tuning") as on_progress:
        found = tune(scenarios, config, jobs=jobs, ray=ray, on_progress=on_progress)
    show(found, as_json=as_json)
    if out is not None:
        click.echo(f"Wrote {found.save(out) / 'report.html'}.", err=as_json)
