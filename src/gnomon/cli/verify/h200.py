"""`gnomon verify h200`: the reference engine on an H200 beside its simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.cli.printing import json_option
from gnomon.cli.verify.verdict import check


@click.command()
@click.option(
    "--runs",
    type=click.Path(path_type=Path, exists=True),
    help="Folder of recorded runs; the shipped ones if not given.",
)
@click.option("--profile", type=click.Path(path_type=Path, exists=True), help="Bundle; the shipped one if not given.")
@click.option("--only", help="Only runs whose name contains this, e.g. llama-3-8b-chat.")
@click.option("--svg", type=click.Path(path_type=Path), help="Also draw measured and simulated CDFs into this file.")
@click.option("--full-clock", is_flag=True, help="Simulate all runs at the profile's clock, as if there were no cap.")
@json_option
def command(only: str | None, svg: Path | None, **given: Any) -> None:
    """Simulate measured runs of the reference engine from the H200 profile and compare latencies.

    Host time is calibrated once, on the run `calibration`, for all others; the card's mean clock during each run, below
    that of the profile where the power cap lowers it, is given. Exit code 1 when a mean or a P99 is beyond tolerance
    (TPOT and E2E 3 %, TTFT 5 %); such a figure is marked with "!".

    \b
    Examples:
      gnomon verify h200
      gnomon verify h200 --only llama-3-8b-chat --svg cdf.svg
    """
    check("h200", only=only or "", pictures={"cdf.svg": svg}, **given)
