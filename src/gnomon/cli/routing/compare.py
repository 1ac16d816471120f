"""`gnomon route compare`: routers on the same held-out traces."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from gnomon.api.routing import CompareConfig, Routers, route
from gnomon.cli.options import SectionedCommand, config_options, worker_options
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress
from gnomon.cli.routing.options import policies_given
from gnomon.core.config import load

GOAL_MISSED = 1
"""Exit code of --check where a goal is missed, or open: the interval over the seeds holds its limit."""


@click.command("compare", cls=SectionedCommand)
@click.argument("scenarios", nargs=-1)
@click.option("--policy", "policies", multiple=True, metavar="[NAME=]PATH", help="Policy file; several are compared.")
@click.option(
    "--lengths", type=click.Choice(["none", "noisy", "oracle"]), default="none", show_default=True,
    help="What routers know of output lengths; look-ahead and policies know the same.",
)  # fmt: skip
@config_options(CompareConfig, skip=("scenarios",))
@worker_options
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the report and the figures.")
@click.option(
    "--check", is_flag=True, help="Exit code 1 unless every goal is met with its whole 95 % interval.",
)  # fmt: skip
@json_option
def command(
    scenarios: tuple[str, ...],
    policies: tuple[str, ...],
    lengths: str,
    overrides: dict[str, Any],
    jobs: int | None,
    ray: str | None,
    out: Path | None,
    check: bool,
    as_json: bool,
) -> None:
    """Run routers on the same held-out traces: latencies, throughput, imbalance, paired differences.

    SCENARIOS are built-in names or YAML files; all built-in ones if none is given. Without --policy, the one that comes
    with Gnomon runs; it needs no PyTorch.

    \b
    Examples:
      gnomon route compare
      gnomon route compare mixed_bursty unequal --num-seeds 10 --out runs/compared
      gnomon route compare chat --routers least_outstanding,unselfish
      gnomon route compare my.yaml --policy runs/route/quick/policy.npz --policy clone=runs/route/quick/clone.npz
    """
    config = load(CompareConfig, None, {**overrides, **({"scenarios": list(scenarios)} if scenarios else {})})
    found = run_comparison(config, policies_given(policies), lengths, jobs, ray, out, as_json)
    if check and not found.goals_met:
        sys.exit(GOAL_MISSED)


def run_comparison(
    config: CompareConfig,
    policies: dict[str, Path | None],
    lengths: str,
    jobs: int | None,
    ray: str | None,
    out: Path | None,
    as_json: bool = False,
) -> Routers:
    """Compare, print and write."""
    with progress("comparing") as on_progress:
        found = route(config, policies=policies, lengths=lengths, jobs=jobs, ray=ray, on_progress=on_progress)
    show(found, as_json=as_json)
    if out is not None:
        click.echo(f"Wrote {found.save(out) / 'report.html'}.", err=as_json)
    return found
