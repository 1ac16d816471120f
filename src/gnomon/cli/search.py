"""`gnomon search`: the best deployment for a model, a workload and an SLO."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnomon.cli.options import config_options
from gnomon.cli.printing import json_option, print_json, print_rows
from gnomon.search.config import SearchConfig

if TYPE_CHECKING:
    from gnomon.search.study import Found

NOTHING_QUALIFIES = 1
"""Exit code where no configuration meets the SLO."""


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@config_options(SearchConfig)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the results.  [default: runs/search/FILE]")
@click.option("--fresh", is_flag=True, help="Forget what an earlier run left in the folder.")
@click.option("--jobs", type=click.IntRange(min=1), help="Local processes.  [default: all cores]")
@click.option("--on", "where", type=click.Choice(["local", "ray"]), default="local", help="Where to run.")
@click.option("--ray.address", "address", default="auto", help="Ray cluster: auto, local, or ray://head:10001.")
@click.option("--top", type=click.IntRange(min=1), default=15, show_default=True, help="Rows of the table.")
@json_option
def command(
    file: str | None,
    overrides: dict[str, Any],
    out: Path | None,
    fresh: bool,
    jobs: int | None,
    where: str,
    address: str,
    top: int,
    as_json: bool,
) -> None:
    """Find the best configuration of the space that FILE (YAML) describes; flags override its fields.

    A search that was interrupted goes on where it stopped when it is run again. Exit code 1: nothing meets the SLO.

    \b
    Examples:
      gnomon search examples/search/llama2_70b_chat.yaml
      gnomon search examples/search/small.yaml --strategy exhaustive --jobs 2
      gnomon search examples/search/small.yaml --on ray --ray.address ray://head:10001
    """
    from gnomon.cli.progress import progress
    from gnomon.core.config import load
    from gnomon.search.study import search

    question = load(SearchConfig, file, overrides)
    folder = out or Path("runs") / "search" / (Path(file).stem if file else question.model)
    if fresh:
        (folder / "results.jsonl").unlink(missing_ok=True)
    try:
        with progress("searching", quiet=as_json) as on_progress:
            found = search(
                question,
                results=folder / "results.jsonl",
                jobs=jobs,
                ray=address if where == "ray" else None,
                on_progress=on_progress,
            )
    except KeyboardInterrupt:
        click.echo(f"Interrupted; what was found is in {folder}. The same command goes on from there.", err=True)
        raise
    _print(found, top, as_json)
    if found.best is None:
        sys.exit(NOTHING_QUALIFIES)


def _print(found: Found, top: int, as_json: bool) -> None:
    rows = [
        {"configuration": one.label, "capacity/s": one.capacity_per_s, "score": one.score} for one in found.ranked[:top]
    ]
    if as_json:
        print_json(rows)
        return
    print_rows(rows)
    click.echo(f"{found.runs:,} runs, {found.simulated:,} requests simulated")
