"""`gnomon route clone`: a policy that does as the teacher does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.api.routing import clone_teacher
from gnomon.cli.options import SectionedCommand, worker_options
from gnomon.cli.routing.options import resolved, stage_options, watcher


@click.command("clone", cls=SectionedCommand)
@stage_options
@worker_options
def command(config: str | None, overrides: dict[str, Any], out: Path | None, jobs: int | None, ray: str | None) -> None:
    """Clone the teacher from the folder's demonstrations; then let the clone act and the teacher correct it (DAgger).

    Writes clone.npz (weights, normaliser and feature schema together: a policy file like any other) and clone.csv.

    \b
    Examples:
      gnomon route clone --config quick
      gnomon route clone --config quick --demos.dagger-rounds 0 --clone.epochs 30
    """
    made, folder = resolved(config, overrides, out)
    with watcher() as watch:
        last = clone_teacher(made, folder, watch, jobs, ray)[-1]
    text = f"Wrote {folder.clone}: it agrees with the teacher in {last['agreement']:.1%} of the validation."
    if last["indifferent"] > 0.0:
        text += f" In {last['indifferent']:.1%} the teacher prefers no replica to another: any choice agrees there."
    click.echo(text)
