"""`gnomon verify`: one command for every proof, with its options."""

import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from gnomon.api.verify import Verification, fetch_data, list_data, silicon_scenario, verify
from gnomon.cli.lazy import NearGroup
from gnomon.cli.options import about, answered, for_click, option_of, together, verb
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress
from gnomon.core.text import own_yaml, to_yaml

PICTURES = {"html": "over_time.html", "svg": "cdf.svg", "page": "leaderboard.html"}
"""What a check can draw, by the option that names its file."""

command = NearGroup("verify", help=about("verify"))


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
    _proof(_name, _given["doing"], for_click(_given["about"]), *_options)


@command.command()
@click.argument("name", required=False)
@verb("verify fetch")
@json_option
def fetch(name: str | None, out: Path | None, mirror: str | None, as_json: bool) -> None:
    folder = out or Path(os.environ.get("GNOMON_REFERENCE") or "reference")
    if name is None:
        show(list_data(folder), as_json=as_json)
        return
    with progress("fetching") as on_progress:
        written = fetch_data(name, folder, base=mirror, on_progress=on_progress)
    click.echo(f"{len(written)} files fetched; {folder} is complete. Set GNOMON_REFERENCE={folder} to use it.")
