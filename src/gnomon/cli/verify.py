"""`gnomon verify`: one command for every proof, with its options."""

import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from gnomon.api.verify import Verification, fetch_data, list_data, silicon_scenario, verify
from gnomon.cli.lazy import NearGroup
from gnomon.cli.options import answered, folder_option, option_of, together
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress
from gnomon.core.text import own_yaml, to_yaml

PICTURES = {"html": "over_time.html", "svg": "cdf.svg", "page": "leaderboard.html"}
"""What a check can draw, by the option that names its file."""


@click.group(cls=NearGroup)
def command() -> None:
    """Hold the simulator against recorded and published results.

    Exit code 0 when a check passes, 1 when it does not, 2 when its data cannot be read.

    \b
    Example:
      gnomon verify timing --data reference/
    """


def _proof(name: str, doing: str, about: str, *options: Callable[[Any], Any]) -> None:
    """The command of a check: what it is about, and what `gnomon.verify.<name>.prove` takes, by the same names; an
    argument `given` comes first."""

    @command.command(name, help=about)
    @together(*options)
    @answered(doing)
    def run(given: tuple[Any, ...] | Path = (), **options: Any) -> Verification:
        files = {file: options.pop(flag) for flag, file in PICTURES.items() if flag in options}
        allowed = {key[10:]: options.pop(key) for key in list(options) if key.startswith("tolerance_")}
        options |= {"tolerances": allowed} if allowed else {}
        check = "roofline" if options.pop("roofline", False) else name
        if check != name:  # It takes nothing but the data.
            options = {key: options[key] for key in ("data", "on_progress")}
        found = verify(check, *(given if isinstance(given, tuple) else (given,)), **options)
        for file, path in files.items():
            if path is not None:
                found.pictures[file](path)
        return found


def _show_server(ctx: click.Context, option: click.Parameter, server: str | None) -> None:
    if server is not None:
        click.echo(to_yaml(silicon_scenario(server)), nl=False)
        ctx.exit()


for _name, _given in own_yaml(files("gnomon.cli") / "verify.yaml").items():
    _options = [option_of(one, show=_show_server) for one in _given.get("options", ())]
    _proof(_name, _given["doing"], _given["about"], *_options)


@command.command()
@click.argument("name", required=False)
@folder_option(
    "Folder for the data; set GNOMON_REFERENCE to it afterwards.  [default: $GNOMON_REFERENCE, else reference]"
)
@click.option("--mirror", metavar="URL", help="Fetch from here instead of the public place.")
@json_option
def fetch(name: str | None, out: Path | None, mirror: str | None, as_json: bool) -> None:
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
