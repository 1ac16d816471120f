"""`gnomon verify silicon`: thousands of measured servers beside their simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.api.verify import silicon_scenario
from gnomon.cli.options import worker_options
from gnomon.cli.printing import json_option
from gnomon.cli.verify.verdict import check


@click.command()
@click.option("--rows", metavar="EXPR", help="""Only servers that meet this, e.g. 'engine == "vllm" and gpus == 8'.""")
@click.option("--sample", type=click.IntRange(1, 100_000), help="A random sample of this many servers.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the sample.")
@worker_options
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Also write the leaderboard as a page.")
@click.option("--show", "shown", metavar="ID", help="Print one server as a scenario, and simulate nothing.")
@json_option
def command(html: Path | None, shown: str | None, **given: Any) -> None:
    """Simulate the measured servers of aiconfigurator-core (extra [silicon]) and compare TTFT and TPOT.

    Every server gets its benchmark client, the settings of its launch script and its layout; servers of one
    configuration share a simulation. What was predicted already by this version is not simulated again, so that a
    stopped run goes on. Exit code 1 when a figure of the whole file is worse than the one recorded with the release.

    \b
    Examples:
      gnomon verify silicon --sample 200
      gnomon verify silicon --rows '"Llama" in model and device == "h200"'
      gnomon verify silicon --html leaderboard.html
      gnomon verify silicon --show ID > server.yaml && gnomon simulate server.yaml
    """
    import yaml

    if shown is not None:
        click.echo(yaml.safe_dump(silicon_scenario(shown), sort_keys=False), nl=False)
        return
    check("silicon", doing="simulating servers", pictures={"leaderboard.html": html}, **given)
