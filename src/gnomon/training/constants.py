"""Constants of training steps, measured or fitted to published ones: `data/constants.yaml` says what each is."""

from functools import cache
from pathlib import Path
from typing import Any

from gnomon.core.text import own_yaml

FILE = Path(__file__).parent / "data" / "constants.yaml"


class Section(dict[str, Any]):
    """A part of the file: what stands in it is also an attribute."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def of(self, table: str, device: str) -> Any:
        """What a table by device has for it; `any` stands for those that are not named."""
        return self[table].get(device, self[table]["any"])

    def release(self, name: str) -> Any:
        """What holds for a release: the last entry not after it; the newest where none is given."""
        known = sorted(self.releases)
        return self.releases[max((one for one in known if one <= name), default=known[0]) if name else known[-1]]


@cache
def constants() -> Section:
    return _sections(own_yaml(FILE))


def _sections(given: Any) -> Any:
    return Section({name: _sections(value) for name, value in given.items()}) if isinstance(given, dict) else given
