"""`gnomon route all`: from nothing to a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.api.routing import clone_teacher, collect_demos, train
from gnomon.cli.options import SectionedCommand, worker_options
from gnomon.cli.routing.compare import run_comparison
from gnomon.cli.routing.options import (
    checkpoint_to_resume,
    resolved,
    resume_option,
    stage_options,
    watcher,
)


@click.command("all", cls=SectionedCommand)
@stage_options
@worker_options
@resume_option
def command(
    config: str | None,
    overrides: dict[str, Any],
    out: Path | None,
    jobs: int | None,
    ray: str | None,
    resume: str | None,
) -> None:
    """Demonstrations, clone, PPO, comparison.

    Where training was interrupted, it goes on from the newest checkpoint, and the stages before it are skipped; so are
    they with another --start than the clone.

    \b
    Examples:
      gnomon route all --config quick
      gnomon route all --config full --lengths oracle --out runs/route/oracle
      gnomon route all --config quick --scenario examples/routing/my_cluster.yaml --domain-share 0.3
    """
    made, folder = resolved(config, overrides, out)
    checkpoint = checkpoint_to_resume(resume, folder, made.train.updates)
    with watcher() as watch:
        if checkpoint is None and made.start == "clone":
            collect_demos(made, folder, watch, jobs, ray)
            clone_teacher(made, folder, watch, jobs, ray)
        train(made, folder, watch, checkpoint)
    policies: dict[str, Path | None] = {"learned": folder.policy}
    if folder.clone.exists():
        policies["clone"] = folder.clone
    run_comparison(made.compare, policies, made.lengths, jobs, ray, folder.root / "comparison")
