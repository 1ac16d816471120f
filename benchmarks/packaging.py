"""Wheel and sdist in clean environments: `python -m benchmarks.packaging [PYTHON...] [--work DIR]`.

For every Python given (commands such as python3.12, or paths), with the lowest dependencies that `pyproject.toml`
allows and with the newest: install, run `gnomon simulate`, and compare the requests' times to the last bit. The wheel
goes into the environments of the newest dependencies, the sdist into the others. Environments stay in the work folder
and are used again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUN = ("simulate", "--device", "h100", "--timing.source", "roofline", "--workload.num-requests", "300", "--csv")
MODULES = ("numpy", "numba", "pydantic", "polars")


def lowest() -> list[str]:
    """Every dependency at its lower bound."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    dependencies = tomllib.loads(text)["project"]["dependencies"]
    return [re.sub(r">=([\d.]+)", r"==\1.*", one, count=1) for one in dependencies]


def called(*words: str | Path, **variables: str) -> str:
    """What a command prints; an error where it fails."""
    ended = subprocess.run(words, capture_output=True, text=True, env=os.environ | variables, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\n{(ended.stdout + ended.stderr)[-3000:]}")
    return ended.stdout


def built(work: Path) -> tuple[Path, Path]:
    """The wheel and the sdist of this checkout."""
    python = work / "builder" / "bin" / "python"
    if not python.exists():
        called(sys.executable, "-m", "venv", work / "builder")
        called(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "build")
    called(python, "-m", "build", "-o", work / "dist", ROOT)
    newest = [max((work / "dist").glob(kind), key=lambda one: one.stat().st_mtime) for kind in ("*.whl", "*.tar.gz")]
    return newest[0], newest[1]


def environment(python: str, kind: str, package: Path, work: Path) -> Path:
    """The command `gnomon` of an environment of its own."""
    folder = work / f"{Path(python).name}-{hashlib.sha256(python.encode()).hexdigest()[:6]}-{kind}"
    if not (folder / "bin" / "python").exists():
        called(python, "-m", "venv", folder)
    pip = (folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
    called(*pip, *(lowest() if kind == "lowest" else ["--upgrade"]), package)
    called(*pip, "--force-reinstall", "--no-deps", package)
    return folder / "bin" / "gnomon"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="*", default=[sys.executable])
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "gnomon-packaging")
    options = parser.parse_args()
    work = options.work.resolve()
    wheel, sdist = built(work)
    found: dict[str, list[str]] = {}
    for python in options.pythons:
        for kind, package in (("lowest", sdist), ("newest", wheel)):
            gnomon = environment(python, kind, package, work)
            versions = called(
                gnomon.parent / "python",
                "-c",
                "import sys; from importlib.metadata import version; "
                f"print(sys.version.split()[0], *(f'{{one}} {{version(one)}}' for one in {MODULES}))",
            ).strip()
            out = work / "runs" / gnomon.parent.parent.name
            called(gnomon, *RUN, "--out", out, GNOMON_CACHE=str(work / "cache" / gnomon.parent.parent.name))
            digest = hashlib.sha256((out / "requests.csv").read_bytes()).hexdigest()[:12]
            found.setdefault(digest, []).append(versions)
            print(f"{kind} ({package.suffix}): Python {versions}: requests.csv {digest}", flush=True)
    if len(found) > 1:
        raise SystemExit(f"{len(found)} different results: {found}")
    print("all the same")


if __name__ == "__main__":
    main()
