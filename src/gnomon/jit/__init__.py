"""Compilation of hot loops with Numba, or none of it.

`@jit` compiles a helper, `@compiled(signature)` a function of a fixed signature that can be passed around as a
value (a batching policy, a router) without recompiling its caller. Both cache on disk, in a folder named by a
hash of the sources it is made from, because Numba does not notice a change in a helper of another file.
With `GNOMON_JIT=0` both return the plain Python function, for a debugger; results are identical.
"""

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property, update_wrapper
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from gnomon.core.cache_folder import compiled_code_folder
from gnomon.jit.markers import borrow as borrow
from gnomon.jit.markers import first_rows as first_rows
from gnomon.jit.markers import is_checked as is_checked

F = TypeVar("F", bound=Callable[..., Any])

ENABLED = os.environ.get("GNOMON_JIT", "1") != "0"


@cache
def _numba() -> Any:
    import numba

    import_module("gnomon.jit.borrowed_array")  # Code from the disk may meet its types before anything else does.
    return numba


def _cached(dispatcher: F, function: Callable[..., Any]) -> F:
    """The compiled function, which looks for its code on disk before it compiles."""
    from gnomon.jit.compiled_code import kept
    from gnomon.jit.linked_code import KeptDispatcher

    dispatcher.__class__ = KeptDispatcher
    dispatcher._cache = kept(function)  # type: ignore[attr-defined]
    return dispatcher


@contextmanager
def function_arguments() -> Iterator[None]:
    """Allow compiled functions to be passed to compiled functions, which Numba warns is experimental.

    Filters of warnings belong to the whole process: one that was taken back at the end would be taken from under other
    threads.
    """
    if not ENABLED:
        yield
        return
    from numba.core.errors import NumbaExperimentalFeatureWarning
    from numba.experimental import function_type  # noqa: F401  # Knows their type, also where nothing is compiled.

    warnings.simplefilter("ignore", NumbaExperimentalFeatureWarning)
    yield


_LISTENING = threading.local()  # `found`: where the errors of this thread go.
_HOOK_LOCK = threading.Lock()
_hooks: list[Any] = []  # The hook that was there before, once for each listener.


@contextmanager
def unraised_errors() -> Iterator[list[BaseException]]:
    """Collect the errors that compiled functions, called through pointers in this thread, could not raise."""
    found: list[BaseException] = []
    outer, _LISTENING.found = getattr(_LISTENING, "found", None), found
    with _HOOK_LOCK:
        _hooks.append(_hooks[0] if _hooks else sys.unraisablehook)
        sys.unraisablehook = _note_unraised
    try:
        yield found
    finally:
        _LISTENING.found = outer
        with _HOOK_LOCK:
            before = _hooks.pop()
            if not _hooks:
                sys.unraisablehook = before


def _note_unraised(unraisable: Any) -> None:
    found = getattr(_LISTENING, "found", None)
    if found is None or unraisable.exc_value is None or not isinstance(unraisable.object, str):
        _hooks[0](unraisable)
    else:
        found.append(unraisable.exc_value.with_traceback(unraisable.exc_traceback))


def is_compiled_already() -> bool:
    """Whether an earlier run left compiled code, so that this one starts at once."""
    folder = compiled_code_folder()
    return not ENABLED or (folder is not None and any(folder.rglob("*.nbi")))


def jit(function: F) -> F:
    """Compile `function` on first call (types inferred), or return it unchanged under GNOMON_JIT=0."""
    if not ENABLED:
        return function
    from gnomon.jit.linked_code import WholeCompiler

    return _cached(_numba().njit(error_model="numpy", nogil=True, pipeline_class=WholeCompiler)(function), function)


class Part:
    """A function that only compiled code calls, kept on disk with its callers. Called from Python it runs as it is
    written. Numba hears of it when a caller is compiled: never, where all code comes from the disk."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        update_wrapper(self, function)
        self.py_func, self._options = function, options

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run it as plain Python."""
        return self.py_func(*arguments, **named)

    @property
    def _numba_type_(self) -> Any:
        """Its type in compiled code: Numba asks every value for this."""
        return self.dispatcher._numba_type_

    @cached_property
    def dispatcher(self) -> Any:
        """What Numba knows of it."""
        from gnomon.jit.linked_code import part

        return part(self.py_func, **self._options)


def inlined(function: F) -> F:
    """Like `jit`, for a function that compiled code calls: a part of its callers, inlined and kept on disk with them.
    Python runs it as it is written."""
    return _part(function, is_inlined=True)


def noinline(function: F) -> F:
    """Like `inlined`, for one that is long and not called at every iteration: it stands once in the code, and is
    called."""
    return _part(function)


def feature(function: F) -> F:
    """Like `noinline`, for one that only some runs need: nothing is compiled of it, and a call does nothing, where it
    is given a bundle whose class says `has_no_features`."""
    return _part(function, is_feature=True)


def own_jit(function: F) -> F:
    """Like `inlined`, for a user's own: where it divides by zero it raises an error, and does not go on with inf."""
    return _part(function, is_inlined=True, error_model="python")


def _part(function: F, **options: Any) -> F:
    return Part(function, **options) if ENABLED else function  # type: ignore[return-value]


def macro(function: F) -> F:
    """Compile `function` so that its body is pasted into its callers."""
    if not ENABLED:
        return function
    pasted: F = _numba().njit(error_model="numpy", inline="always")(function)
    return pasted


def bound(function: F, *examples: Any) -> F:
    """A `@jit` function compiled for the types of these arguments, which then looks at types no more.

    For a function that is called often with many arrays, where telling their types costs more than the work. Later
    arguments must be of the very same types.
    """
    if not ENABLED:
        return function
    key = (function, _kind_of(examples))
    if key not in _BOUND:
        with function_arguments():
            _BOUND[key] = function.compile(tuple(map(_numba().typeof, examples)))  # type: ignore[attr-defined]
    return _BOUND[key]


_BOUND: dict[Any, Any] = {}
"""By function and kinds of its arguments: Numba takes milliseconds to tell the types of a hundred arrays."""


def _kind_of(value: Any) -> Any:
    """What values of one Numba type have in common. Functions are of their own kind."""
    if isinstance(value, np.ndarray):
        flags = value.flags
        return type(value), value.dtype, value.ndim, flags.c_contiguous, flags.f_contiguous, flags.writeable
    if isinstance(value, tuple):
        return type(value), tuple(map(_kind_of, value))
    return type(value) if isinstance(value, int | float | np.generic) else value


def compiled(signature: Any) -> Callable[[F], F]:
    """Compile `function` for one signature, as a value that compiled code can call through a pointer."""

    def decorate(function: F) -> F:
        if not ENABLED:
            return function
        from numba.core import sigutils

        from gnomon.jit.compiled_code import kept
        from gnomon.jit.linked_code import Pointer, PointerCompiler

        # As `numba.cfunc` does, which would bring a cache of its own.
        types, options = sigutils.normalize_signature(signature), {"error_model": "numpy"}
        callback: Any = Pointer(function, types, {}, options, pipeline_class=PointerCompiler)
        callback._cache = kept(function)
        callback.compile()
        return callback

    return decorate


# Arrays lent to compiled code without reference counts.
#
# Numba counts references of every array in a named tuple at every call, which costs more than the work itself when a
# state of thirty arrays goes through small functions. `borrow(bundle)` turns the arrays of a (nested) named tuple into
# bare pointers with a shape: they are read and written with `a[i]`, `a[i, j]`, give rows with fewer indices, and have
# `.size` and `.shape`, but are not counted, not sliced, not checked. Whoever calls keeps the arrays alive. The tuple
# itself goes by its address: its fields are read by name, and it lives as long as the function that borrowed it.
# In plain Python these return their argument. Users' own functions get their arrays `checked`: the same pointers, but
# every index is compared with the shape.


def borrowed_type(bundle: Any) -> Any:
    """The Numba type of `borrow(bundle)` for an example bundle, to write a signature with."""
    from gnomon.jit.borrowed_array import borrowed

    return borrowed(_numba().typeof(bundle))
