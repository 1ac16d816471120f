"""`gnomon verify pipeline`: recorded and published results of training pipelines."""

from __future__ import annotations

import click

from gnomon.cli.printing import json_option
from gnomon.cli.verify.verdict import check

MAX_ROWS = 200


@click.command("pipeline")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False), metavar="FILE...")
@click.option("--all", "show_all", is_flag=True, help=f"Print every row, even beyond {MAX_ROWS} per file.")
@json_option
def command(files: tuple[str, ...], show_all: bool, as_json: bool) -> None:
    """Hold the pipeline simulator against FILES; exit code 1 when a value is off.

    A file is a list of single runs (JSON), a sweep CSV (its configuration beside it), bubble tables (JSON), or a
    PyTorch schedule CSV.

    \b
    Example:
      gnomon verify pipeline single_runs.json config_1_step0.1.csv zero_bubble_tables.json
    """
    check("pipeline", *files, most_rows=None if show_all else MAX_ROWS, as_json=as_json)
