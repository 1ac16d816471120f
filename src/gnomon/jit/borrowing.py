"""Arrays lent to compiled code without reference counts.

Numba counts references of every array in a named tuple at every call, which costs more than the work itself when a
state of thirty arrays goes through small functions. `borrow(bundle)` turns the arrays of a (nested) named tuple into
bare pointers with a shape: they are read and written with `a[i]`, `a[i, j]`, give rows with fewer indices, and have
`.size` and `.shape`, but are not counted, not sliced, not checked. Whoever calls keeps the arrays alive. The tuple
itself goes by its address: its fields are read by name, and it lives as long as the function that borrowed it.
In plain Python `borrow` returns its argument. Users' own functions get their arrays `checked`: the same pointers, but
every index is compared with the shape.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gnomon.jit import ENABLED, borrow, first_rows, is_checked

__all__ = ["borrow", "borrowed_type", "first_rows", "is_checked"]


def borrowed_type(bundle: Any) -> Any:
    """The Numba type of `borrow(bundle)` for an example bundle, to write a signature with."""
    import numba

    from gnomon.jit.borrowed_array import borrowed

    return borrowed(numba.typeof(bundle))


if ENABLED:
    # Compiled code from the disk cache may meet a borrowed array before anything asks for its type.
    import_module("gnomon.jit.borrowed_array")
