"""`gnomon pipeline sweep`: the priority study over all combinations of a configuration."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import click

from gnomon.api.pipeline import PrioritySweep, draw_heat_maps, sweep
from gnomon.cli.options import together, worker_options
from gnomon.cli.pipeline.options import SPELLING, warn_of_legacy
from gnomon.cli.progress import progress

DATA = Path("outputs/data")


sweep_options = together(
    click.option("-c", "--config", "config_path", required=True, type=click.Path(dir_okay=False),
                 help="JSON or YAML."),
    click.option("--step", "--priority-step", "step", type=float, default=0.1,
                 show_default=True, help="Of the priorities; must divide 1."),
    worker_options,
    click.option("--yes", is_flag=True, help="Run it even if it takes days."),
    click.option("--view", "--simulator", "view", type=click.Choice(["single_channel", "dual_channel"]),
                 default="single_channel", help="Both compute the same; accepted for old scripts."),
    click.option("--sync-solo-w", hidden=True, default=None),
    click.option("--no-show", is_flag=True, hidden=True),
)  # fmt: skip
"""What every sweep takes."""


@click.command(context_settings=SPELLING)
@sweep_options
@click.option("--output", "-o", type=click.Path(dir_okay=False), default=None,
              help="CSV file.  [default: outputs/data/CONFIG_TIME.csv]")  # fmt: skip
def command(output: str | None, **given: Any) -> None:
    """Run the communication-priority study over all combinations of a configuration.

    Every key of the configuration is a value, a list, or {start, stop, step}. A sweep that was interrupted goes on
    where it stopped when it is run again with the same output folder.

    \b
    Example:
      gnomon pipeline sweep -c examples/pipeline/sweep.json --step 0.1 --output sweep.csv
    """
    path = Path(output) if output else DATA / f"{stamped(given['config_path'])}.csv"
    run_sweep(given, path)


def stamped(config_path: str) -> str:
    """The configuration's name and the time, for files that belong to one sweep."""
    return f"{Path(config_path).stem}_{datetime.now():%Y%m%d-%H%M%S}"


def run_sweep(given: dict[str, Any], path: Path) -> PrioritySweep:
    """Run the sweep that the options describe and write its CSV."""
    warn_of_legacy(given)
    chosen = {name: given[name] for name in ("step", "jobs", "ray", "yes")}
    with progress("sweeping") as on_progress:
        done = sweep(given["config_path"], workspace=path.parent, on_progress=on_progress, **chosen)
    done.sweep.write(path)
    click.echo(f"wrote {path}: {done.summary['runs']} runs, best {done.summary['best']:.4f}")
    return done


def draw(csv: Path, folder: Path, jobs: int | None) -> None:
    """The heat maps of a sweep CSV."""
    with progress("drawing") as on_progress:
        files = draw_heat_maps(csv, folder, jobs=jobs, on_progress=on_progress)
    click.echo(f"wrote {len(files)} heat maps to {folder}")
