"""Wheel and sdist: built, installed into an environment that has nothing else, and tested there."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ("tests/workload", "tests/live", "tests/catalog")
"""Of the sdist, against the wheel: everybody's formats, the server, the assistant, data files."""


def run(*command: object, cwd: Path, **more: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | more
    done = subprocess.run([str(one) for one in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", folder / "env", cwd=folder)
    return folder / "env" / "bin" / "python"


@pytest.fixture(scope="module")
def built(python):
    """The wheel, and the folder of the sdist without its sources: only what is installed can be tested."""
    folder = python.parents[2]
    run(python, "-m", "pip", "install", "--quiet", "build", cwd=folder)
    run(python, "-m", "build", "--outdir", folder / "dist", ROOT, cwd=folder)
    (wheel,), (sdist,) = (list((folder / "dist").glob(kind)) for kind in ("*.whl", "*.tar.gz"))
    with tarfile.open(sdist) as files:
        files.extractall(folder, filter="data")
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    (unpacked / "src").rename(folder / "sources")
    return wheel, unpacked


@pytest.mark.slow
def test_the_wheel_has_every_file_that_git_has(built):
    wheel, _ = built
    known = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    held = {f"src/{name}" for name in zipfile.ZipFile(wheel).namelist()}
    assert known and not set(known) - held


@pytest.mark.slow
def test_the_tests_of_the_sdist_pass_with_the_wheel(python, built, tmp_path):
    wheel, unpacked = built
    needed = ("pytest", "hypothesis", "openai", "httpx", "jsonschema", "kubernetes-validate")
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[serve,mcp]", *needed, cwd=tmp_path)
    where = run(python, "-c", "import gnomon; print(gnomon.__file__)", cwd=unpacked)
    assert "site-packages" in where
    told = run(python, "-m", "pytest", "-m", "not slow", *TESTS, cwd=unpacked, GNOMON_CACHE=str(tmp_path))
    assert told.count(".") > 100
