"""Progress of everything that takes long: a bar on a terminal, now and then a line elsewhere."""

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

SHOW_AFTER_S = 0.4
"""What is done by then needs no bar; with half a second for starting up it is seen within a second of Enter."""
SAY_EVERY_S, MOST_SELDOM_S = 10.0, 60.0
"""Seconds between two lines where no terminal shows a bar: at first, and at last."""
COMPILING = "Compiling the engine: once per version, about a minute on an idle machine."

Report = Callable[[int, int], None]


def say_if_compiling(more: str = "") -> None:
    """The first run of a version compiles the engine: say so."""
    from gnomon.jit import is_compiled_already

    if not is_compiled_already():
        click.echo(COMPILING + more, err=True)


@contextmanager
def progress(words: str = "simulating", *, compiles: bool = True) -> Iterator[Report]:
    """Yield what `on_progress` wants. Also what never reports is seen to be alive."""
    if compiles:
        say_if_compiling()
    with _Bar(words) if sys.stderr.isatty() else _Lines(words) as report:
        yield report


class _Shown(ABC):
    """Shows itself from a thread of its own, so that it does not wait for the first report."""

    first_s, every_s = SHOW_AFTER_S, 0.2

    def __init__(self, words: str) -> None:
        self.words, self.done, self.total = words, 0, 0
        self.began, self._over = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Report:
        self._thread.start()
        return self.report

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()

    def report(self, done: int, total: int) -> None:
        self.done, self.total = done, total

    def _watch(self) -> None:
        wait = self.first_s
        while not self._over.wait(wait):
            self.show()
            wait = self.next_s(wait)

    def next_s(self, last_s: float) -> float:
        """Seconds until it is shown again."""
        return self.every_s

    @abstractmethod
    def show(self) -> None:
        """Say how far it is."""


class _Lines(_Shown):
    first_s = SAY_EVERY_S

    def next_s(self, last_s: float) -> float:
        """Ever more seldom: an hour is told in some sixty lines."""
        return min(2 * last_s, MOST_SELDOM_S)

    def show(self) -> None:
        seconds = time.monotonic() - self.began
        far = f" {self.done:,} of {self.total:,}," if self.total else ""
        click.echo(f"{self.words} ...{far} {seconds:.0f} s", err=True)


class _Bar(_Shown):
    def __init__(self, words: str) -> None:
        super().__init__(words)
        self._bar: Any = None

    def show(self) -> None:
        if self._bar is None:
            self._bar = _new_bar()
            self._task = self._bar.add_task(self.words, total=None)
            self._bar.start()
        self._bar.update(self._task, completed=self.done, total=self.total or None)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._bar is not None:
            self._bar.stop()


def _new_bar() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    return Progress(*columns, console=Console(stderr=True), transient=True)
