"""`gnomon search`: the best deployment for a model, a workload and an SLO."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from gnomon.api.search import TOP, Search, SearchConfig, search
from gnomon.cli.options import SectionedCommand, config_options, worker_options
from gnomon.cli.printing import json_option, print_blocks, print_json
from gnomon.cli.progress import progress
from gnomon.core.config import load

NOTHING_QUALIFIES = 1
"""Exit code where no configuration meets the SLO."""


@click.command(cls=SectionedCommand)
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@config_options(SearchConfig)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the results.  [default: runs/search/FILE]")
@click.option("--fresh", is_flag=True, help="Forget what an earlier run left in the folder.")
@worker_options
@click.option("--top", type=click.IntRange(min=1), default=TOP, show_default=True, help="Rows of the table.")
@json_option
def command(
    file: str | None,
    overrides: dict[str, Any],
    out: Path | None,
    fresh: bool,
    jobs: int | None,
    ray: str | None,
    top: int,
    as_json: bool,
) -> None:
    """Find the best configuration of the space that FILE (YAML) describes; flags override its fields.

    The folder gets a report, the ranking, the winner's scenario (best.yaml, for `gnomon simulate`) and every result as
    it comes: a search that was interrupted goes on where it stopped when it is run again. With several models or
    workloads, each is searched, and the choices are compared. Exit code 1: nothing meets the SLO.

    \b
    Examples:
      gnomon search examples/search/small.yaml
      gnomon search examples/search/llama2_70b_chat.yaml --strategy exhaustive --jobs 2
      gnomon search examples/search/small.yaml --ray head:6379
    """
    question = load(SearchConfig, file, overrides)
    folder = out or Path("runs") / "search" / (Path(file).stem if file else Path(question.model).stem)
    try:
        with progress("searching") as on_progress:
            found = search(question, folder=folder, fresh=fresh, jobs=jobs, ray=ray, on_progress=on_progress)
    except KeyboardInterrupt:
        click.echo(f"Interrupted; what was found is in {folder}. The same command goes on from there.", err=True)
        raise
    found.save(folder)
    if as_json:
        print_json(found.to_dict())
    else:
        print_blocks(found.text(top) if isinstance(found, Search) else found.text())
    click.echo(f"Everything is in {folder}.", err=True)
    winners = [found.best] if isinstance(found, Search) else found.summary.values()
    if not any(winners):
        sys.exit(NOTHING_QUALIFIES)
