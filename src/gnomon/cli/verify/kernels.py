"""`gnomon verify kernels`: every table of measured kernels, held out."""

from __future__ import annotations

import click

from gnomon.cli.printing import json_option
from gnomon.cli.verify.verdict import check


@click.command()
@click.option("--device", "devices", multiple=True, help="GPUs to check; h200 and b200 if not given.")
@click.option("--one-in", type=click.IntRange(1), default=16, show_default=True, help="Shapes taken of each table.")
@json_option
def command(devices: tuple[str, ...], one_in: int, as_json: bool) -> None:
    """Held-out error of every table of the silicon source, and the roofline beside them.

    Every fifth point of a shape is left out and predicted from the others. Exit code 1 when the median over all tables
    of a device passes 5 %, or the roofline's 20 %.

    \b
    Examples:
      gnomon verify kernels
      gnomon verify kernels --device gb200 --one-in 1 --json
    """
    check("kernels", *devices, doing="holding out", one_in=one_in, as_json=as_json)
