"""Compiled functions that are called often with the same things.

Numba looks at the types of all arguments at every call. For a bundle of arrays and functions that takes longer than a
short call itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnomon.core.jit import ENABLED, function_arguments


def for_types_of(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """A `jit` function as it is compiled for arguments of these types; whoever calls it passes no others."""
    if not ENABLED:
        return function
    import numba

    with function_arguments():
        found: Callable[..., Any] = function.compile(tuple(numba.typeof(one) for one in arguments))  # type: ignore[attr-defined]
    return found
