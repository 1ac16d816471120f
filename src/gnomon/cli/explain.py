"""`gnomon explain`: why requests were slow, what would help, and what limits a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gnomon.api.explain import explain
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress
from gnomon.core.errors import ConfigError


@click.command()
@click.argument("run", metavar="RUN_DIR", type=click.Path(path_type=Path))
@click.option("--request", type=int, metavar="ID", help="Tell the story of this request.")
@click.option("--percentile", type=float, default=99.0, show_default=True, help="Explain the requests from here on.")
@click.option(
    "--metric", type=click.Choice(["e2e", "ttft", "tpot"]), default="e2e", show_default=True, help="Which latency."
)
@click.option("--no-advice", is_flag=True, help="Do not simulate what would help and what limits.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for explanation.json and every request's parts (parts.parquet).",
)
@json_option
def command(
    run: Path, request: int | None, percentile: float, metric: str, no_advice: bool, out: Path | None, as_json: bool
) -> None:
    """Say why requests of a run were slow, or why one request was.

    RUN_DIR is a folder that `gnomon simulate --out` wrote, or a scenario (a YAML file); also one of `gnomon pipeline`
    or `gnomon posttrain`: what the step waited for. The run is simulated again with accounts of every request's time.

    \b
    Examples:
      gnomon explain runs/demo
      gnomon explain runs/demo --request 812
      gnomon explain runs/demo --percentile 95 --metric ttft --no-advice
    """
    if not run.exists():
        fix = f"Make one: gnomon simulate --out {run}" if not run.suffix else "Check the path of the scenario."
        raise ConfigError("there is no such run.", where=str(run), fix=fix)
    source = click.get_current_context().get_parameter_source
    asked: dict[str, Any] = {"request": request, "percentile": percentile, "metric": metric}
    given = {name: value for name, value in asked.items() if source(name) is not ParameterSource.DEFAULT}
    with progress() as on_progress:
        result = explain(run, advice=not no_advice, on_progress=on_progress, **given)
    show(result, as_json=as_json)
    if out is not None:
        click.echo(f"Written to {result.save(out)}.", err=as_json)
