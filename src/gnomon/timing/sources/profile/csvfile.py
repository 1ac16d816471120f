"""CSV files into checked arrays: what is missing or impossible is named with its file, column and line.

Read by Python itself: for the few thousand rows of a profile, Polars takes longer to import.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gnomon.catalog.devices import DEVICES, Device
from gnomon.catalog.model_library import MODELS
from gnomon.catalog.model_library import model as model_called
from gnomon.catalog.models import Model
from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError, nearest
from gnomon.core.text import check_width

Names = tuple[str, str]  # Device and model, as a path spells them.


def folders_of(
    root: Path, folders: Iterable[Path], names: Callable[[Path], Names], model: Model, device: Device
) -> list[Path]:
    """The folders of one model on one device; those of a model of the same shape where its own name is not there."""
    found = list(folders)
    on_device = [path for path in found if DEVICES.resolve(names(path)[0]) == device.name]
    for is_match in (_has_name, _has_shape):
        matching = [path for path in on_device if is_match(names(path)[1], model)]
        if matching:
            return matching
    known = sorted({"/".join(names(path)) for path in (on_device or found)})
    fix = f"It has: {', '.join(known)}."
    raise DataError(f"has no profile of {model.name} on {device.name}.", where=str(root), fix=fix)


def _has_name(name: str, model: Model) -> bool:
    return name == model.hf_id or MODELS.resolve(name) == (MODELS.resolve(model.name) or model.name)


def _has_shape(name: str, model: Model) -> bool:
    """Whether `name` is a known model whose kernels are the same, e.g. another fine-tuning."""
    return MODELS.resolve(name) is not None and _shape(model_called(name)) == _shape(model)


def _shape(model: Model) -> tuple[object, ...]:
    return (
        *(model.hidden_size, model.num_heads, model.num_kv_heads, model.head_dim, model.ffn_size, model.is_gated),
        *(model.vocab_size, model.qk_norm, model.mla),
        *(model.num_experts, model.experts_per_token, model.expert_ffn_size, model.shared_ffn_size),
    )


SHORTEST_S, LONGEST_S = 1e-8, 100.0
"""No kernel takes less or more; times outside are in another unit than the layout's."""


Cells = NDArray[np.object_]  # Of texts.


@dataclass(frozen=True)
class Columns:
    """The columns of one file, as they are written there: a stray word is to name its row rather than fail the file."""

    path: Path
    cells: dict[str, Cells]

    def __len__(self) -> int:
        return len(next(iter(self.cells.values())))

    def sizes(self, *names: str) -> Floats:
        """Whole numbers of zero or more, [rows, names]."""
        return np.column_stack([self._numbers(name) for name in names])

    def seconds(self, name: str, *, unit_s: float = 1.0) -> Floats:
        seconds = self._numbers(name) * unit_s
        self._refuse(name, seconds <= 0, "is not positive", "A measured time is above zero.")
        fix = f"This layout's unit is {_UNITS[unit_s]}; convert the column."
        self._refuse(name, seconds < SHORTEST_S, "is shorter than any kernel", fix)
        self._refuse(name, seconds > LONGEST_S, "is longer than any kernel", fix)
        return seconds

    def spread(self, name: str = "spread") -> Floats:
        """Relative spreads, zero where the column is left out."""
        return self._numbers(name) if name in self.cells else np.zeros(len(self))

    def texts(self, name: str) -> NDArray[np.str_]:
        self.require(name)
        return self.cells[name].astype(np.str_)

    def has(self, name: str) -> bool:
        """Whether the column is there and not wholly empty."""
        return name in self.cells and bool((self.cells[name] != "").any())

    def where(self, mask: NDArray[np.bool_]) -> Columns:
        return Columns(self.path, {name: cells[mask] for name, cells in self.cells.items()})

    def require(self, *names: str) -> None:
        for name in names:
            if name not in self.cells:
                near = nearest(name, self.cells)
                guess = f"Did you rename it to {near[0]!r}? " if near else ""
                listing = ", ".join([*self.cells][:12]) + (" ..." if len(self.cells) > 12 else "")
                raise DataError(f"has no column {name!r}.", where=str(self.path), fix=f"{guess}It has: {listing}.")

    def _numbers(self, name: str) -> Floats:
        self.require(name)
        cells = self.cells[name]
        try:
            numbers = cells.astype(np.float64)
        except ValueError:
            numbers = np.array([_number(cell) for cell in cells])
        is_bad = ~np.isfinite(numbers)
        if is_bad.any():
            row = int(np.argmax(is_bad))
            what = f"column {name!r} holds {cells[row]!r} in data row {row + 1}, not a number."
            raise DataError(what, where=str(self.path))
        self._refuse(name, numbers < 0, "is negative", "Sizes and times are zero or more.")
        return numbers

    def _refuse(self, name: str, is_bad: NDArray[np.bool_], what: str, fix: str) -> None:
        if is_bad.any():
            row = int(np.argmax(is_bad))
            what = f"column {name!r} {what} in data row {row + 1} ({self.cells[name][row]})."
            raise DataError(what, where=str(self.path), fix=fix)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


_UNITS = {1.0: "seconds", 1e-3: "milliseconds", 1e-6: "microseconds"}


def read_csv(path: Path, required: Sequence[str] = ()) -> Columns:
    """Read a CSV file (also gzipped, also Parquet) that has at least one row and the required columns."""
    if not path.is_file():
        raise DataError("no such file.", where=str(path))
    try:
        cells = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    except (OSError, EOFError, ValueError, zlib.error, csv.Error) as error:
        raise DataError(f"cannot be read: {error}.", where=str(path)) from None
    if not cells:
        raise DataError("is empty.", where=str(path), fix="Measure again, or remove the file.")
    columns = Columns(path, cells)
    if not len(columns):
        raise DataError("has a header but no rows.", where=str(path), fix="Measure again, or remove the file.")
    columns.require(*required)
    return columns


def _csv(path: Path) -> dict[str, Cells]:
    data = path.read_bytes()
    data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    check_width(data, str(path))
    every = list(filter(None, csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""))))
    header, rows = every[0] if every else [], every[1:]
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    if (lengths != len(header)).any():
        row = int(np.argmax(lengths != len(header)))
        raise ValueError(f"data row {row + 1} has {lengths[row]} cells, the header {len(header)}")
    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    return {name: np.array(cells, np.object_) for name, cells in zip(header, columns, strict=True)}


def _parquet(path: Path) -> dict[str, Cells]:
    import polars as pl

    try:
        frame = pl.read_parquet(path.read_bytes())  # Polars takes no path whose letters the locale does not have.
    except pl.exceptions.PolarsError as error:
        raise ValueError(str(error)) from None
    return {one.name: np.array(one.cast(pl.String).fill_null("").to_list(), np.object_) for one in frame}
