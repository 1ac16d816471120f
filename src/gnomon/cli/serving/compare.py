"""`gnomon compare`: several variants on the same requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.api.comparison import compare
from gnomon.api.serving import Scenario
from gnomon.cli.options import SectionedCommand, config_options, intervals_option
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress
from gnomon.core.errors import ConfigError


@click.command(cls=SectionedCommand)
@click.argument("scenarios", nargs=-1, type=click.Path())
@click.option(
    "--vary", multiple=True, metavar="FIELD=A,B,...", help="Values of a dotted field; several make all combinations."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the report, comparison.json and every variant's run.",
)
@intervals_option
@json_option
@config_options(Scenario)
def command(
    scenarios: tuple[str, ...],
    overrides: dict[str, Any],
    vary: tuple[str, ...],
    intervals: bool | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run several variants on the same requests and print their paired differences.

    SCENARIOS are YAML files; the first variant is the baseline. Every request meets every variant, so that a difference
    is not luck of the draw; the 95 % intervals say what is left of it. Other flags change all variants.

    \b
    Examples:
      gnomon compare a.yaml b.yaml
      gnomon compare --vary batching.policy=vllm_v1,sarathi --vary replica.tensor_parallel=1,2
      gnomon compare --vary router=round_robin,least_outstanding --num-replicas 4 --rate 100
    """
    with progress() as on_progress:
        comparison = compare(*scenarios, vary=_parsed(vary), intervals=intervals, on_progress=on_progress, **overrides)
    show(comparison, as_json=as_json)
    if out is not None:
        click.echo(f"The report is {comparison.save(out) / 'report.html'}; open it in a browser.", err=as_json)


def _parsed(vary: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in vary:
        name, equals, values = text.partition("=")
        chosen = [value.strip() for value in values.split(",") if value.strip()]
        if not equals or not chosen:
            raise ConfigError(
                f"cannot read {text!r}.", where="--vary", fix="Write FIELD=A,B, e.g. router=random,lmetric."
            )
        field = name.strip().lstrip("-").replace("-", "_")
        if field in found:
            raise ConfigError(f"{field} is varied twice.", where="--vary", fix="List all its values in one --vary.")
        found[field] = chosen
    return found
