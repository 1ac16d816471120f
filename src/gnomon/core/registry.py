"""Named things that users can add to: policies, routers, schedules, sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from gnomon.core.errors import GnomonError, UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """A mapping from names to things of one kind, which refuses duplicates and lists what it knows.

    >>> colours: Registry[str] = Registry("colour")
    >>> colours.add("red", "#f00")
    '#f00'
    >>> colours["red"]
    '#f00'
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}

    def add(self, name: str, thing: T) -> T:
        """Register `thing` under `name`; a name can be taken only once."""
        if name in self._things:
            raise GnomonError(f"{self.kind} {name!r} is registered already.", fix="Choose another name.")
        self._things[name] = thing
        return thing

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator form of `add`."""
        return lambda thing: self.add(name, thing)

    def remove(self, name: str) -> None:
        """Forget `name` (for tests and notebooks that define a thing again)."""
        self._things.pop(name, None)

    def __getitem__(self, name: str) -> T:
        if name not in self._things:
            raise UnknownNameError(self.kind, name, self._things)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._things))

    def __len__(self) -> int:
        return len(self._things)
