"""CSV files into checked arrays: what is missing or impossible is named with its file, column and line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
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


@dataclass(frozen=True)
class Columns:
    """The columns of one file."""

    path: Path
    frame: pl.DataFrame

    def sizes(self, *names: str) -> Floats:
        """Whole numbers of zero or more, [rows, names]."""
        return np.column_stack([self._numbers(name) for name in names])

    def seconds(self, name: str, *, unit_s: float = 1.0) -> Floats:
        """Times in `unit_s`, as seconds."""
        seconds = self._numbers(name) * unit_s
        self._refuse(name, seconds <= 0, "is not positive", "A measured time is above zero.")
        fix = f"This layout's unit is {_UNITS[unit_s]}; convert the column."
        self._refuse(name, seconds < SHORTEST_S, "is shorter than any kernel", fix)
        self._refuse(name, seconds > LONGEST_S, "is longer than any kernel", fix)
        return seconds

    def spread(self, name: str = "spread") -> Floats:
        """Relative spreads, zero where the column is left out."""
        return self._numbers(name) if name in self.frame.columns else np.zeros(self.frame.height)

    def texts(self, name: str) -> NDArray[np.str_]:
        self.require(name)
        return np.asarray(self.frame[name].cast(pl.String).fill_null("").to_list(), dtype=np.str_)

    def has(self, name: str) -> bool:
        """Whether the column is there and not wholly empty."""
        return name in self.frame.columns and self.frame[name].null_count() < self.frame.height

    def where(self, mask: NDArray[np.bool_]) -> Columns:
        return Columns(self.path, self.frame.filter(pl.Series(mask)))

    def require(self, *names: str) -> None:
        for name in names:
            if name not in self.frame.columns:
                near = nearest(name, self.frame.columns)
                guess = f"Did you rename it to {near[0]!r}? " if near else ""
                listing = ", ".join(self.frame.columns[:12]) + (" ..." if len(self.frame.columns) > 12 else "")
                raise DataError(f"has no column {name!r}.", where=str(self.path), fix=f"{guess}It has: {listing}.")

    def _numbers(self, name: str) -> Floats:
        self.require(name)
        column = self.frame[name]
        numbers = column.cast(pl.Float64, strict=False).to_numpy()
        is_bad = ~np.isfinite(numbers)
        if is_bad.any():
            line = int(np.argmax(is_bad))
            what = f"column {name!r} holds {column[line]!r} in data row {line + 1}, not a number."
            raise DataError(what, where=str(self.path))
        self._refuse(name, numbers < 0, "is negative", "Sizes and times are zero or more.")
        return numbers

    def _refuse(self, name: str, is_bad: NDArray[np.bool_], what: str, fix: str) -> None:
        if is_bad.any():
            row = int(np.argmax(is_bad))
            value = self.frame[name][row]
            raise DataError(f"column {name!r} {what} in data row {row + 1} ({value}).", where=str(self.path), fix=fix)


_UNITS = {1.0: "seconds", 1e-3: "milliseconds", 1e-6: "microseconds"}


def read_csv(path: Path, required: Sequence[str] = ()) -> Columns:
    """Read a CSV file (also gzipped, also Parquet) that has at least one row and the required columns."""
    if not path.is_file():
        raise DataError("no such file.", where=str(path))
    try:
        # Numbers are parsed column by column later: a stray word must name its row rather than fail the file.
        is_parquet = path.suffix == ".parquet"
        if not is_parquet:
            check_width(path, str(path))
        data = path.read_bytes()  # Polars takes no path whose letters the locale does not have.
        frame = pl.read_parquet(data) if is_parquet else pl.read_csv(data, infer_schema_length=None)
    except pl.exceptions.NoDataError:
        raise DataError("is empty.", where=str(path), fix="Measure again, or remove the file.") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"cannot be read: {error}.", where=str(path)) from None
    if frame.height == 0:
        raise DataError("has a header but no rows.", where=str(path), fix="Measure again, or remove the file.")
    columns = Columns(path, frame)
    columns.require(*required)
    return columns
