"""How every check ends: what was found, what failed, and the exit code."""

from __future__ import annotations

import sys

import click

from gnomon.api.verify import Verification
from gnomon.cli.printing import show


def end(found: Verification, *, as_json: bool) -> None:
    """Print what was found; exit code 1 where the check does not pass."""
    show(found, as_json=as_json)
    if not found.passed:
        click.echo(f"Beyond tolerance: {', '.join(found.told.failures)}.", err=True)
        sys.exit(1)
