"""Progress of everything that takes long: one line at the foot of a terminal, now and then a line elsewhere."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import click

from gnomon.core import units

SHOW_AFTER_S = 0.4
"""What is done by then needs no bar; with half a second for starting up it is seen within a second of Enter."""
SAY_EVERY_S, MOST_SELDOM_S = 10.0, 60.0
"""Seconds between two lines where no terminal shows a bar: at first, and at last."""
WIDTH = 24  # Letters of a bar.
COMPILING = "Compiling the engine: once per version, about a minute on an idle machine."

Report = Callable[..., None]
"""Called with what is done and how much there is, and perhaps a few words to show beside it."""


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
        self.words, self.done, self.total, self.beside = words, 0, 0, ""
        self.began, self._over = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Report:
        self._thread.start()
        return self.report

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()

    def report(self, done: int, total: int, beside: str = "") -> None:
        self.done, self.total, self.beside = done, total, beside

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
        click.echo(f"{self.words} ...{far} {seconds:.0f} s{self.beside and '  '}{self.beside}", err=True)


class _Bar(_Shown):
    """A line that is drawn over again and again, and gone in the end. Of bars within a bar the innermost is seen."""

    open: ClassVar[list[_Bar]] = []
    drawn: ClassVar[bool] = False
    lock: ClassVar[threading.RLock] = threading.RLock()

    def __enter__(self) -> Report:
        self.open.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.open.remove(self)
        self.wipe()

    def show(self) -> None:
        with self.lock:
            if self.open[-1] is self and not self._over.is_set():
                columns = shutil.get_terminal_size().columns - 1
                _write_past(f"\r{self.line()[:columns]}\x1b[K")
                _Bar.drawn = True

    def line(self) -> str:
        """What is done in words, as a bar and in numbers; the time so far and, as far as that tells, still to come."""
        seconds = time.monotonic() - self.began
        parts = [self.words, f"{seconds:.0f} s"]
        if self.total:
            filled = "━" * (WIDTH * min(self.done, self.total) // self.total)
            parts[1:1] = [f"{filled:─<{WIDTH}}", f"{self.done:,} of {self.total:,}"]
            left = seconds / self.done * (self.total - self.done) if self.done else 0.0
            parts[-1] += f", {units.seconds(left)} left" if left >= 1.0 else ""
        return "  ".join([*parts, self.beside])

    @classmethod
    def wipe(cls) -> None:
        """Make room for a text."""
        with cls.lock:
            if cls.drawn:
                cls.drawn = False
                _write_past("\r\x1b[K")


def _write_past(text: str) -> None:
    """Write to the terminal, not as something that is said."""
    stream = getattr(sys.stderr, "under", sys.stderr)
    stream.write(text)
    stream.flush()


class _Said:
    """A stream at a terminal: what is said takes the place of the bar, and ends the one of the start."""

    def __init__(self, under: Any, bar: _Bar) -> None:
        self.under, self._bar = under, bar

    def __getattr__(self, name: str) -> Any:
        return getattr(self.under, name)

    def write(self, text: str) -> int:
        if text:
            self._bar._over.set()
            _Bar.wipe()
        return int(self.under.write(text))


@contextmanager
def alive(words: str) -> Iterator[None]:
    """At a terminal: a bar until something is said, so that also importing and reading are no silence."""
    if not sys.stderr.isatty():
        yield
        return
    bar, streams = _Bar(words), (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = (_Said(one, bar) if one.isatty() else one for one in streams)
    try:
        with bar:
            yield
    finally:
        sys.stdout, sys.stderr = streams
