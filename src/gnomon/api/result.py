"""What every question gives, whatever it was about."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from gnomon.core.config import Config, load, spelled_out
from gnomon.core.errors import GnomonError, UnknownNameError
from gnomon.core.files import write_text
from gnomon.report.blocks import Block, View, plots_in

if TYPE_CHECKING:
    import polars as pl

Value = TypeVar("Value")
Rows = Sequence[Mapping[str, Any]]
Drawing = dict[str, Any]  # A plotly figure as a plain dictionary.
Progress = Callable[[int, int], None]
"""`on_progress(done, total)`: called now and then while a question is being answered."""


class Lazy(Mapping[str, Value]):
    """Values by name, each made when it is first asked for."""

    def __init__(self, kind: str, makers: Mapping[str, Callable[[], Value]]) -> None:
        self._kind, self._makers = kind, dict(makers)
        self._made: dict[str, Value] = {}

    def __getitem__(self, name: str) -> Value:
        if name not in self._makers:
            raise UnknownNameError(self._kind, name, self._makers)
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __repr__(self) -> str:
        return f"<{self._kind}s: {', '.join(self._makers) or 'none'}>"


class Result:
    """An answer: its figures at once; text, tables and pictures when they are asked for."""

    view: ClassVar[str] = ""
    """The function that says how it is shown, as `module` of `gnomon.report` (which holds `view`) or `module:name`."""

    file: ClassVar[str] = ""
    """The JSON that `save` writes, if it is not named like the page."""

    @property
    def shown(self) -> View:
        """How it is shown."""
        module, _, name = self.view.partition(":")
        return getattr(import_module(f"gnomon.report.{module}"), name or "view")(self)

    @property
    def summary(self) -> Any:
        """The figures, as plain data."""
        return self.shown.data()

    def to_dict(self) -> dict[str, Any]:
        """Nested plain data: what `--json` prints."""
        return self.shown.data()

    @property
    def title(self) -> str:
        """Of the page."""
        return self.shown.title

    def text(self) -> list[Block]:
        """Lines, tables and pictures: what the command line prints, and what a page shows."""
        return self.shown.text()

    def save(self, folder: str | Path) -> Path:
        """Write everything into `folder`, made if missing; returns it."""
        text = json.dumps(self.to_dict(), indent=1, default=str)
        return write_text(Path(folder) / f"{self.file or self.title}.json", text).parent

    def write_page(
        self, path: str | Path, blocks: list[Block] | None = None, links: Mapping[str, str] | None = None
    ) -> Path:
        """Write the answer (or these `blocks`) as a page that needs no network and no other file."""
        from gnomon.report.page import write_page

        shown = self.text() if blocks is None else blocks
        return write_page(path, self.title, shown, scenario=self.shown.scenario(), links=links)

    def explain(self) -> Result:
        """Why it is as it is; for results that have an explanation."""
        fix = "Explain one of gnomon.simulate, gnomon.pipeline or gnomon.posttrain."
        raise GnomonError(f"a {type(self).__name__} has no explanation.", fix=fix)

    @cached_property
    def frames(self) -> Mapping[str, pl.DataFrame]:
        """Polars data frames by name."""
        return Lazy("frame", {name: partial(_frame, make) for name, make in self.shown.tables.items()})

    @cached_property
    def drawings(self) -> Mapping[str, Drawing]:
        """The figures as plain dictionaries, for pages."""
        own = self.shown.drawings
        return Lazy("figure", own() if own else {one.name: one.draw for one in plots_in(self.text())})

    @cached_property
    def figures(self) -> Mapping[str, Any]:
        """Plotly figures by name."""
        return Lazy("figure", {name: partial(_figure, self.drawings, name) for name in self.drawings})

    def _repr_html_(self) -> str:
        from gnomon.report.page import notebook_html

        return notebook_html(self.text())


@dataclass(frozen=True, eq=False)
class TableResult(Result):
    """An answer that is little more than a table."""

    name: str
    """Of the file that `save` writes."""
    records: Any = field(repr=False)
    """What the rows were made from."""
    rows: Sequence[Mapping[str, Any]] = field(repr=False)
    data: dict[str, Any] = field(repr=False)
    blocks: list[Block] = field(repr=False)

    @property
    def shown(self) -> View:
        """The table."""
        return View(self.name, lambda: self.blocks, lambda: self.data, {"rows": lambda: self.rows})


def _frame(make: Callable[[], Rows | pl.DataFrame]) -> pl.DataFrame:
    import polars as pl

    found = make()
    return found if isinstance(found, pl.DataFrame) else pl.DataFrame(found, infer_schema_length=None, strict=False)


def _figure(drawings: Mapping[str, Drawing], name: str) -> Any:
    from plotly.graph_objects import Figure

    return Figure(drawings[name])


C = TypeVar("C", bound=Config)


def read(model: type[C], given: C | Mapping[str, Any] | str | Path | None, overrides: Mapping[str, Any]) -> C:
    """A configuration from a file, a mapping, itself or nothing, with overrides on top.

    An override is named by the field's dotted path (`**{"replica.tensor_parallel": 2}`), with `__` for the dot where
    a keyword needs it (`replica__tensor_parallel=2`), by its short name on the command line (`tp=2`), or is a whole
    section (`workload={"rate": 3}`).
    """
    dotted = spelled_out(model, {key.replace("__", "."): value for key, value in overrides.items()})
    if isinstance(given, model) and not dotted:
        return given
    if isinstance(given, Config):
        given = given.model_dump(mode="json", exclude_unset=True)
    if given is None or isinstance(given, str | Path):
        return load(model, given, dotted)
    data = model.reopened(deepcopy(spelled_out(model, given)), dotted)
    return load(model, None, {**data, **dotted})  # Overrides go into its sections.
