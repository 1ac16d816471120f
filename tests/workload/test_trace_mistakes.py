"""Traces that are packed, damaged, oddly named or oddly dated."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest

from conftest import CommandLine
from gnomon.core.errors import DataError
from gnomon.workload import table
from gnomon.workload.traces import read_requests

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
PLAIN = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,5\n1,20,6\n"


def dated(folder: Path, *moments: str) -> list[float]:
    path = folder / "azure.csv"
    path.write_text(AZURE + "".join(f"{moment},10,5\n" for moment in moments))
    return [round(float(one), 9) for one in read_requests(str(path)).arrival_s]


def test_offsets_from_utc_count(tmp_path: Path) -> None:
    assert dated(tmp_path, "2023-11-16 18:00:00+00:00", "2023-11-16 20:00:01.5+02:00") == [0.0, 1.5]
    assert dated(tmp_path, "2023-11-16T18:00:00Z", "2023-11-16T12:30:02-0530") == [0.0, 2.0]
    assert dated(tmp_path, "2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690") == [0.0, 4.314579]


def test_years_do_not_wrap(tmp_path: Path) -> None:
    assert dated(tmp_path, "1600-01-01 00:00:00", "1600-01-01 00:00:03") == [0.0, 3.0]
    assert dated(tmp_path, "2400-01-01 00:00:00", "2400-01-02 00:00:00") == [0.0, 86400.0]
    with pytest.raises(DataError, match="more than a century after the first"):
        dated(tmp_path, "1600-01-01 00:00:00", "2400-01-01 00:00:00")
    with pytest.raises(DataError, match="is not a date"):
        dated(tmp_path, "2023-02-31 00:00:00")


def test_a_name_is_no_pattern(tmp_path: Path) -> None:
    (tmp_path / "x[1].csv").write_text(PLAIN)
    assert len(read_requests(str(tmp_path / "x[1].csv"))) == 2
    (tmp_path / "tr_star*.csv").write_text(PLAIN)
    (tmp_path / "tr_star_other.csv").write_text(PLAIN)
    assert len(read_requests(str(tmp_path / "tr_star*.csv"))) == 2


def test_gzip_is_told_by_its_content_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(PLAIN.encode())
    (tmp_path / "a.csv").write_bytes(packed)
    assert len(read_requests(str(tmp_path / "a.csv"))) == 2
    monkeypatch.setattr(table, "MAX_TABLE_BYTES", 20)
    with pytest.raises(DataError, match="unpacks to more than"):
        read_requests(str(tmp_path / "a.csv"))


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_damaged_gzip_is_said(cli: CommandLine, tmp_path: Path, damage: str) -> None:
    packed = gzip.compress(PLAIN.encode())
    bad = packed[:-10] if damage == "cut" else packed[:12] + b"\xff\xff\xff" + packed[15:]
    (tmp_path / "a.csv.gz").write_bytes(bad)
    assert "is damaged" in cli("workload", "show", "--workload.trace", str(tmp_path / "a.csv.gz"), code=2).output


def test_other_packings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\x28\xb5\x2f\xfd" + b"0" * 40)
    with pytest.raises(DataError, match="packed by zstd"):
        read_requests(str(tmp_path / "a.csv"))


def test_line_separators_within_a_line(tmp_path: Path) -> None:
    row = '{"arrived_at": %d, "num_prefill_tokens": 10, "num_decode_tokens": 5, "note": "a\u2028b"}\n'
    (tmp_path / "a.jsonl").write_text(row % 0 + row % 1, encoding="utf-8")
    assert len(read_requests(str(tmp_path / "a.jsonl"))) == 2


def test_structures_in_parquet_are_refused(tmp_path: Path) -> None:
    frame = pl.DataFrame({"arrived_at": [0, 1], "num_prefill_tokens": [{"a": 1}] * 2, "num_decode_tokens": [[1], [2]]})
    frame.write_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="holds lists or structures, not numbers"):
        read_requests(str(tmp_path / "a.parquet"))


def test_packed_uploads_are_refused() -> None:
    pytest.importorskip("dash")
    from gnomon.ui.uploads import keep_trace

    with pytest.raises(DataError, match="is packed"):
        keep_trace("trace.csv", gzip.compress(PLAIN.encode()))


def test_a_table_far_too_wide_is_refused_by_its_header(cli: CommandLine, tmp_path: Path) -> None:
    """Read whole, five million columns take gigabytes and minutes."""
    wide = tmp_path / "wide.csv"
    wide.write_text("," * 5_000_000 + "\n" + ",\n")
    said = cli("workload", "show", "--workload.trace", str(wide), code=2).output
    assert "has more than 1,000 columns." in said
    packed = tmp_path / "packed.csv"
    packed.write_bytes(gzip.compress(wide.read_bytes()))
    lines = tmp_path / "wide.jsonl"
    lines.write_text(json.dumps({f"k{number}": 1 for number in range(1001)}) + "\n")
    for path in (packed, lines):
        with pytest.raises(DataError, match="has more than 1,000"):
            table.read_table(path)
    just = tmp_path / "just.csv"
    just.write_text(",".join(f"c{number}" for number in range(1000)) + "\n" + ",".join(["1"] * 1000) + "\n")
    assert len(table.read_table(just).names) == 1000
