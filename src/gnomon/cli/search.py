"""The commands that search: the best deployment, and the suite of schedulers."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from gnomon.api import search as api
from gnomon.cli.options import SectionedCommand, answered, config_options, verb
from gnomon.cli.printing import json_option, print_blocks, print_json
from gnomon.cli.progress import progress
from gnomon.core.config import load
from gnomon.core.files import write_text

NOTHING_QUALIFIES = 1  # Exit code where no configuration meets the SLO.
file_argument = click.argument("file", required=False, type=click.Path(dir_okay=False))


@click.command(cls=SectionedCommand)
@file_argument
@verb("search")
@json_option
@config_options(api.SearchConfig)
def search(
    file: str | None, overrides: dict[str, Any], out: Path | None, top: int, as_json: bool, **given: Any
) -> None:
    question = load(api.SearchConfig, file, overrides)
    folder = out or Path("runs") / "search" / (Path(file).stem if file else Path(question.model).stem)
    try:
        with progress("searching") as on_progress:
            found = api.search(question, folder=folder, on_progress=on_progress, **given)
    except KeyboardInterrupt:
        click.echo(f"Interrupted; what was found is in {folder}. The same command goes on from there.", err=True)
        raise
    with progress("writing", compiles=False):
        found.save(folder)
        shown = found.text(top) if isinstance(found, api.Search) else found.text()
    if as_json:
        print_json(found.to_dict())
    else:
        print_blocks(shown)
    click.echo(f"Everything is in {folder}.", err=True)
    winners = [found.best] if isinstance(found, api.Search) else found.summary.values()
    if not any(winners):
        sys.exit(NOTHING_QUALIFIES)


@click.command(cls=SectionedCommand)
@file_argument
@verb("bench")
@answered("measuring")
@config_options(api.BenchConfig)
def bench(file: str | None, overrides: dict[str, Any], path: Path | None, **given: Any) -> Any:
    found = api.bench(file, **given, **overrides)
    if path is not None:
        write_text(path, json.dumps(found.to_dict(), indent=1))
    return found
