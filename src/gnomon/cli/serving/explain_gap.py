"""`gnomon explain-gap`: why a simulation differs from a recorded server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.api.calibration import explain_gap
from gnomon.api.serving import Scenario
from gnomon.cli.options import SectionedCommand, config_options
from gnomon.cli.printing import json_option, show


@click.command(cls=SectionedCommand)
@click.argument("log", type=click.Path())
@click.option("--scenario", "file", type=click.Path(), help="Scenario of the server, a YAML file.")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Also draw both over time into this file."
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for gap.json and gap.html.")
@json_option
@config_options(Scenario)
def command(
    log: str, file: str | None, html: Path | None, out: Path | None, as_json: bool, overrides: dict[str, Any]
) -> None:
    """Simulate a recorded load and rank what makes the two differ.

    LOG is a file with requests and their stamps, or a folder with requests and iterations, as for gnomon calibrate.
    Compared: latencies, iterations by phase and batch size, tokens computed, cache hits, requests in flight, and the
    first request that is off.

    \b
    Examples:
      gnomon explain-gap runs/engine/llama-3-8b-chat-60 --html gap.html
      gnomon explain-gap bench.json --scenario server.yaml --calibration calibration.yaml
    """
    found = explain_gap(log, file, **overrides)
    show(found, as_json=as_json)
    if html is not None:
        click.echo(f"The page is {found.write_page(html)}; open it in a browser.", err=as_json)
    if out is not None:
        click.echo(f"Written to {found.save(out)}.", err=as_json)
