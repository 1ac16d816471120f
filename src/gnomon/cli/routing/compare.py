"""`gnomon route compare`: routers on the same held-out traces."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import click

from gnomon.cli.options import config_options
from gnomon.cli.printing import json_option, print_json, print_rows
from gnomon.cli.routing.options import jobs_option, policies_given
from gnomon.core.config import load
from gnomon.routing.config import CompareConfig

WIDE = 135
"""Columns of a terminal that shows every figure; a narrower one shows the main ones."""
GOAL_MISSED = 1
"""Exit code of --check where a goal is missed."""


@click.command("compare")
@click.argument("scenarios", nargs=-1)
@click.option("--policy", "policies", multiple=True, metavar="[NAME=]PATH", help="Policy file; several are compared.")
@click.option(
    "--lengths", type=click.Choice(["none", "noisy", "oracle"]), default="none", show_default=True,
    help="What routers know of output lengths; look-ahead and policies know the same.",
)  # fmt: skip
@config_options(CompareConfig, skip=("scenarios",))
@jobs_option
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the report and the figures.")
@click.option("--check", is_flag=True, help="Exit code 1 where a goal is missed.")
@json_option
def command(
    scenarios: tuple[str, ...],
    policies: tuple[str, ...],
    lengths: Any,
    overrides: dict[str, Any],
    jobs: int | None,
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
      gnomon route compare my.yaml --policy runs/route/quick/policy.npz --policy clone=runs/route/quick/clone.npz
    """
    config = load(CompareConfig, None, {**overrides, **({"scenarios": list(scenarios)} if scenarios else {})})
    is_met = run_comparison(config, policies_given(policies), lengths, jobs, out, as_json)
    if check and not is_met:
        sys.exit(GOAL_MISSED)


def is_narrow() -> bool:
    """Whether a person looks at this on a narrow terminal; files and pipes have no width to respect."""
    return sys.stdout.isatty() and shutil.get_terminal_size().columns < WIDE


def run_comparison(
    config: CompareConfig,
    policies: dict[str, Path | None],
    lengths: Any,
    jobs: int | None,
    out: Path | None,
    as_json: bool = False,
) -> bool:
    """Compare, print and write; whether every goal that could be judged is met."""
    from gnomon.cli.progress import progress
    from gnomon.report.routing import files as route_files
    from gnomon.report.routing import text as route_text
    from gnomon.routing.compare import compare, contenders
    from gnomon.routing.goals import judge

    against = contenders(config, policies, lengths)
    with progress("comparing") as on_progress:
        found = compare(config, against, jobs=jobs, on_progress=on_progress)
    verdicts = [verdict for policy in found.policies for verdict in judge(found, policy)]
    if as_json:
        print_json(found.to_dict() | {"goals": route_text.goal_rows(verdicts)})
    else:
        for scenario in found.scenarios:
            rows = route_text.scenario_rows(found, scenario, brief=is_narrow())
            print_rows(rows, title=f"{scenario}: {route_text.about(found, scenario)}", right=list(rows[0])[1:])
        if verdicts:
            print_rows(route_text.goal_rows(verdicts), title="Goals", right=["measured", "95 % interval"])
    if out is not None:
        click.echo(f"Wrote {route_files.write_comparison(found, verdicts, out)}.", err=as_json)
    return all(verdict.is_met for verdict in verdicts)
