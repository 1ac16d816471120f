"""`gnomon check`: limits and an earlier run, for continuous integration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from gnomon.api.check import check
from gnomon.api.serving import Scenario
from gnomon.cli.options import SectionedCommand, config_options
from gnomon.cli.printing import json_option, print_blocks, print_json
from gnomon.cli.progress import progress
from gnomon.core.errors import ConfigError
from gnomon.core.files import write_text

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(cls=SectionedCommand)
@click.argument("file", metavar="[SCENARIO]", required=False, type=click.Path())
@click.option("--slo", "limits", multiple=True, metavar="NAME=SECONDS", help="A limit, e.g. ttft_p99=0.5.")
@click.option("--baseline", type=click.Path(path_type=Path), help="Folder of an earlier `gnomon simulate --out`.")
@click.option("--tolerance", default=0.05, show_default=True, type=click.FloatRange(0), help="Share it may be worse.")
@click.option("--junit", type=_FILE, help="Also write the result as JUnit's XML.")
@click.option("--markdown", type=_FILE, help="Also write a table for a pull request.")
@json_option
@config_options(Scenario)
def command(
    file: str | None, overrides: dict[str, Any], limits: tuple[str, ...], baseline: Path | None, tolerance: float,
    junit: Path | None, markdown: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Simulate SCENARIO and hold it against limits and an earlier run; exit code 1 where it fails.

    \b
    Examples:
      gnomon check scenario.yaml --slo ttft_p99=0.5 --slo tpot_p99=0.05
      gnomon check scenario.yaml --baseline runs/main --junit check.xml --markdown check.md
    """
    with progress() as on_progress:
        found = check(
            file, slo=dict(map(_limit, limits)), baseline=baseline, tolerance=tolerance, on_progress=on_progress,
            **overrides,
        )  # fmt: skip
    if as_json:
        print_json(found.to_dict())
    else:
        print_blocks(found.text())
    for path, text in ((junit, found.junit()), (markdown, found.markdown())):
        if path is not None:
            write_text(path, text)
    if not found.passed:
        sys.exit(1)


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise ConfigError(f"{text!r} is no limit.", where="--slo", fix="Write it as ttft_p99=0.5.") from None
