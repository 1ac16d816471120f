"""Compilation of hot loops with Numba, or none of it.

`@jit` compiles a helper, `@compiled(signature)` a function of a fixed signature that can be passed around as a
value (a batching policy, a router) without recompiling its caller. Both cache on disk, in a folder named by a
hash of the sources it is made from, because Numba does not notice a change in a helper of another file.
With `GNOMON_JIT=0` both return the plain Python function, for a debugger; results are identical.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

ENABLED = os.environ.get("GNOMON_JIT", "1") != "0"


def cache_home() -> Path:
    """Where Gnomon keeps what it can make again: compiled code, trained estimators."""
    home = os.environ.get("GNOMON_CACHE")
    if home:
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gnomon"


# What marks a source file as part of compiled code: only a change in those makes it stale.
_COMPILED_MARKS = (b"gnomon.core.jit", b"gnomon.core.borrow", b"batching_policy(", b"@router(")


@cache
def _sources_hash() -> str:
    """A hash of every source file that compiled code is made from: changes when any helper changes."""
    digest = hashlib.sha256()
    package = Path(__file__).parent.parent
    for path in sorted(package.rglob("*.py")):
        text = path.read_bytes()
        if any(mark in text for mark in _COMPILED_MARKS):
            digest.update(str(path.relative_to(package)).encode())
            digest.update(text)
    return digest.hexdigest()[:16]


@cache
def compiled_code_folder() -> Path:
    """The folder of compiled code for exactly this version of the sources."""
    return cache_home() / f"compiled-{_sources_hash()}"


@cache
def _numba() -> Any:
    import numba

    folder = compiled_code_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        numba.config.CACHE_DIR = str(folder)
    except OSError:  # A read-only home: compile in memory only.
        numba.config.CACHE_DIR = ""
    return numba


@contextmanager
def function_arguments() -> Iterator[None]:
    """Allow compiled functions to be passed to compiled functions, which Numba warns is experimental."""
    if not ENABLED:
        yield
        return
    from numba.core.errors import NumbaExperimentalFeatureWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaExperimentalFeatureWarning)
        yield


def is_compiled_already() -> bool:
    """Whether an earlier run left compiled code, so that this one starts at once."""
    return not ENABLED or any(compiled_code_folder().rglob("*.nbi"))


def jit(function: F) -> F:
    """Compile `function` on first call (types inferred), or return it unchanged under GNOMON_JIT=0."""
    if not ENABLED:
        return function
    return _numba().njit(cache=True, error_model="numpy")(function)


def inner(function: F) -> F:
    """Like `jit`, for a function that only compiled code calls: inlined, and without the slow way in from Python."""
    if not ENABLED:
        return function
    options = {
        "cache": True,
        "error_model": "numpy",
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
        "forceinline": True,
    }
    return _numba().njit(**options)(function)


def inline(function: F) -> F:
    """Compile `function` so that its body is pasted into its callers."""
    if not ENABLED:
        return function
    return _numba().njit(cache=True, error_model="numpy", inline="always")(function)


def bound(function: F, *examples: Any) -> F:
    """A `@jit` function compiled for the types of these arguments, which then looks at types no more.

    For a function that is called often with many arrays, where telling their types costs more than the work. Later
    arguments must be of the very same types.
    """
    if not ENABLED:
        return function
    with function_arguments():
        return function.compile(tuple(_numba().typeof(example) for example in examples))  # type: ignore[attr-defined]


def compiled(signature: Any) -> Callable[[F], F]:
    """Compile `function` for one signature, as a value that compiled code can call through a pointer."""

    def decorate(function: F) -> F:
        if not ENABLED:
            return function
        return _numba().cfunc(signature, cache=True, error_model="numpy")(function)

    return decorate
