"""`gnomon pipeline plot`: the heat maps of a sweep."""

from __future__ import annotations

from pathlib import Path

import click

from gnomon.cli.options import jobs_option
from gnomon.cli.pipeline.options import SPELLING
from gnomon.cli.pipeline.sweep import draw


@click.command(context_settings=SPELLING)
@click.argument("csv", type=click.Path(exists=True, dir_okay=False), metavar="FILE.csv")
@click.option(
    "-o",
    "--out",
    "--output_dir",
    "folder",
    type=click.Path(file_okay=False),
    default="outputs/heatmaps",
    show_default=True,
)
@jobs_option
@click.option("--no-show", is_flag=True, hidden=True)
def command(csv: str, folder: str, jobs: int | None, no_show: bool) -> None:
    """Draw one heat map per configuration of a sweep: priorities of gradients and activations, the best one marked.

    \b
    Example:
      gnomon pipeline plot sweep.csv -o heatmaps
    """
    draw(Path(csv), Path(folder), jobs)
