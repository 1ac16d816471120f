"""One simulation at a time for each view, the newest first: a slider that is dragged asks faster than anyone can
answer. Views do not wait for each other, and none waits for ever: what takes too long is given up."""

import ctypes
import itertools
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gnomon.core.errors import GnomonError

V = TypeVar("V")


class Kept(Generic[V]):
    """Up to `most` answers by their question; what was not asked for longest goes first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._answers: OrderedDict[str, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> V | None:
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
            return self._answers.get(key)

    def found(self, key: str, find: Callable[[], V]) -> V:
        """The answer; `find` finds it where it is not known, while others look for theirs."""
        answer = self.get(key)
        if answer is None:
            answer = find()
            with self._lock:
                self._answers[key] = answer
                while len(self._answers) > self.most:
                    self._answers.popitem(last=False)
        return answer


MAX_VIEWS = 1000
PATIENCE_S = 30.0  # How long a simulation may take.
LONGEST_S = 2 * PATIENCE_S  # After so long a question is given up, whatever it does.


@dataclass
class _View:
    """What one view of one client asks, one question after another."""

    newest: int = -1
    lock: threading.Lock = field(default_factory=threading.Lock)


_counter = itertools.count()
_views: dict[str, _View] = {}

_is_warm = threading.Event()
_is_warm.set()


@contextmanager
def warming_up() -> Iterator[None]:
    """Questions wait while everything is compiled, which may take a minute, and is not counted against them."""
    _is_warm.clear()
    try:
        yield
    finally:
        _is_warm.set()


@contextmanager
def refused_if_too_large() -> Iterator[None]:
    """A question for which the memory does not suffice is the user's mistake, not the page's."""
    try:
        yield
    except MemoryError:
        raise GnomonError("this takes more memory than there is.", fix="Use fewer or smaller replicas.") from None


def patience() -> Callable[[int, int], None]:
    """What `on_progress` wants: it stops a simulation that takes longer than anybody waits for."""
    begun: list[float] = []  # Compiling, before the first call, is not counted.

    def look(done: int, total: int) -> None:
        begun.append(time.monotonic())
        if begun[-1] > begun[0] + PATIENCE_S:
            fix = "Use gnomon simulate for it."
            raise GnomonError(f"stopped after {PATIENCE_S:g} s, at {done:,} of {total:,} requests.", fix=fix)

    return look


class _TooLong(BaseException):
    """Raised in a thread by another one; not an `Exception`, so that nobody on the way takes it for a mistake."""


@contextmanager
def _given_up_after(seconds: float) -> Iterator[None]:
    """Raise an error in this thread where it is still here after so many seconds. Compiled loops notice it when they
    come back to Python, which they do several times a second."""
    thread, lock, has_ended = threading.get_ident(), threading.Lock(), False

    timer: threading.Timer

    def interrupt() -> None:
        nonlocal timer
        with lock:
            if has_ended:
                return
            if _is_compiling(thread):
                timer = _timer(seconds, interrupt)
            else:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TooLong))

    timer = _timer(seconds, interrupt)
    try:
        try:
            yield
        finally:
            with lock:
                has_ended = True
            timer.cancel()
    except _TooLong:
        raise GnomonError(f"given up after {seconds:g} s.", fix="Ask for less, or use the command line.") from None


def _timer(seconds: float, then: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, then)
    timer.daemon = True
    timer.start()
    return timer


def _is_compiling(thread: int) -> bool:
    """Whether a thread makes compiled code, which it does once per version and feature."""
    frame = sys._current_frames().get(thread)
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith(
        ("numba.", "llvmlite.", "gnomon.jit.compiled")
    ):
        frame = frame.f_back
    return frame is not None


class Stale(Exception):
    """The view has asked something newer meanwhile: nobody waits for this answer."""


class Question:
    """Something that a view wants to know; it may need several turns, between which a newer one gets its own."""

    def __init__(self, view: str) -> None:
        if len(_views) > MAX_VIEWS:
            _views.clear()
        self.number, self.view = next(_counter), _views.setdefault(view, _View())
        self.view.newest = self.number

    @property
    def is_newest(self) -> bool:
        return self.view.newest == self.number

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the question before this one; raises `Stale` where this one is no longer of interest."""
        _is_warm.wait()
        if not self.view.lock.acquire(timeout=2 * LONGEST_S):
            raise GnomonError("the question before this one has not ended.", fix="Open the page anew.")
        try:
            if not self.is_newest:
                raise Stale
            with refused_if_too_large(), _given_up_after(LONGEST_S):
                yield
        finally:
            self.view.lock.release()
