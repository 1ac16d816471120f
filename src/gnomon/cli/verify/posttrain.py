"""`gnomon verify posttrain`: published results of RL post-training."""

from __future__ import annotations

import click

from gnomon.cli.printing import json_option
from gnomon.cli.verify.verdict import check


@click.command("posttrain")
@click.option("--only", default="ABCDES", metavar="LETTERS", help="Which sources, e.g. BE.  [default: ABCDES]")
@click.option(
    "--calibrate-on",
    type=click.Choice(["64", "128", "256"]),
    default="64",
    show_default=True,
    help="B: the scale whose 7B stage seconds set the efficiencies.",
)
@click.option("--seed", default=0, show_default=True, help="Of the response lengths.")
@json_option
def command(only: str, calibrate_on: str, seed: int, as_json: bool) -> None:
    """Hold the post-training simulator against published results A-E; exit code 1 outside the gates.

    \b
    Examples:
      gnomon verify posttrain
      gnomon verify posttrain --only BE --json
    """
    check("posttrain", only=only, calibrate_on=int(calibrate_on), seed=seed, as_json=as_json)
