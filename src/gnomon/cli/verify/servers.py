"""`gnomon verify servers`: measured vLLM servers of the ML.ENERGY leaderboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.cli.printing import json_option
from gnomon.cli.verify.verdict import check


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--only", default="", metavar="TEXT", help="Only servers whose name contains this, e.g. 'Qwen3-8B h100'.")
@click.option("--jobs", type=click.IntRange(1), help="Processes; as many as there are cores if not given.")
@json_option
def command(file: Path, **given: Any) -> None:
    """Text servers of the ML.ENERGY leaderboard (vLLM 0.11.1, H100 and B200), beside their simulation.

    FILE is servers.csv. Nothing is fitted to these servers; what their rows do not say, the lengths of prompts and how
    much answers differ, is taken alike for all of a task (docs/servers.md). Lines with an odd crc32 are held out from
    every choice. Exit code 1 where a figure is worse than that recorded with the release.

    \b
    Examples:
      gnomon verify servers reference/mlenergy/servers.csv
      gnomon verify servers reference/mlenergy/servers.csv --only "gemma-3-12b-it h100" --json
    """
    check("servers", file, doing="simulating servers", **given)
