"""A progress bar for long runs, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

SHOW_AFTER_S = 1.0
"""A run that is done by then needs no bar."""


@contextmanager
def progress(words: str = "simulating", *, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """Yield what `on_progress` wants: a bar with the time left, or None where nobody watches."""
    from gnomon.core.jit import is_compiled_already

    if not is_compiled_already():
        click.echo("Compiling the engine: once per version, about a minute.", err=True)
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(words, total=None)
    began = time.monotonic()

    def report(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if time.monotonic() - began > SHOW_AFTER_S and not bar.live.is_started:
            bar.start()

    try:
        yield report
    finally:
        bar.stop()
