"""What is known of this process and of those that it starts; a copy of it that works while it goes on."""

import ctypes
import gc
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from select import select
from typing import TypeVar

Value = TypeVar("Value")


def default_jobs() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_MALLOC = {-1: 2**28, -2: 2**24, -3: 2**25, -8: 1}
"""Of glibc's `mallopt`: what is trimmed, added at the top, and mapped by itself, in bytes; the number of arenas."""


def keep_freed_memory() -> None:
    """Ask the C library to keep what is freed for what is wanted next: new pages have to be cleared each time."""
    with suppress(OSError, AttributeError):
        for name, value in _MALLOC.items():
            ctypes.CDLL(None).mallopt(name, value)


def spin_no_threads() -> None:
    """Let NumPy, which must not be imported yet, and that of processes to come do without threads: after every product
    of matrices, all of which are small here, they would wait for the next one by spinning on all cores."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Be killed when the process that started this one ends; Linux alone knows how. Ctrl-C is that one's to decide."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def beside(function: Callable[[], Value]) -> Callable[[], Value]:
    """Start `function` in a copy of this process. Whoever calls what this returns, once, waits for its value.

    Where there can be no copy, where it ends without a value, and where `function` raises an error there, it is called
    here instead: that gives the same value or error, later. Polars must not be in use yet: its threads, and what they
    hold just then, are not in the copy.
    """
    if sys.platform == "linux" and default_jobs() > 1 and "polars" not in sys.modules:
        with suppress(OSError):
            return _started(function)
    return function


def _started(function: Callable[[], Value]) -> Callable[[], Value]:
    parent, (reader, writer) = os.getpid(), os.pipe()
    gc.freeze()  # What is there counts as old. A look for circles in it would write to all of it, which copies it.
    gc.unfreeze()
    child = os.fork()
    if child:
        os.close(writer)
        return partial(_value, function, child, reader)
    try:
        die_with_parent()
        if os.getppid() == parent:
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(pickle.dumps(function()))
            os._exit(0)
    finally:  # The error, if any, is raised again where it can be shown.
        os._exit(1)


def _value(function: Callable[[], Value], child: int, reader: int) -> Value:
    try:
        with os.fdopen(reader, "rb") as pipe:
            while not select([pipe], (), (), 0.5)[0]:  # A Ctrl-C just before a read that waits would not end it.
                pass
            data = pipe.read()
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        status = os.waitpid(child, 0)[1]
    return pickle.loads(data) if data and not status else function()
