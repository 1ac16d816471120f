"""`gnomon manifest`: a scenario as a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.api.serving import Scenario, scenario
from gnomon.cli.options import SectionedCommand, config_options
from gnomon.core.files import write_text


@click.command(cls=SectionedCommand)
@click.argument("file", metavar="[SCENARIO]", required=False, type=click.Path())
@click.option("--for", "target", default="kubernetes", show_default=True, help="kubernetes, llm-d or compose.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the files; else they are printed."
)
@config_options(Scenario)
def command(file: str | None, overrides: dict[str, Any], target: str, out: Path | None) -> None:
    """Write SCENARIO (that of a search's winner, too) as manifests; what they cannot say is named.

    \b
    Examples:
      gnomon manifest scenario.yaml --for kubernetes > deployment.yaml
      gnomon manifest runs/search/best.yaml --for llm-d --out overlay
    """
    from gnomon.convert.manifests import manifest

    made = manifest(scenario(file, **overrides), target)
    for name, text in made.files.items():
        if out is None:
            click.echo(f"# {name}\n{text}" if len(made.files) > 1 else text, nl=False)
        else:
            write_text(out / name, text)
    for one in made.left:
        click.echo(f"Not said: {one}", err=True)
