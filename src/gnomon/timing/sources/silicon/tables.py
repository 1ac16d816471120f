"""Which table of the package answers: by system, family, engine and version, with named fall-backs.

The package aiconfigurator-core (extra [silicon]) keeps its tables as
`<system>/<family>/<engine>/<version>/<table>.parquet`. A table is looked for in the engine that was asked for, in the
version that was asked for or else the newest; then in the other engines. The provenance says which it was. (Not the
nearest version: the older tables were measured with untuned kernels and lie further from servers of their own time
than the newest do, see docs/silicon.md.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from gnomon.core.errors import DataError, MissingExtraError
from gnomon.core.text import own_yaml
from gnomon.timing.config import Engine

if TYPE_CHECKING:
    import polars as pl

NAMES: dict[str, Any] = own_yaml(files("gnomon.timing.sources.silicon") / "names.yaml")
"""What the package calls things."""
SYSTEMS: dict[str, str] = NAMES["systems"]

ENGINES: tuple[Engine, ...] = get_args(Engine)


@cache
def data_folder() -> Path:
    """Where the package keeps its tables."""
    spec = find_spec("aiconfigurator_core")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("The timing source silicon", "silicon")
    return Path(spec.submodule_search_locations[0]) / "systems" / "data"


@dataclass(frozen=True)
class Table:
    """One file of measured kernels."""

    path: Path
    asked_engine: str
    asked_version: str

    @property
    def engine(self) -> str:
        return self.path.parent.parent.name

    @property
    def version(self) -> str:
        return self.path.parent.name

    @property
    def name(self) -> str:
        """As provenance calls it: "vllm 0.24.0", "sglang 0.5.14, other engine"."""
        name = f"{self.engine} {self.version}"
        if self.engine == "nccl" or self.asked_version in ("", self.version):
            return name if self.engine in (self.asked_engine, "nccl") else f"{name}, other engine"
        return f"{name}, not {self.asked_version}" if self.engine == self.asked_engine else f"{name}, other engine"

    @property
    def system(self) -> Path:
        """The folder of the GPU it was measured on."""
        return self.path.parents[3]

    def rows(self, *columns: str) -> pl.DataFrame:
        """All rows; refuses a table without one of the columns."""
        frame = _frame(self.path)
        missing = [column for column in columns if column not in frame.columns]
        if missing:
            fix = "Install a newer aiconfigurator-core."
            raise DataError(f"has no column {missing[0]!r}.", where=str(self.path), fix=fix)
        return frame


@lru_cache(maxsize=128)
def _frame(path: Path) -> pl.DataFrame:
    import polars as pl

    frame = pl.read_parquet(path)
    if "latency" not in frame.columns:
        return frame
    return frame.filter(pl.col("latency") > 0, pl.col("latency").is_finite())


def find_tables(system: str, family: str, table: str, engine: str, version: str = "") -> list[Table]:
    """Every file of a table, the best first: the engine's asked version, its newest, then the other engines'."""
    return tables_in(data_folder() / system, family, table, engine, version)


def tables_in(system: Path, family: str, table: str, engine: str, version: str = "") -> list[Table]:
    """Every file of a table in a system's folder, the best first."""
    folder = system / family
    engines = (engine,) if engine == "nccl" else (engine, *(other for other in ENGINES if other != engine))
    return [Table(path, engine, version) for one in engines for path in _by_version(folder / one, table, version)]


@cache
def _by_version(folder: Path, table: str, asked: str) -> tuple[Path, ...]:
    found = sorted(folder.glob(f"*/{table}.parquet"), key=lambda path: version_key(path.parent.name), reverse=True)
    release = asked.partition(".post")[0]  # What mends a release has its kernels.
    return tuple(sorted(found, key=lambda path: path.parent.name not in (asked, release)))


def version_key(name: str) -> tuple[float, ...]:
    """1.3.0rc20 -> (1, 3, 0, -1, 20), which is before 1.3.0 -> (1, 3, 0, 0)."""
    parts = re.findall(r"\d+|rc", name)
    return (*(-1.0 if part == "rc" else float(part) for part in parts), 0.0)
