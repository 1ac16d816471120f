"""`gnomon pipeline schedules`: the schedules that are built in."""

from __future__ import annotations

import click

from gnomon.cli.printing import json_option, print_rows


@click.command()
@json_option
def command(as_json: bool) -> None:
    """List the built-in schedules with their idle time and memory in closed form.

    \b
    Example:
      gnomon pipeline schedules
    """
    from gnomon.pipeline.zoo import SCHEDULES

    rows = []
    for name in SCHEDULES:
        family = SCHEDULES[name]
        rows.append(
            {
                "name": name,
                "idle per rank": family.bubble,
                "activations": family.memory,
                "": family.summary,
                "source": family.source,
            }
        )
    caption = "p ranks, m micro-batches, v chunks; F, I, W, B = I+W: a whole rank's times; no communication."
    print_rows(rows, as_json=as_json, caption=caption)
