"""Mistakes in what the verbs of `gnomon profile` are given: one paragraph, exit code 2."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import CommandLine
from gnomon.measure.profiling import bundle

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from gnomon.cli.main import main
main(sys.argv[1:])
"""


def without_torch(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True, timeout=120)


def test_shapes_need_no_torch() -> None:
    done = without_torch("profile", "shapes", "--models", "llama-3-8b")
    assert done.returncode == 0, done.stderr
    assert '"gemm"' in done.stdout


def test_measuring_without_torch_names_the_extra(tmp_path: Path) -> None:
    done = without_torch("profile", "all", "--models", "llama-3-8b", "--device", "h200", "--out", str(tmp_path / "b"))
    assert (done.returncode, "[gpu]" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


@pytest.mark.parametrize(
    ("degrees", "message"), [("abc", "cannot read 'abc'"), ("0", "from 1 on"), ("-2", "from 1 on"), ("3", "split so")]
)
def test_degrees_of_an_import(cli: CommandLine, tmp_path: Path, degrees: str, message: str) -> None:
    words = ["profile", "import", str(tmp_path), "--model", "llama-3-8b", "--device", "h100", "--out", "bundle"]
    assert message in cli(*words, "--tensor-parallel", degrees, code=2).output


def test_overhead_of_a_wrong_folder(cli: CommandLine, tmp_path: Path) -> None:
    assert "iterations.csv.gz: cannot be read" in cli("profile", "overhead", str(tmp_path), code=2).output
    with gzip.open(tmp_path / "iterations.csv.gz", "wt") as file:
        file.write("sequences,end_s\n1,2\n1,2\n")
    assert "no column or key 'start_s'" in cli("profile", "overhead", str(tmp_path), code=2).output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"text", "Not a gzipped file"),
        (gzip.compress(b"dtype,m,n,k\nbf16,1,1,1\n", mtime=0), "no column or key 'seconds'"),
        (gzip.compress(b"seconds\n1\n", mtime=0), "no column or key 'dtype'"),
        *((gzip.compress(f"dtype,m,n,k,seconds\nbf16,1,1,1,{s}\n".encode(), mtime=0), "no measured time")
          for s in ("0", "-1", "nan", "inf")),
        (gzip.compress(b"dtype,m,n,k,seconds\nbf16,1,1,1,x\n", mtime=0), "could not convert"),
        (gzip.compress(b"dtype,m,n,k,seconds\nbf16,1,1,1,1\n", mtime=0)[:-9], "cannot be read"),
    ],
)  # fmt: skip
def test_quality_of_what_is_no_measurement(cli: CommandLine, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "gemm.csv.gz").write_bytes(content)
    assert message in cli("profile", "quality", str(tmp_path), code=2).output


def plain_bundle(folder: Path) -> Path:
    """A bundle of plain CSV files, as a user's own program writes it."""
    folder.mkdir()
    rows = "".join(f"bf16,{m},4096,4096,{m * 1e-6:.6g},0.01\n" for m in (8, 16, 32, 64, 128))
    (folder / "gemm.csv").write_text("dtype,m,n,k,seconds,spread\n" + rows)
    files = {"gemm.csv": {"rows": 5, "sha256": hashlib.sha256((folder / "gemm.csv").read_bytes()).hexdigest()}}
    facts = {"format": "gnomon-profile", "version": 1, "device": "h200", "models": ["llama-3-8b"], "files": files}
    manifest = {**facts, "content_hash": bundle.content_hash(files)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def recorded_run(folder: Path) -> Path:
    folder.mkdir()
    rows = "".join(f"{n},{0.01 * n},{0.01 * n + 0.006},0.005\n" for n in range(1, 30))
    with gzip.open(folder / "iterations.csv.gz", "wt") as file:
        file.write("sequences,start_s,end_s,gpu_s\n" + rows)
    return folder


def test_overhead_without_times_of_the_gpu_is_told(cli: CommandLine, tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run")
    with gzip.open(run / "iterations.csv.gz", "wt") as file:
        file.write("sequences,start_s,end_s\n1,0.0,0.006\n2,0.01,0.016\n")
    said = cli("profile", "overhead", str(run), code=2).output
    assert "gpu_s" in said and "Traceback" not in said


def test_host_rows_are_added_to_a_bundle_of_plain_files(cli: CommandLine, tmp_path: Path) -> None:
    made = plain_bundle(tmp_path / "bundle")
    assert "gemm" in cli("profile", "quality", str(made)).output
    cli("profile", "overhead", str(recorded_run(tmp_path / "run")), "--out", str(made))
    manifest = json.loads((made / "manifest.json").read_text())
    assert {"gemm.csv.gz", "host.csv.gz"} == set(manifest["files"]) and manifest["models"] == ["llama-3-8b"]
    rows = bundle.read_rows(made)
    assert len(rows["gemm"]) == 5 and rows["gemm"]["bf16", 64, 4096, 4096][0] == pytest.approx(64e-6)
    said = cli("time", "--source", "profile", "--path", str(made), "--decode", "64", "--json").output
    assert json.loads(said)
