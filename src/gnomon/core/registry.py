"""Named things that users can add to: policies, routers, schedules, timing sources.

Every registry has the same shape. A spec, a frozen dataclass, holds all that the rest of Gnomon must know of a thing;
a decorator beside the thing fills it in; nothing elsewhere compares names.

    GREETINGS: Registry[GreetingSpec] = Registry("greeting", GreetingSpec, built_in={"hello": "gnomon.greetings.hello"})

    @GREETINGS.register("hey", is_polite=False)
    def hey(who): ...
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from types import FunctionType
from typing import Any, Generic, TypeVar

from gnomon.core.errors import GnomonError, UnknownNameError
from gnomon.core.user_files import OWN, load_user_file, plain

S = TypeVar("S")
T = TypeVar("T")


class Registry(Generic[S]):
    """Specs by name. A name can be taken only once; the module of a built-in one is imported when it is asked for.

    `spec` makes a spec from the name, the thing and its traits; without it things are their own specs. `built_in` says
    which module registers each name, in the order of the listing. `where` is the key at which a wrong name stands; with
    a spec, things are `of` some type.
    """

    def __init__(
        self, kind: str, spec: Any = None, *, built_in: Mapping[str, str] | None = None, where: str | None = None,
        of: type = FunctionType,
    ) -> None:  # fmt: skip
        self.kind, self.where, self.of = kind, where, of
        self._spec, self._built_in = spec, dict(built_in or {})
        self._specs: dict[str, S] = {}

    def add(self, name: str, spec: S) -> None:
        """Register a spec under `name`."""
        self._load(name)
        if name in self._specs:
            raise GnomonError(f"{self.kind} {name!r} is registered already.", fix="Choose another name.")
        self._specs[name] = spec
        if name not in self._built_in:
            OWN.append(name)

    def register(self, name: str, **traits: Any) -> Callable[[T], T]:
        """Decorator: make what follows known as `name`, with these fields of the spec."""
        known = [one.name for one in fields(self._spec)[2:]] if self._spec else []
        for trait in traits:
            if trait not in known:
                raise UnknownNameError(f"trait of a {self.kind}", trait, known, where=name)
        options = traits.get("options", {})
        if not isinstance(options, Mapping) or not all(isinstance(one, int | float) for one in options.values()):
            raise GnomonError(f"options={options!r} are no numbers by name.", where=name, fix='Give {"target": 0.7}.')

        def add(thing: T) -> T:
            if not isinstance(name, str) or (self._spec and not isinstance(plain(thing), self.of)):
                fix = f"Put the decorator, with a name, above a {'class' if self.of is type else 'function'}."
                raise GnomonError(f"{thing!r} cannot be the {self.kind} {name!r}.", fix=fix)
            spec: Any = self._spec(name, thing, **traits) if self._spec else thing
            self.add(name, spec)
            return thing

        return add

    def remove(self, name: str) -> None:
        """Forget `name` (for tests and notebooks that define a thing again)."""
        self._specs.pop(name, None)

    def _load(self, name: str) -> None:
        """Import the module of a built-in name; has no effect while that module itself registers it."""
        if name in self._built_in and name not in self._specs:
            import_module(self._built_in[name])

    @property
    def own(self) -> list[str]:
        """The names that are not built in."""
        return sorted(self._specs.keys() - self._built_in)

    def names(self) -> list[str]:
        """All names, the built-in ones first; nothing is imported."""
        return [*self._built_in, *self.own]

    def __getitem__(self, name: str) -> S:
        self._load(name)
        if name not in self._specs:
            raise UnknownNameError(self.kind, name, self, where=self.where)
        return self._specs[name]

    def get(self, name: str) -> S | None:
        """The spec of that name, or None."""
        self._load(name)
        return self._specs.get(name)

    def chosen(self, config: Any) -> S:
        """The spec of what a section of a configuration names, after its `file` was loaded; options that it does not
        have are refused."""
        if config.file is not None:
            load_user_file(config.file)
        spec: Any = self[config.name]
        unknown = set(config.options) - set(spec.options)
        if unknown:
            where = f"{(self.where or self.kind).removesuffix('.name')}.options"
            raise UnknownNameError(f"option of {self.kind} {spec.name}", min(unknown), spec.options, where=where)
        return spec

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._specs

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())
