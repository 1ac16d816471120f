"""A folder of YAML files, one thing each, found by name or alias."""

from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

from gnomon.core.config import Config, load
from gnomon.core.errors import GnomonError, UnknownNameError
from gnomon.core.files import is_file
from gnomon.core.text import own_yaml

DATA = Path(__file__).parent / "data"

C = TypeVar("C", bound=Config)


def folded(name: str) -> str:
    """A name without what people write differently: case, blanks, dashes, underscores."""
    return "".join(c for c in name.casefold() if c not in " -_")


class Library(Generic[C]):
    """The files of one folder. A file's stem is its name; `aliases` inside it are other names for it.

    Users may give the path of a file of their own instead of a name.
    """

    def __init__(self, kind: str, folder: Path, entry: type[C]) -> None:
        self.kind, self.folder, self.entry = kind, folder, entry
        self._read: dict[str, C] = {}

    @property
    def names(self) -> list[str]:
        """Every name, sorted."""
        return sorted(path.stem for path in self.folder.glob("*.yaml"))

    def __getitem__(self, name: str) -> C:
        """The thing called `name`; a name that ends in .yaml is the path of a file of one's own."""
        if name.endswith((".yaml", ".yml")):
            return load(self.entry, name)
        stem = self.resolve(name)
        if stem is None:
            raise UnknownNameError(self.kind, name, self.names)
        if stem not in self._read:
            self._read[stem] = load(self.entry, self.folder / f"{stem}.yaml")
        return self._read[stem]

    def resolve(self, name: str) -> str | None:
        """The file that `name` or an alias of it stands for, or None."""
        if is_file(self.folder / f"{name}.yaml"):
            return name
        return self._by_folded.get(folded(name))

    @cached_property
    def _by_folded(self) -> dict[str, str]:
        table: dict[str, str] = {}
        for stem in self.names:
            entry = own_yaml(self.folder / f"{stem}.yaml")
            for alias in (stem, *entry.get("aliases", ()), *entry.get("checkpoints", ())):
                if table.setdefault(folded(alias), stem) != stem:
                    raise GnomonError(f"{self.kind} name {alias!r} stands for both {table[folded(alias)]} and {stem}.")
                table.setdefault(folded(alias.rpartition("/")[2]), stem)
        return table
