"""Tables of strings read from CSV, JSON lines or Parquet, whose mistakes are named by file, line and column."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnomon.core.errors import DataError
from gnomon.core.text import MAX_COLUMNS, MAX_TABLE_BYTES, check_width, parse_json, read_text

if TYPE_CHECKING:
    import polars as pl

MAX_SPAN_S = 100 * 366 * 86400
# Column of the line that a row came from.
LINE = "gnomon line number"


@dataclass(frozen=True)
class Table:
    """Rows of a file with the line each came from."""

    path: Path
    frame: pl.DataFrame

    @property
    def names(self) -> list[str]:
        return [name for name in self.frame.columns if name != LINE]

    def numbers(self, column: str, least: float = -np.inf) -> NDArray[np.float64]:
        import polars as pl

        values = self.frame[column]
        if values.dtype.is_nested():
            raise DataError(f"column {column!r} holds lists or structures, not numbers.", where=str(self.path))
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

        text = self.frame[column].cast(pl.String).str.strip_chars().str.replace("T", " ")
        zone = text.str.extract_groups(r"(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d)$").struct
        sign = (zone["sign"] == "-").fill_null(False).cast(pl.Int64) * -2 + 1
        hours, minutes = (zone[name].cast(pl.Int64).fill_null(0) for name in ("hours", "minutes"))
        east_of_greenwich_s = sign * (hours * 3600 + minutes * 60)
        local = text.str.replace(r" ?(Z|[+-]\d\d:?\d\d)$", "")
        # Nanoseconds of 64 bits reach from 1678 to 2261: whole seconds and their fraction are read apart.
        whole = local.str.replace(r"\.\d*$", "").str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ms", strict=False)
        fraction_s = local.str.extract(r"(\.\d+)$").cast(pl.Float64).fill_null(0.0).to_numpy()
        self.refuse(column, whole.is_null(), "is not a date with a time, such as 2023-11-16 18:15:46.68")
        seconds = whole.cast(pl.Int64).to_numpy() // 1000 - east_of_greenwich_s.to_numpy()
        seconds = seconds - seconds.min()
        self.refuse(column, seconds > MAX_SPAN_S, "is more than a century after the first")
        nanoseconds = seconds * 10**9 + np.rint(fraction_s * 1e9).astype(np.int64)
        return (nanoseconds - nanoseconds.min()) / 1e9

    def has_dates(self, column: str | None) -> bool:
        """Whether a column begins with something like a date."""
        first = self.frame[column][0] if column is not None and len(self.frame) else None
        return re.match(r"\s*\d{4}-\d\d-\d\d", str(first)) is not None

    def lists(self, column: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A column of lists of whole numbers, as (offsets, values)."""
        import polars as pl

        lists = self.frame[column]
        if lists.dtype == pl.Struct or (isinstance(lists.dtype, pl.List) and lists.dtype.inner.is_nested()):
            raise DataError(f"column {column!r} holds structures, not lists of numbers.", where=str(self.path))
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
        what = f"column {column!r}: {given} {problem}.{more}"
        raise DataError(what, where=f"{self.path}:{self.frame[LINE][row]}", fix="Correct or delete the row.")


def read_table(path: str | Path) -> Table:
    """Read a CSV (gzipped or not), JSON-lines (.jsonl) or Parquet file, every CSV value as a string.

    What is gzipped is told by its content, and not unpacked beyond what a table may have.
    """
    import polars as pl

    path = Path(path)
    if not path.is_file():
        raise DataError("no such file.", where=str(path), fix="Check the path.")
    try:
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path.read_bytes()).with_row_index(LINE, offset=1)
        elif path.suffix in (".jsonl", ".ndjson", ".json"):
            frame = _json_lines(path)
        else:
            source = unpacked(path)
            check_width(source, str(path))
            frame = pl.read_csv(source, infer_schema=False, glob=False).with_row_index(LINE, offset=2)
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
    names: set[str] = set()
    # Not `splitlines`: U+2028 and the like may stand within a line.
    for number, line in enumerate(read_text(path, most=MAX_TABLE_BYTES).split("\n"), start=1):
        if not line.strip():
            continue
        row = parse_json(line, f"{path}:{number}")
        if not isinstance(row, dict):
            raise DataError("each line must be a JSON object.", where=f"{path}:{number}")
        names.update(row)
        if len(names) > MAX_COLUMNS:
            raise DataError(f"has more than {MAX_COLUMNS:,} keys.", where=f"{path}:{number}", fix="Is it a trace?")
        rows.append({LINE: number, **{k: _text(v) for k, v in row.items()}})
    return pl.DataFrame(rows, infer_schema_length=None, strict=False) if rows else pl.DataFrame()


def _text(value: Any) -> str | None:
    """JSON values as the text a CSV would hold, so that both are checked in the same way."""
    return None if value is None else value if isinstance(value, str) else json.dumps(value)


def _ragged_line(path: Path) -> str | None:
    """The first line of a CSV whose number of fields differs from the header's."""
    try:
        source = unpacked(path)
        text = io.StringIO(source.decode("utf-8")) if isinstance(source, bytes) else path.open(encoding="utf-8")
        with text as lines:
            reader = csv.reader(lines)
            width = len(next(reader, []))
            return next((f"{path}:{reader.line_num}" for row in reader if row and len(row) != width), None)
    except (OSError, csv.Error, UnicodeDecodeError, DataError):
        return None


PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"x\x01": "zlib", b"x\x9c": "zlib", b"x\xda": "zlib"}
"""How packed content begins."""


def packing(start: bytes) -> str | None:
    """How content that begins so is packed; None where it is not."""
    return next((name for mark, name in PACKED.items() if start.startswith(mark)), None)


def unpacked(path: Path) -> Path | bytes:
    """The file itself; where its content is gzipped, what it holds, as far as a table may be large."""
    with path.open("rb") as file:
        kind = packing(file.read(4))
    if kind is None:  # Polars takes no path whose letters the locale does not have.
        return path if str(path).isprintable() else path.read_bytes()
    if kind != "gzip":
        raise DataError(f"is packed by {kind}.", where=str(path), fix="Unpack it, or use gzip.")
    try:
        with gzip.open(path) as packed:
            data = packed.read(MAX_TABLE_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"is damaged: {error}.", where=str(path), fix="Fetch or pack it again.") from None
    if len(data) > MAX_TABLE_BYTES:
        raise DataError(f"unpacks to more than {MAX_TABLE_BYTES // 2**20:,} MiB.", where=str(path), fix="Unpack it.")
    return data
