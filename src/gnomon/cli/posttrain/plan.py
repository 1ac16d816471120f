"""`gnomon posttrain plan`: split, mode, staleness and layouts for a GPU budget."""

from __future__ import annotations

from typing import Any, Literal

import click

from gnomon.api.posttrain import Posttrain, plan_posttrain
from gnomon.cli.options import SectionedCommand, config_options
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress


@click.command("plan", cls=SectionedCommand)
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--goal", type=click.Choice(["samples", "dollars"]), default="samples", show_default=True)
@click.option("--max-lag", default=1, show_default=True, help="Most weight updates from a first token to its training.")
@click.option("--top", default=10, show_default=True, help="Plans to show.")
@json_option
@config_options(Posttrain)
def command(
    config: str,
    goal: Literal["samples", "dollars"],
    max_lag: int,
    top: int,
    as_json: bool,
    overrides: dict[str, Any],
) -> None:
    """Simulate modes, splits and layouts of CONFIG's model, algorithm and lengths on its GPUs, and name the best.

    Its placement and layouts are not used. --max-lag 0 leaves the synchronous modes.

    \b
    Examples:
      gnomon posttrain plan examples/posttrain/small.yaml
      gnomon posttrain plan examples/posttrain/small.yaml --goal dollars --max-lag 2 --cluster.num-nodes 2
    """
    with progress("planning") as on_progress:
        found = plan_posttrain(config, goal=goal, max_lag=max_lag, top=top, on_progress=on_progress, **overrides)
    show(found, as_json=as_json)
