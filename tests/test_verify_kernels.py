"""`gnomon verify kernels`: tables held out, on a small package of the same form."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from gnomon.api.verify import verify
from gnomon.core.errors import DataError
from gnomon.timing.sources.silicon import tables

M = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Products whose time is a straight line in their rows, but for one point."""
    path = tmp_path / "l4" / "gemm" / "vllm" / "0.24.0" / "gemm_perf.parquet"
    path.parent.mkdir(parents=True)
    rows = [
        {"gemm_dtype": "bfloat16", "m": m, "n": n, "k": 4096, "latency": (0.02 + 1e-11 * m * n * 4096) * factor}
        for n in (1024, 2048, 4096)
        for m in M
        for factor in [3.0 if (n, m) == (2048, 8) else 1.0]
    ]
    pl.DataFrame(rows).write_parquet(path)
    monkeypatch.setattr(tables, "data_folder", lambda: tmp_path)
    return tmp_path


def test_a_smooth_table_is_predicted_and_its_odd_point_left_out(package: Path) -> None:
    found = verify("kernels", "l4", one_in=1)
    (row,) = found.told.rows
    assert (row["device"], row["engine"], row["table"], row["left out"]) == ("l4", "vllm", "gemm bf16", 1)
    assert row["points"] == 6  # Every fifth of 12, 11 and 12 points from the third on: two of each shape.
    assert row["held out"] < 2.0
    assert row["roofline"] > 0.0


def test_a_device_without_tables_is_refused() -> None:
    with pytest.raises(DataError, match="no kernels of a40"):
        verify("kernels", "a40")
