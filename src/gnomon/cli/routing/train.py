"""`gnomon route train`: PPO from the clone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.api.routing import train
from gnomon.cli.options import SectionedCommand
from gnomon.cli.routing.options import checkpoint_to_resume, resolved, resume_option, stage_options, watcher


@click.command("train", cls=SectionedCommand)
@stage_options
@resume_option
def command(config: str | None, overrides: dict[str, Any], out: Path | None, resume: str | None) -> None:
    """Improve the folder's clone with PPO, on a leash to it.

    --start PATH takes another policy instead of the clone, --start nothing one at random.

    Writes policy.npz, metrics.csv and metrics.parquet, TensorBoard scalars and checkpoints. A run that is resumed ends
    with the same policy, to the bit, as one that never stopped.

    \b
    Examples:
      gnomon route train --config quick
      gnomon route train --config quick --resume never --train.kl-start 0.6 --train.kl-end 0.1
      gnomon route train --start runs/route/full/policy.npz --scenario my_cluster.yaml --out runs/route/mine
      tensorboard --logdir runs/route
    """
    made, folder = resolved(config, overrides, out)
    checkpoint = checkpoint_to_resume(resume, folder, made.train.updates)
    with watcher() as watch:
        policy = train(made, folder, watch, checkpoint)
    click.echo(f"Wrote {policy}. Use it with: gnomon simulate --router learned --router.checkpoint {policy}")
