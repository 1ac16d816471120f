"""`gnomon posttrain calibrate`: efficiencies from measured stage times."""

from __future__ import annotations

from typing import Any

import click

from gnomon.api.posttrain import Posttrain, calibrate, stage_costs
from gnomon.cli.options import SectionedCommand, config_options
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress
from gnomon.core.config import save


@click.command("calibrate", cls=SectionedCommand)
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--rollout-s", type=float, default=0.0, help="Measured seconds of generation.")
@click.option("--inference-s", type=float, default=0.0, help="Measured seconds of log-probabilities.")
@click.option("--actor-s", type=float, default=0.0, help="Measured seconds of training.")
@click.option("--out", type=click.Path(dir_okay=False), default=None, help="Write the calibrated configuration.")
@json_option
@config_options(Posttrain)
def command(
    config: str,
    rollout_s: float,
    inference_s: float,
    actor_s: float,
    out: str | None,
    as_json: bool,
    overrides: dict[str, Any],
) -> None:
    """Fit the efficiency of each component to its measured seconds, with components taking turns on all GPUs.

    A stage without a measurement keeps its efficiency.

    \b
    Example:
      gnomon posttrain calibrate examples/posttrain/elastic.yaml --rollout-s 340 --inference-s 60 --actor-s 210 \\
        --out calibrated.yaml
    """
    with progress("calibrating"):
        found = calibrate(config, measured=stage_costs(actor_s, rollout_s, inference_s), **overrides)
    if out:
        save(found.config, out)
    show(found, as_json=as_json)
    if out and not as_json:
        click.echo(f"wrote {out}")
