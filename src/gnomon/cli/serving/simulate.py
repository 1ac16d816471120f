"""`gnomon simulate`: one scenario, its figures, and a folder with everything about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.api.serving import Scenario, scenario, simulate
from gnomon.cli.options import SectionedCommand, config_options, intervals_option
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress
from gnomon.core.errors import ConfigError


@click.command(cls=SectionedCommand)
@click.argument("file", metavar="[SCENARIO]", required=False, type=click.Path())
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the report, the tables and the scenario.",
)
@click.option("--csv", "extras", flag_value="csv", multiple=True, help="Also write the tables as CSV.")
@click.option("--events", "extras", flag_value="events", multiple=True, help="Also write every request's events.")
@click.option("--operators", "extras", flag_value="operators", multiple=True, help="Also write operator-level times.")
@click.option(
    "--export",
    "formats",
    multiple=True,
    metavar="FORMAT",
    help="Also write llmd-report, inference-perf, aiperf, vllm-bench or guidellm.",
)
@intervals_option
@click.option("--wandb", "project", metavar="PROJECT", help="Also log to this project of Weights & Biases.")
@json_option
@config_options(Scenario)
def command(
    file: str | None,
    overrides: dict[str, Any],
    out: Path | None,
    extras: tuple[str, ...],
    formats: tuple[str, ...],
    intervals: bool | None,
    project: str | None,
    as_json: bool,
) -> None:
    """Simulate SCENARIO (a YAML file), or what the flags say.

    Without either: Llama-3-8B on one H200 under a chat load of 31 requests per second, about 80 % of what it can take,
    batched as vLLM v1 does.

    \b
    Examples:
      gnomon simulate
      gnomon simulate --model llama-3-70b --tp 4 --rate 3 --out runs/70b
      gnomon simulate examples/serving/overload.yaml --json
    """
    if (extras or formats) and out is None:
        flag = f"--{extras[0]}" if extras else "--export"
        raise ConfigError("there is no folder for it.", where=flag, fix="Give one with --out DIR.")
    chosen = scenario(file, **overrides)
    with progress() as on_progress:
        result = simulate(chosen, intervals=intervals, explained=out is not None, on_progress=on_progress)
    show(result, as_json=as_json)
    if out is not None:
        folder = result.save(out, extras)
        for name in formats:
            result.export(name, folder)
        click.echo(f"The report is {folder / 'report.html'}; open it in a browser.", err=as_json)
    if project is not None:
        click.echo(f"Logged to Weights & Biases: {result.log_to_wandb(project)}", err=as_json)
