"""`gnomon pipeline all`: sweep and heat maps in one go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.cli.pipeline.options import SPELLING
from gnomon.cli.pipeline.sweep import draw_heat_maps, run_sweep, stamped, sweep_options


@click.command(context_settings=SPELLING)
@sweep_options
@click.option("--out", type=click.Path(file_okay=False), default="outputs", show_default=True, help="Folder.")
def command(out: str, **given: Any) -> None:
    """Sweep a configuration and draw its heat maps: OUT/data/CONFIG_TIME.csv and OUT/heatmaps/CONFIG_TIME/.

    \b
    Example:
      gnomon pipeline all -c examples/pipeline/sweep.json --priority-step 0.1
    """
    from gnomon.report.pipeline.png import require_matplotlib

    require_matplotlib()
    name = stamped(given["config_path"])
    path = Path(out) / "data" / f"{name}.csv"
    done = run_sweep(given, path)
    click.echo(f"wrote {path}: {done.totals.size} runs, best {done.totals.min():.4f}")
    draw_heat_maps(path, Path(out) / "heatmaps" / name, click.echo, given["jobs"])
