"""`gnomon verify fleet`: published effects of fleets."""

from __future__ import annotations

import click

from gnomon.cli.printing import json_option
from gnomon.cli.verify.verdict import check


@click.command()
@click.option(
    "--only", multiple=True, metavar="NAME", help="Only these effects: cold-start, elastic-experts, dlpm, forecast."
)
@json_option
def command(only: tuple[str, ...], as_json: bool) -> None:
    """Effects that are published of fleets, beside their simulation: cold starts, expert parallelism after failures,
    fair scheduling that knows prefixes, scaling by forecast.

    Exit code 1 where one lies beyond its tolerance; docs/fleet.md says why it does.

    \b
    Examples:
      gnomon verify fleet
      gnomon verify fleet --only dlpm --only cold-start
    """
    check("fleet", doing="simulating effects", only=only, as_json=as_json)
