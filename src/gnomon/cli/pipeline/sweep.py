"""`gnomon pipeline sweep`: the priority study over all combinations of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnomon.cli.pipeline.options import SPELLING, say_if_compiling

if TYPE_CHECKING:
    from gnomon.pipeline.sweeps import Sweep

DATA = Path("outputs/data")


def sweep_options(function: Any) -> Any:
    """What every sweep takes."""
    for decorate in reversed(
        (
            click.option("-c", "--config", "config_path", required=True, type=click.Path(dir_okay=False),
                         help="JSON or YAML."),
            click.option("--step", "--priority-step", "step", type=float, default=0.1,
                         show_default=True, help="Of the priorities; must divide 1."),
            click.option("--jobs", type=int, default=None, help="Processes.  [default: all cores]"),
            click.option("--ray", default=None, metavar="ADDRESS", help="Run on a Ray cluster: auto, local, ray://..."),
            click.option("--view", "--simulator", "view", type=click.Choice(["single_channel", "dual_channel"]),
                         default="single_channel", help="Both compute the same; accepted for old scripts."),
            click.option("--sync-solo-w", hidden=True, default=None),
            click.option("--no-show", is_flag=True, hidden=True),
        )
    ):  # fmt: skip
        function = decorate(function)
    return function


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
    done = run_sweep(given, path)
    click.echo(f"wrote {path}: {done.totals.size} runs, best {done.totals.min():.4f}")


def stamped(config_path: str) -> str:
    """The configuration's name and the time, for files that belong to one sweep."""
    return f"{Path(config_path).stem}_{datetime.now():%Y%m%d-%H%M%S}"


def run_sweep(given: dict[str, Any], path: Path) -> Sweep:
    """Run the sweep that the options describe and write its CSV."""
    from gnomon.core import config
    from gnomon.core.parallel import progress_bar
    from gnomon.pipeline.sweep_config import SweepConfig, priority_grid
    from gnomon.pipeline.sweeps import sweep

    if given["sync_solo_w"] is not None:
        click.echo("--sync-solo-w has no effect: a lone grad_sync always has the whole link.", err=True)
    settings = config.load(SweepConfig, given["config_path"])
    runs = settings.num_configurations * len(priority_grid(given["step"]))
    say_if_compiling()
    with progress_bar("runs", runs) as advance:
        done = sweep(
            settings, step=given["step"], jobs=given["jobs"], ray=given["ray"], workspace=path.parent, progress=advance
        )
    done.write(path)
    return done


def draw_heat_maps(csv: Path, folder: Path, report: Callable[[str], None], jobs: int | None = None) -> list[Path]:
    """One PNG per configuration of a sweep CSV."""
    from gnomon.core.parallel import map_ordered, progress_bar
    from gnomon.pipeline.sweeps import read_csv
    from gnomon.report.pipeline.png import draw_heat_map

    tables = read_csv(csv)
    # Starting processes pays only for many pictures.
    jobs = 1 if len(tables) < 48 else jobs
    files = []
    with progress_bar("heat maps", len(tables)) as advance:
        for outcome in map_ordered(draw_heat_map, ((table, str(folder)) for table in tables), jobs=jobs):
            files.append(outcome.unwrap())
            advance(1)
    report(f"wrote {len(files)} heat maps to {folder}")
    return files
