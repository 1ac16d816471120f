"""`gnomon verify timing` on a small made-up folder and on the reference data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from gnomon.timing.sources.profile.samples import Samples
from gnomon.verify.timing import LIMIT, Table, sample, score, summaries, vidur_tables

CommandLine = Callable[..., Result]


def write(root: Path, noise: float) -> Path:
    """Vidur's layout with one model on one GPU, its times off a straight line by up to `noise`."""
    folder = root / "compute" / "h100" / "meta-llama" / "Llama-2-7b-hf"
    folder.mkdir(parents=True)
    off = 1.0 + noise * np.random.default_rng(0).uniform(-1, 1, 60)
    rows = [f"{(0.01 + 0.001 * t) * o},{t},1" for t, o in zip(range(1, 61), off, strict=True)]
    header = "time_stats.mlp_act.median,num_tokens,num_tensor_parallel_workers"
    (folder / "mlp.csv").write_text("\n".join([header, *rows]) + "\n")
    return root


def test_smooth_times_pass(cli: CommandLine, tmp_path: Path) -> None:
    result = cli("verify", "timing", "--data", str(write(tmp_path, 0.0)), "--json")
    found = json.loads(result.stdout)
    assert {row["estimator"] for row in found["operators"]} == {"grid", "linear", "polynomial"}
    grid = found["operators"][0]
    assert grid["operator"] == "act"
    assert grid["shuffled mean"] < 1
    assert grid["passes"]


def test_noise_fails_with_exit_code_1(cli: CommandLine, tmp_path: Path) -> None:
    result = cli("verify", "timing", "--data", str(write(tmp_path, 0.5)), code=1)
    assert "Beyond tolerance: act" in result.output


def test_missing_data_is_said(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GNOMON_REFERENCE", raising=False)
    assert "--data or $GNOMON_REFERENCE" in cli("verify", "timing", code=2).output
    assert "no Vidur profiles" in cli("verify", "timing", "--data", str(tmp_path), code=2).output


def test_help_lists_the_checks(cli: CommandLine) -> None:
    assert "timing" in cli("verify", "--help").output
    assert "unshuffled" in cli("verify", "timing", "--help").output.lower()


def test_a_sample_keeps_every_operator(tmp_path: Path) -> None:
    tables = vidur_tables(write(tmp_path, 0.0))
    assert [one.operator.name for one in sample(tables * 13)] == ["act", "act"]


def test_one_bad_estimator_is_not_the_defaults_fault(tmp_path: Path) -> None:
    (table,) = vidur_tables(write(tmp_path, 0.0))
    curved = Samples(table.samples.sizes, table.samples.sizes[:, 0] ** 3 * 1e-6, table.samples.where)
    scores = [
        score(Table(table.operator, table.group, "", curved, table.roofline), name) for name in ("grid", "linear")
    ]
    by_name = {one.estimator: one for one in summaries(scores)}
    assert by_name["linear"].shuffled.mean > LIMIT
    assert by_name["linear"].passes


def test_reference_attention_is_as_good_as_forests(reference: Path) -> None:
    """Vidur's forests: prefill 2.2 %, decode 1.1 % shuffled; 15 % and 13 % unshuffled."""
    tables = [table for table in vidur_tables(reference) if table.group.startswith("attention")]
    found = {one.operator: one for one in summaries(score(table, "grid") for table in tables)}
    assert found["attention_prefill"].shuffled.mean < 0.018
    assert found["attention_decode"].shuffled.mean < 0.0105
    assert found["attention_prefill"].unshuffled.mean < 0.06
    assert found["attention_decode"].unshuffled.mean < 0.045


@pytest.mark.slow
def test_reference_passes_on_every_operator(cli: CommandLine, reference: Path) -> None:
    found = json.loads(cli("verify", "timing", "--data", str(reference), "--json").stdout)
    grids = [row for row in found["operators"] if row["estimator"] == "grid"]
    assert len(grids) == 14
    assert sum(row["points"] for row in grids) > 200_000
    rows = json.loads(cli("verify", "timing", "--data", str(reference), "--roofline", "--json").stdout)["operators"]
    gemm = [row for row in rows if row["operators"] == "gemm"]
    assert {row["device"] for row in gemm} >= {"a100-80gb", "h100", "a40", "rtx-4090", "rtx-pro-6000"}
    assert all(row["median"] < 15 for row in gemm)
