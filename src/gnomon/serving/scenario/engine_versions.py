"""Versions of engines: their order, and which are known."""

import re
from collections.abc import Sequence

from gnomon.core.errors import UnknownNameError

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.?rc(\d+))?(?:\.post(\d+))?")
_NO_CANDIDATE = 1 << 30  # A release comes after all its candidates.

Order = tuple[int, ...]
NEWEST: Order = (_NO_CANDIDATE,)


def order_of(version: str) -> Order:
    """By which versions are compared; none is the newest."""
    if not version:
        return NEWEST
    found = _VERSION.fullmatch(version)
    if found is None:
        raise UnknownNameError("version", version, ["0.19.0", "1.2.0rc6.post3"], where="engine.version")
    major, minor, micro, candidate, post = found.groups()
    return int(major), int(minor), int(micro or 0), int(candidate or _NO_CANDIDATE), int(post or 0)


def is_known(version: str, series: Sequence[str]) -> bool:
    """Whether a version is one of these series (its first two numbers)."""
    found = _VERSION.fullmatch(version)
    return not version or (found is not None and f"{found[1]}.{found[2]}" in series)
