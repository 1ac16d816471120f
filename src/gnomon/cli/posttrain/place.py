"""`gnomon posttrain place`: the best static placement, and whether elastic scheduling pays."""

from __future__ import annotations

from typing import Any

import click

from gnomon.api.posttrain import Posttrain, place, stage_costs
from gnomon.cli.options import SectionedCommand, config_options
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress
from gnomon.core.errors import ConfigError


@click.command("place", cls=SectionedCommand)
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--costs", default=None, metavar="ACTOR,ROLLOUT,INFERENCE", help="Measured seconds, all on all GPUs.")
@click.option("--top", default=6, show_default=True, help="Placements to simulate.")
@click.option("--rule-only", is_flag=True, help="The rule's answer alone, without simulating placements.")
@json_option
@config_options(Posttrain)
def command(
    config: str, costs: str | None, top: int, rule_only: bool, as_json: bool, overrides: dict[str, Any]
) -> None:
    """Find GPUs for actor, rollout and inference, and say whether moving them during the step pays.

    The published rule estimates every valid placement from three stage costs; the best candidates are then simulated.

    \b
    Examples:
      gnomon posttrain place examples/posttrain/elastic.yaml
      gnomon posttrain place examples/posttrain/elastic.yaml --costs 101,224,10 --rule-only
    """
    given = _costs(costs)
    with progress("placing") as on_progress:
        found = place(config, costs=given, num_simulated=top, rule_only=rule_only, on_progress=on_progress, **overrides)
    show(found, as_json=as_json)


def _costs(text: str | None) -> Any:
    if text is None:
        return None
    try:
        actor, rollout, inference = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"cannot read {text!r}.", where="--costs", fix="Give three seconds: 101,224,10.") from None
    return stage_costs(actor, rollout, inference)
