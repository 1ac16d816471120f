"""`gnomon verify training`."""

from __future__ import annotations

from pathlib import Path

import click

from gnomon.cli.printing import json_option
from gnomon.cli.verify.verdict import check


@click.command()
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), envvar="GNOMON_REFERENCE", help="Folder of references."
)
@json_option
def command(data: Path | None, as_json: bool) -> None:
    """Published training steps beside their prediction: MLPerf, Megatron-Bridge, prime-rl, and steps on one H200.

    Constants were fitted on the rows whose line has an even CRC-32; the others are judged. Exit code 1 where a median
    error, or the order of two configurations, is beyond its bar; see docs/training.md.

    \b
    Example:
      gnomon verify training --data reference/
    """
    check("training", data=data, doing="timing steps", as_json=as_json)
