"""`gnomon posttrain compare`: policies on the same lengths."""

from __future__ import annotations

from typing import Any

import click

from gnomon.cli.options import config_options
from gnomon.cli.printing import json_option, print_json, print_rows
from gnomon.posttrain.config import Posttrain


@click.command("compare")
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--policies", default=None, metavar="NAMES", help="Comma-separated; all built-in ones if not given.")
@click.option("--no-oracle", is_flag=True, help="Leave out the clairvoyant (about forty runs).")
@json_option
@config_options(Posttrain)
def command(config: str, policies: str | None, no_oracle: bool, as_json: bool, overrides: dict[str, Any]) -> None:
    """Run policies on the same lengths: step time, throughput, where GPU time goes, regret against the oracle.

    The oracle knows every length, deals prompts by them, and takes the best of all policies and of a grid of plans.
    Speed-up is over the static placement side by side.

    \b
    Examples:
      gnomon posttrain compare examples/posttrain/elastic.yaml
      gnomon posttrain compare examples/posttrain/elastic.yaml --policies elastic,disaggregated --num-steps 3
    """
    from gnomon.cli.progress import progress
    from gnomon.core.config import load
    from gnomon.posttrain.compare import COMPARED, compare, policies_to_compare
    from gnomon.report.posttrain.figures import policy_rows

    loaded = load(Posttrain, config, overrides)
    names = tuple(name.strip() for name in policies.split(",")) if policies else COMPARED
    with progress():
        outcomes = compare(loaded, policies_to_compare(loaded, names), with_oracle=not no_oracle)
    rows = policy_rows(outcomes, with_oracle=not no_oracle)
    if as_json:
        print_json(rows)
        return
    notes = [note for one in outcomes for note in one.record.notes]
    caption = "Shares of GPU time: busy, then idle by cause. " + " ".join(f"{note.capitalize()}." for note in notes)
    print_rows([_printed(row) for row in rows], title="Policies on the same lengths", caption=caption)


def _printed(row: dict[str, Any]) -> dict[str, Any]:
    shares = ("regret", "busy", "tail", "pipeline", "transition", "divisibility")
    return {key: f"{100 * value:.1f} %" if key in shares else value for key, value in row.items()}
