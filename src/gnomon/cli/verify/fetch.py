"""`gnomon verify fetch`: the data that checks are held against."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gnomon.api.verify import fetch_data, list_data
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress


@click.command()
@click.argument("name", required=False)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Folder for the data; set GNOMON_REFERENCE to it afterwards.  [default: $GNOMON_REFERENCE, else reference]",
)  # fmt: skip
@click.option("--mirror", metavar="URL", help="Fetch from here instead of the public place.")
@json_option
def command(name: str | None, out: Path | None, mirror: str | None, as_json: bool) -> None:
    """List the data sets, or fetch one of them by NAME.

    Files are checked by their SHA-256, and those that are there already are not fetched again. Sets that cannot be
    fetched say how to get or record them.

    \b
    Examples:
      gnomon verify fetch
      gnomon verify fetch vidur-profiling --out reference
      GNOMON_REFERENCE=reference gnomon verify timing
    """
    folder = out or Path(os.environ.get("GNOMON_REFERENCE") or "reference")
    if name is None:
        show(list_data(folder), as_json=as_json)
        return
    with progress("fetching") as on_progress:
        written = fetch_data(name, folder, base=mirror, on_progress=on_progress)
    click.echo(f"{len(written)} files fetched; {folder} is complete. Set GNOMON_REFERENCE={folder} to use it.")
