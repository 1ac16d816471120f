"""`gnomon posttrain run`: one policy, step by step."""

from __future__ import annotations

from typing import Any

import click

from gnomon.api.posttrain import Posttrain, posttrain
from gnomon.cli.options import SectionedCommand, config_options
from gnomon.cli.printing import json_option, print_json, show
from gnomon.cli.progress import progress


@click.command("run", cls=SectionedCommand)
@click.argument("config", type=click.Path(dir_okay=False))
@click.option(
    "--out", type=click.Path(file_okay=False), default=None, help="Write the time line, a trace and the rest."
)
@click.option("--record", "keep", is_flag=True, help="With --out: also write every snapshot and its actions.")
@json_option
@config_options(Posttrain)
def command(config: str, out: str | None, keep: bool, as_json: bool, overrides: dict[str, Any]) -> None:
    """Simulate the steps of CONFIG under its policy, and show where the time goes.

    \b
    Examples:
      gnomon posttrain run examples/posttrain/elastic.yaml
      gnomon posttrain run examples/posttrain/elastic.yaml --num-steps 5 --out runs/elastic
      gnomon posttrain run examples/posttrain/elastic.yaml --policy disaggregated
    """
    with progress() as on_progress:
        result = posttrain(config, keep_decisions=keep and out is not None, on_progress=on_progress, **overrides)
    files = sorted(result.save(out).iterdir()) if out else []
    if as_json:
        print_json(result.to_dict() | {"files": list(map(str, files))})
        return
    show(result, as_json=False)
    for file in files:
        click.echo(f"wrote {file}")
