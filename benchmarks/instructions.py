"""Instructions of the serving engine's loop, counted by valgrind: `python -m benchmarks.instructions OLD NEW`.

OLD and NEW are checkouts. Seconds of one and the same code differ by some per cent between processes; instructions do
not (0.01 %), whatever else the machine does. They say nothing of memory. Only on x86-64, with valgrind installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "open load": {"workload": {"rate": 15.0}},
    "sarathi": {"batching": {"policy": "sarathi"}, "workload": {"rate": 15.0}},
    "closed loop": {"workload": {"rate": None, "arrivals": {"process": "closed_loop", "concurrency": 64}}},
    "four replicas": {"num_replicas": 4, "router": "least_outstanding", "workload": {"rate": 60.0}},
}
PROCESSOR = {
    "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+sse4.2,+avx,+avx2,+fma,+bmi,+bmi2,+popcnt,+cx16",
}  # fmt: skip
"""One that valgrind knows."""


def simulate_all(counts: bool) -> None:
    """Run every case, twice where its loop is counted: the first time something may be read from disk."""
    from gnomon.core.config import build
    from gnomon.serving.run import simulate
    from gnomon.serving.scenario import Scenario

    def control(*words: str) -> None:
        subprocess.run(["callgrind_control", *words, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)

    serve = simulate._serve  # type: ignore[attr-defined]

    def counted(*given: Any) -> Any:
        control("-i", "on")
        control("-z")
        before = serve(*given)
        control("-d")
        control("-i", "off")
        return before

    for case in CASES.values():
        scenario = build(Scenario, {"device": "h100", **case, "workload": {**case["workload"], "num_requests": 20_000}})
        simulate.run(scenario)
        if counts:
            simulate._serve = counted  # type: ignore[attr-defined]
            simulate.run(scenario)
            simulate._serve = serve  # type: ignore[attr-defined]


def instructions(tree: Path) -> list[int]:
    """Of every case, with the sources of a checkout."""
    environment = os.environ | PROCESSOR | {"PYTHONPATH": str(tree.resolve() / "src")}
    command = [sys.executable, str(Path(__file__).resolve())]
    subprocess.run([*command, "--simulate"], env=environment, check=True)  # What is compiled is on disk now.
    with tempfile.TemporaryDirectory() as folder:
        tool = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        subprocess.run([*tool, *command, "--count"], env=environment, check=True, cwd=folder, stderr=subprocess.DEVNULL)
        parts = [(Path(folder) / f"out.{number}").read_text() for number in range(1, len(CASES) + 1)]
    return [int(re.findall(r"^summary: (\d+)", part, re.M)[0]) for part in parts]


def main(words: list[str]) -> None:
    if words in (["--simulate"], ["--count"]):
        simulate_all(words == ["--count"])
        return
    if len(words) != 2:
        sys.exit(__doc__)
    for tree in words:
        if not (Path(tree) / "src" / "gnomon").is_dir():
            sys.exit(f"{tree} is no checkout of Gnomon.")
    old, new = (instructions(Path(tree)) for tree in words)
    for name, before, after in zip(CASES, old, new, strict=True):
        print(f"{name:15} {before / 1e6:8.1f} -> {after / 1e6:8.1f} million instructions, {after / before:.4f}")


if __name__ == "__main__":
    main(sys.argv[1:])
