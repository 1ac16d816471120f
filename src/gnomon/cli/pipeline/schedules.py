"""`gnomon pipeline schedules`: the schedules that are built in."""

from __future__ import annotations

import click

from gnomon.api.pipeline import schedules
from gnomon.cli.printing import json_option, print_rows


@click.command()
@json_option
def command(as_json: bool) -> None:
    """List the built-in schedules with their idle time and memory in closed form.

    \b
    Example:
      gnomon pipeline schedules
    """
    caption = "p ranks, m micro-batches, v chunks; F, I, W, B = I+W: a whole rank's times; no communication."
    print_rows(schedules(), as_json=as_json, caption=caption)
