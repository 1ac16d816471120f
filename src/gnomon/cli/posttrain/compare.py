"""`gnomon posttrain compare`: policies on the same lengths."""

from __future__ import annotations

from typing import Any

import click

from gnomon.api.posttrain import Posttrain, compare_policies
from gnomon.cli.options import SectionedCommand, config_options
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress


@click.command("compare", cls=SectionedCommand)
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--policies", default=None, metavar="NAMES", help="Comma-separated; all built-in ones if not given.")
@click.option("--no-oracle", is_flag=True, help="Leave out the oracle (about forty runs).")
@json_option
@config_options(Posttrain)
def command(config: str, policies: str | None, no_oracle: bool, as_json: bool, overrides: dict[str, Any]) -> None:
    """Run policies on the same lengths: step time, throughput, where GPU time goes, regret against the oracle.

    The oracle knows every length, deals prompts by them, and takes the best of all policies and of a grid of plans.
    Ratio is of tokens/s, over the static placement side by side.

    \b
    Examples:
      gnomon posttrain compare examples/posttrain/elastic.yaml
      gnomon posttrain compare examples/posttrain/elastic.yaml --policies elastic,disaggregated --num-steps 3
    """
    names = [name.strip() for name in policies.split(",")] if policies else None
    with progress("comparing") as on_progress:
        found = compare_policies(
            config, policies=names, with_oracle=not no_oracle, on_progress=on_progress, **overrides
        )
    show(found, as_json=as_json)
