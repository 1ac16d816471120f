"""One simulation at a time, the newest first: a slider that is dragged asks faster than anyone can answer."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gnomon.core.errors import GnomonError

_lock = threading.Lock()
_counter = itertools.count()
_newest: dict[str, int] = {}
MAX_VIEWS = 1000


@contextmanager
def told_if_too_large() -> Iterator[None]:
    """A question for which the memory does not suffice is the user's mistake, not the page's."""
    try:
        yield
    except MemoryError:
        raise GnomonError("this takes more memory than there is.", fix="Use fewer or smaller replicas.") from None


PATIENCE_S = 30.0
"""How long one simulation may keep the others waiting."""


def patience() -> Callable[[int, int], None]:
    """What `on_progress` wants: it stops a simulation that takes longer than anybody waits for."""
    end = time.monotonic() + PATIENCE_S

    def look(done: int, total: int) -> None:
        if time.monotonic() > end:
            raise GnomonError(
                f"stopped after {PATIENCE_S:g} s, at {done:,} of {total:,} requests.", fix="Use gnomon simulate for it."
            )

    return look


class Stale(Exception):
    """The view has asked something newer meanwhile: nobody waits for this answer."""


class Question:
    """Something that a view wants to know; it may need several turns, between which others get theirs."""

    def __init__(self, view: str) -> None:
        self.view, self.number = view, next(_counter)
        if len(_newest) > MAX_VIEWS:
            _newest.clear()
        _newest[view] = self.number

    @property
    def is_newest(self) -> bool:
        """Whether the view has not asked anything since."""
        return _newest.get(self.view, self.number) == self.number

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the simulator; raises `Stale` where the question is no longer of interest."""
        with _lock:
            if not self.is_newest:
                raise Stale
            with told_if_too_large():
                yield


@contextmanager
def turn(view: str) -> Iterator[bool]:
    """A question of one turn; yields whether it is still the newest of its view."""
    question = Question(view)
    with _lock:
        yield question.is_newest
