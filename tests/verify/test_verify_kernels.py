"""`gnomon verify kernels`: tables held out, on a small package of the same form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from gnomon.api.verify import verify
from gnomon.core.errors import DataError
from gnomon.timing.sources.silicon import tables
from gnomon.verify.kernels import every_fifth, tables_of

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
    (row,) = found.findings.rows
    assert (row["device"], row["engine"], row["table"], row["left out"]) == ("l4", "vllm", "gemm bf16", 1)
    assert row["points"] == 6  # Every fifth of 12, 11 and 12 points from the third on: two of each shape.
    assert row["held out"] < 2.0
    assert row["roofline"] > 0.0


def test_a_device_without_tables_is_refused() -> None:
    with pytest.raises(DataError, match="no kernels of a40"):
        verify("kernels", "a40")


def test_every_fifth_point_leaves_no_row_or_column_of_a_grid_out() -> None:
    grid = np.array([(a, b) for a in range(18) for b in range(5)], dtype=float)
    out = every_fifth(grid)
    assert out.sum() == 18
    for column in grid.T:
        for value in np.unique(column):
            assert 0 < out[column == value].mean() < 0.5
    line = every_fifth(np.arange(12.0)[:, None])
    assert np.flatnonzero(line).tolist() == [2, 7]
    assert not every_fifth(np.arange(8.0)[:, None])[-1]


def test_every_table_that_is_read_is_checked() -> None:
    pytest.importorskip("aiconfigurator_core")
    families = {
        *("gemm", "moe", "wideep_moe", "context_attention", "generation_attention", "context_mla", "generation_mla"),
        *("mla_context_module", "mla_generation_module", "dsa_context_module", "dsa_generation_module"),
        *("msa_context_module", "msa_generation_module", "mla_bmm", "mhc_module", "scale_matrix", "gdn", "kda"),
        *(f"dsv4_{kind}_{phase}_module" for kind in ("csa", "hca") for phase in ("context", "generation")),
        *("moe_a2a", "wideep_deepep_ll", "wideep_deepep_normal", "trtllm_alltoall", "custom_allreduce", "all_gather"),
    }
    found = {one.name.split()[0] for name in ("b200", "gb200") for one in tables_of(name) if one.kernels.bundle.samples}
    assert families <= found


def test_the_roofline_is_not_held_against_what_was_measured_untuned() -> None:
    pytest.importorskip("aiconfigurator_core")
    alone = {(one.engine, one.name): one.is_one_kernel for one in tables_of("h200", ("vllm", "sglang"))}
    assert not alone["vllm", "gemm fp8_block"] and not alone["vllm", "moe fp8 balanced"]
    assert not alone["sglang", "scale_matrix"] and not alone["vllm", "mla_generation_module"]
    assert alone["vllm", "gemm bf16"] and alone["vllm", "scale_matrix"] and alone["sglang", "moe fp8_block balanced"]
