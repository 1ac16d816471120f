"""One simulation at a time, the newest first: a slider that is dragged asks faster than anyone can answer."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_counter = itertools.count()
_newest: dict[str, int] = {}
MAX_VIEWS = 1000


@contextmanager
def turn(view: str) -> Iterator[bool]:
    """Wait for the simulator; yields whether this is still the newest question of that view."""
    number = next(_counter)
    if len(_newest) > MAX_VIEWS:
        _newest.clear()
    _newest[view] = number
    with _lock:
        yield _newest.get(view, number) == number
