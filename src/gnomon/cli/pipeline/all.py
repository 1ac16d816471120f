"""`gnomon pipeline all`: sweep and heat maps in one go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.api.pipeline import require_pictures
from gnomon.cli.pipeline.options import SPELLING
from gnomon.cli.pipeline.sweep import draw, run_sweep, stamped, sweep_options


@click.command(context_settings=SPELLING)
@sweep_options
@click.option("--out", type=click.Path(file_okay=False), default="outputs", show_default=True, help="Folder.")
def command(out: str, **given: Any) -> None:
    """Sweep a configuration and draw its heat maps: OUT/data/CONFIG_TIME.csv and OUT/heatmaps/CONFIG_TIME/.

    \b
    Example:
      gnomon pipeline all -c examples/pipeline/sweep.json --priority-step 0.1
    """
    require_pictures()
    name = stamped(given["config_path"])
    path = Path(out) / "data" / f"{name}.csv"
    run_sweep(given, path)
    draw(path, Path(out) / "heatmaps" / name, given["jobs"])
