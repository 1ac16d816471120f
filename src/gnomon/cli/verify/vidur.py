"""`gnomon verify vidur`: recorded Vidur runs, batch by batch."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from gnomon.cli.printing import json_option, print_json, print_rows


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
    from gnomon.verify.vidur import compare

    found = [compare(folder) for folder in run_dirs]
    if as_json:
        print_json([{**asdict(c), "agrees": c.agrees} for c in found])
    else:
        rows = [
            {
                "run": c.name,
                "scheduler": c.scheduler,
                "requests": c.num_requests,
                "batches compared": c.num_batches,
                "largest stamp error": f"{c.largest_stamp_error_s:.1e} s",
                "block counts off": c.num_block_differences
                if c.blocks_are_compared
                else f"({c.num_block_differences})",
                "agrees": c.agrees,
            }
            for c in found
        ]
        print_rows(rows, right=["requests", "batches compared", "largest stamp error", "block counts off"])
        for c in found:
            if c.first_difference:
                click.echo(f"{c.name}: {c.first_difference}")
    if not all(c.agrees for c in found):
        sys.exit(1)
