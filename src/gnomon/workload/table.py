"""Tables of strings read from CSV, JSON lines or Parquet, whose mistakes are named by file, line and column."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnomon.core.errors import DataError

if TYPE_CHECKING:
    import polars as pl

# Column of the line that a row came from.
LINE = "gnomon line number"


@dataclass(frozen=True)
class Table:
    """Rows of a file with the line each came from."""

    path: Path
    frame: pl.DataFrame

    @property
    def names(self) -> list[str]:
        """The file's columns."""
        return [name for name in self.frame.columns if name != LINE]

    def numbers(self, column: str, least: float = -np.inf) -> NDArray[np.float64]:
        """A column of finite numbers, none below `least`."""
        import polars as pl

        values = self.frame[column]
        if values.dtype == pl.String:
            values = values.str.strip_chars()
        numbers = values.cast(pl.Float64, strict=False)
        self.refuse(column, ~numbers.is_finite().fill_null(False), "is not a number")
        self.refuse(column, numbers < least, f"is below {least:g}")
        return numbers.to_numpy()

    def counts(self, column: str, most: int = 2**30) -> NDArray[np.int64]:
        """A column of whole numbers from 0 to `most`."""
        numbers = self.numbers(column, least=0)
        self.refuse(column, numbers != np.rint(numbers), "is not a whole number")
        self.refuse(column, numbers > most, f"is above {most:,}")
        return numbers.astype(np.int64)

    def moments_s(self, column: str) -> NDArray[np.float64]:
        """A column of dates with times, as seconds since the first."""
        import polars as pl

        text = self.frame[column].cast(pl.String).str.strip_chars().str.replace(r"(Z|[+-]\d\d:?\d\d)$", "")
        moments = text.str.replace("T", " ").str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False)
        self.refuse(column, moments.is_null(), "is not a date with a time, such as 2023-11-16 18:15:46.68")
        nanoseconds = moments.cast(pl.Int64).to_numpy()
        return (nanoseconds - nanoseconds.min(initial=nanoseconds[0] if len(nanoseconds) else 0)) / 1e9

    def lists(self, column: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A column of lists of whole numbers, as (offsets, values)."""
        import polars as pl

        lists = self.frame[column]
        if not isinstance(lists.dtype, pl.List):
            text = lists.cast(pl.String).fill_null("").str.strip_chars("[] ")
            lists = text.str.replace_all(",", " ").str.replace_all(r"\s+", " ").str.split(" ")
            lists = lists.list.eval(pl.element().filter(pl.element() != "").cast(pl.Int64, strict=False))
        has_gap = lists.list.eval(pl.element().is_null()).list.any().fill_null(False)
        self.refuse(column, has_gap, "is not a list of whole numbers")
        offsets = np.concatenate(([0], np.cumsum(lists.list.len().fill_null(0).to_numpy()))).astype(np.int64)
        values = lists.explode().drop_nulls().cast(pl.Int64).to_numpy()
        return offsets, values

    def refuse(self, column: str, bad: Any, problem: str) -> None:
        """Raise an error for the first bad row of a column, if there is one."""
        wrong = np.flatnonzero(np.asarray(bad))
        if not len(wrong):
            return
        row = int(wrong[0])
        value = self.frame[column][row]
        given = "an empty value" if value is None else repr(value)
        more = f" {len(wrong) - 1:,} more rows are like it." if len(wrong) > 1 else ""
        raise DataError(
            f"column {column!r}: {given} {problem}.{more}",
            where=f"{self.path}:{self.frame[LINE][row]}",
            fix="Correct or delete the row.",
        )


def read_table(path: str | Path) -> Table:
    """Read a CSV (gzipped or not), JSON-lines (.jsonl) or Parquet file, every CSV value as a string."""
    import polars as pl

    path = Path(path)
    if not path.is_file():
        raise DataError("no such file.", where=str(path), fix="Check the path.")
    try:
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path).with_row_index(LINE, offset=1)
        elif path.suffix in (".jsonl", ".ndjson", ".json"):
            frame = _json_lines(path)
        else:
            frame = pl.read_csv(path, infer_schema=False).with_row_index(LINE, offset=2)
            frame = frame.filter(~pl.all_horizontal(pl.exclude(LINE).is_null()))
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        where = _ragged_line(path) or str(path)
        raise DataError(f"cannot be read as a table: {str(error).splitlines()[0]}.", where=where) from None
    if frame.is_empty():
        raise DataError("there are no requests in the file.", where=str(path))
    return Table(path, frame)


def _json_lines(path: Path) -> pl.DataFrame:
    import polars as pl

    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"not valid JSON: {error.msg}.", where=f"{path}:{number}:{error.colno}") from None
        if not isinstance(row, dict):
            raise DataError("each line must be a JSON object.", where=f"{path}:{number}")
        rows.append({LINE: number, **{k: _text(v) for k, v in row.items()}})
    return pl.DataFrame(rows, infer_schema_length=None, strict=False) if rows else pl.DataFrame()


def _text(value: Any) -> str | None:
    """JSON values as the text a CSV would hold, so that both are checked in the same way."""
    return None if value is None else value if isinstance(value, str) else json.dumps(value)


def _ragged_line(path: Path) -> str | None:
    """The first line of a CSV whose number of fields differs from the header's."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            reader = csv.reader(lines)
            width = len(next(reader, []))
            return next((f"{path}:{reader.line_num}" for row in reader if row and len(row) != width), None)
    except (OSError, csv.Error, UnicodeDecodeError):
        return None
