"""Functions that compiled code reads in another way than plain Python does (`gnomon.jit.borrowed_array`)."""

from typing import Any, TypeVar

T = TypeVar("T")


def borrow(bundle: T) -> T:
    """A named tuple with its arrays borrowed; to be called in compiled code."""
    return bundle


def is_checked(bundle: Any) -> bool:
    """Whether whoever got this bundle may make mistakes: a user's own function, or anybody in plain Python. Compiled
    code knows it beforehand, so that a check for others costs Gnomon's own functions nothing."""
    return True


def first_rows(view: T, count: int) -> T:
    """The first `count` rows of a (borrowed) array."""
    return view[:count]  # type: ignore[index]
