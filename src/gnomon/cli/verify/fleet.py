"""`gnomon verify fleet`: published effects of fleets."""

from __future__ import annotations

import click

from gnomon.api.verify import verify
from gnomon.cli.printing import json_option
from gnomon.cli.progress import progress
from gnomon.cli.verify.verdict import end


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
    with progress("simulating effects") as on_progress:
        found = verify("fleet", only=only, on_progress=on_progress)
    end(found, as_json=as_json)
