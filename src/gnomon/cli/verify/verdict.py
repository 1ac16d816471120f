"""How every check runs and ends: what was found, what failed, and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gnomon.api.verify import verify
from gnomon.cli.printing import show
from gnomon.cli.progress import progress


def check(
    name: str, *given: Any, as_json: bool, doing: str = "verifying", pictures: Mapping[str, Path | None] | None = None,
    **options: Any,
) -> None:  # fmt: skip
    """Run a check, draw the pictures for which a file is named, print what was found; exit code 1 where it does not
    pass."""
    with progress(doing) as on_progress:
        found = verify(name, *given, on_progress=on_progress, **options)
    for picture, path in (pictures or {}).items():
        if path is not None:
            found.pictures[picture](path)
    show(found, as_json=as_json)
    if not found.passed:
        click.echo(f"Beyond tolerance: {', '.join(found.told.failures)}.", err=True)
        sys.exit(1)
