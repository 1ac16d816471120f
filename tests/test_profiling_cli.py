"""`gnomon profile` without a GPU, collectives over gloo, host overhead, and the shipped H200 data."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gnomon.profiling import bundle, collectives, overhead, quality  # noqa: E402
from gnomon.verify import h200  # noqa: E402


def test_shapes_are_shared_between_models_and_degrees(cli, tmp_path: Path) -> None:
    cli("profile", "shapes", "--models", "llama-3-8b,qwen3-8b", "--out", str(tmp_path / "both.json"))
    cli("profile", "shapes", "--models", "llama-3-8b", "--out", str(tmp_path / "one.json"))
    both, one = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("both", "one"))
    assert [28672, 4096] in one["gemm"]
    assert [32, 8, 128] in one["attention"]
    assert both["attention"] == one["attention"]  # The same heads: measured once.
    assert ["qk_norm", 5120] in both["elementwise"]
    assert len(one["head"]) == 4


def test_without_a_gpu_profiling_is_a_users_error(cli, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = cli("profile", "all", "--device", "h200", "--out", str(tmp_path / "out"), code=2)
    assert "GPU" in result.output
    cli("profile", "compute", "--device", "h2000", "--out", str(tmp_path / "out"), code=2)
    cli("profile", "shapes", "--tensor-parallel", "one", code=2)


def test_collectives_over_gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(collectives.__file__).parents[2])]))
    measured = collectives.measure_on_node(["all_reduce", "all_gather", "send_recv"], [1, 2], [1024, 65536], "gloo")
    assert {key[0] for key in measured} == {"all_reduce", "all_gather", "send_recv"}
    assert {key[1] for key in measured} == {2}
    assert all(seconds > 0 for seconds, _ in measured.values())
    bundle.write(tmp_path, {"collective": measured}, {"device": "h200"})
    assert bundle.read_rows(tmp_path)["collective"].keys() == measured.keys()


def test_host_time_is_a_constant_and_a_part_per_sequence(tmp_path: Path) -> None:
    sequences = np.arange(1.0, 101.0)
    seconds = 200e-6 + 3e-6 * sequences
    fit = overhead.fit([(sequences, seconds), (sequences[:50], seconds[:50])])
    assert fit.per_iteration_s == pytest.approx(200e-6)
    assert fit.per_sequence_s == pytest.approx(3e-6)
    bundle.write(tmp_path, {"gemm": {("bf16", 1, 8, 8): (1e-6, 0.0)}}, {"device": "h200", "node": None})
    overhead.add_to(tmp_path, fit)
    assert bundle.read_rows(tmp_path)["host"]["iteration", 64][0] == pytest.approx(392e-6, rel=1e-3)
    assert json.loads((tmp_path / "manifest.json").read_text())["device"] == "h200"


def test_the_shipped_runs_give_a_host_time(cli) -> None:
    calibration = h200.RUNS / h200.CALIBRATION
    fit = overhead.fit([overhead.read(calibration)])
    assert 20e-6 < fit.per_iteration_s < 300e-6
    cli("profile", "overhead", str(calibration))


def test_the_shipped_profile_is_whole_and_clean(cli) -> None:
    manifest = json.loads((h200.PROFILE / "manifest.json").read_text())
    assert manifest["content_hash"] == bundle.content_hash(manifest["files"])
    assert {"llama-2-7b", "llama-3-70b", "qwen3-30b-a3b"} <= set(manifest["models"])
    rows = bundle.read_rows(h200.PROFILE)
    for one in quality.assess(rows):
        assert one.spread_median < 0.01
        assert one.noisy <= 0.001 * one.rows + 1
    held_out = json.loads((h200.PROFILE / "quality.json").read_text())["held_out"]
    assert held_out["median"] < 0.03
    assert held_out["mean"] < 0.05
    cli("profile", "quality", str(h200.PROFILE))


def test_one_run_of_the_engine_is_predicted(cli) -> None:
    host = h200.calibrate(h200.Recording(h200.RUNS / h200.CALIBRATION))
    assert 100e-6 < host.per_iteration_s < 600e-6
    found = h200.compare(h200.Recording(h200.RUNS / "llama-3-8b-chat-60"), host)
    errors = {(error.metric, error.statistic): error for error in found.errors}
    for metric, tolerance in h200.TOLERANCES.items():
        assert abs(errors[metric, "mean"].relative) < tolerance
    assert not [error for error in found.errors if error.verdict == "beyond"]


def test_an_error_beyond_tolerance_is_one_unless_the_run_cannot_tell() -> None:
    def verdict(simulated: float, statistic: str = "p99") -> str:
        return h200.Error("tpot", statistic, 1.0, simulated, 0.95, 1.04).verdict

    assert verdict(1.029) == "ok"
    assert verdict(1.035) == "unresolved"
    assert verdict(1.05) == "beyond"
    assert verdict(1.05, "p50") == "ok"  # Printed, not judged.


@pytest.mark.slow
def test_all_runs_of_the_engine_are_predicted(cli, tmp_path: Path) -> None:
    cli("verify", "h200", "--svg", str(tmp_path / "cdf.svg"))
    assert (tmp_path / "cdf.svg").read_text().count("<polyline") == 2 * 3 * len(h200.recordings())


def test_foreign_measurements_become_a_bundle(cli, reference: Path, tmp_path: Path) -> None:
    source = reference / "vidur" / "data" / "profiling"
    options = ("--model", "llama-2-70b", "--device", "a100-80gb", "--node", "a100_dgx", "--tensor-parallel", "4")
    cli("profile", "import", str(source), *options, "--out", str(tmp_path))
    rows = bundle.read_rows(tmp_path)
    assert {key[2:] for key in rows["gemm"]} >= {(2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168)}
    assert {key[:2] for key in rows["collective"]} == {("all_reduce", 4)}
    theirs, ours = (
        json.loads(cli("time", *options, "--source", "profile", "--path", str(path), "--json").output)["profile"]
        for path in (source, tmp_path)
    )
    for one, other in zip(theirs["operators"], ours["operators"], strict=True):
        if one["name"] != "lm_head":  # Unmeasured in both; nearby shapes stand in for it in ours.
            assert one["seconds"] == pytest.approx(other["seconds"], rel=1e-3), one["name"]
    cli("profile", "import", str(tmp_path.parent), *options, "--out", str(tmp_path / "none"), code=2)
