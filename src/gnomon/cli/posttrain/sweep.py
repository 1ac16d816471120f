"""`gnomon posttrain sweep`: policies over cluster sizes."""

from __future__ import annotations

from typing import Any

import click

from gnomon.api.posttrain import Posttrain, sweep_sizes
from gnomon.cli.options import SectionedCommand, config_options
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress
from gnomon.core.errors import ConfigError


@click.command("sweep", cls=SectionedCommand)
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--nodes", required=True, metavar="LIST", help="Numbers of nodes, e.g. 4,8,16.")
@click.option("--policies", default="colocated,disaggregated,elastic", show_default=True, metavar="NAMES")
@json_option
@config_options(Posttrain)
def command(config: str, nodes: str, policies: str, as_json: bool, overrides: dict[str, Any]) -> None:
    """Run policies on clusters of several sizes; the placement of CONFIG is scaled to each.

    \b
    Example:
      gnomon posttrain sweep examples/posttrain/elastic.yaml --nodes 4,8,16
    """
    try:
        sizes = [int(part) for part in nodes.split(",")]
    except ValueError:
        raise ConfigError(f"cannot read {nodes!r}.", where="--nodes", fix="Give numbers: 4,8,16.") from None
    names = [name.strip() for name in policies.split(",")]
    with progress("sweeping") as on_progress:
        found = sweep_sizes(config, nodes=sizes, policies=names, on_progress=on_progress, **overrides)
    show(found, as_json=as_json)
