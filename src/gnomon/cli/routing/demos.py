"""`gnomon route demos`: what teachers do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.api.routing import collect_demos
from gnomon.api.routing import dump_state as write_state
from gnomon.cli.options import SectionedCommand, worker_options
from gnomon.cli.routing.options import resolved, stage_options, watcher


@click.command("demos", cls=SectionedCommand)
@stage_options
@worker_options
@click.option("--dump-state", type=click.Path(path_type=Path), help="Also write what was observed, as CSV or Parquet.")
def command(
    config: str | None,
    overrides: dict[str, Any],
    out: Path | None,
    jobs: int | None,
    ray: str | None,
    dump_state: Path | None,
) -> None:
    """Let several routers act in simulated clusters while a teacher says what would have been best.

    Writes demos.npz: observations, the teacher's probabilities and costs, and a description of both as JSON.

    \b
    Examples:
      gnomon route demos --config quick
      gnomon route demos --demos.teacher own --demos.steps-per-driver 700     every router labels what it did itself
      gnomon route demos --config quick --dump-state state.csv                look at what the policy will see
    """
    made, folder = resolved(config, overrides, out)
    with watcher() as watch:
        count = collect_demos(made, folder, watch, jobs, ray)
    click.echo(f"Wrote {count:,} decisions to {folder.demos}.")
    if dump_state is not None:
        write_state(made, folder, dump_state)
        click.echo(f"Wrote the observed state to {dump_state}.")
