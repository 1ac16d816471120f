"""`gnomon verify vidur`: recorded Vidur runs, batch by batch."""

from __future__ import annotations

import click

from gnomon.cli.printing import json_option
from gnomon.cli.verify.verdict import check


@click.command()
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path())
@json_option
def command(run_dirs: tuple[str, ...], as_json: bool) -> None:
    """Replay recorded Vidur runs and compare every batch and every time stamp.

    A run directory holds run.json, requests.csv.gz and batches.csv.gz. The recorded stage times are replayed, so that
    only scheduling is compared: same requests and tokens in every batch, stamps within 1e-9 s. Exit code 1 when any
    run differs.

    \b
    Example:
      gnomon verify vidur reference/vidur/runs/*
    """
    check("vidur", *run_dirs, doing="replaying", as_json=as_json)
