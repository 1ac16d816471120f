"""How fast it starts: `import gnomon`, `--help`, the first simulation ever, the first with tiers, and the next one."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple


class Cost(NamedTuple):
    """Of one process and those that it started."""

    wall_s: float
    processor_s: float


def cost_of(*arguments: str, **environment: str) -> Cost:
    """Seconds of one fresh process, which may keep its byte code, as that of an installed package is."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start, before = time.perf_counter(), _children_s()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env={**own, **environment})
    return Cost(time.perf_counter() - start, _children_s() - before)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        measure()


def measure() -> None:
    bare = min(cost_of("-c", "pass").wall_s for _ in range(3))
    imported = min(cost_of("-c", "import gnomon").wall_s for _ in range(3))
    helped = min(cost_of("-m", "gnomon.cli.main", "--help").wall_s for _ in range(3))
    print(f"import gnomon: {imported - bare:.3f} s beyond the interpreter's own {bare:.3f} s (aim: under 0.3 s)")
    print(f"gnomon --help: {helped - bare:.3f} s beyond it")
    with tempfile.TemporaryDirectory() as folder:
        cache = f"{folder}/cache"
        words = ("-m", "gnomon.cli.main", "simulate", "--workload.num-requests", "1000", "--out", f"{folder}/run")
        first = cost_of(*words, GNOMON_CACHE=cache)
        kept = _megabytes(cache)
        warm = min(cost_of(*words, GNOMON_CACHE=cache) for _ in range(3))
        tiers = (
            "--batching.prefix-cache",
            "true",
            "--kv-tiers.host.size-gb",
            "10",
            "--kv-tiers.host.bandwidth-gb-s",
            "20",
        )
        other = cost_of(*words, *tiers, GNOMON_CACHE=cache)
    beyond = first.wall_s - warm.wall_s
    print(f"gnomon simulate --out, warm: {warm.wall_s:.2f} s by the clock (aim: at most 2.0 s on an idle machine),")
    print(f"  {warm.processor_s:.2f} s of processors")
    print(f"compiling of a plain run: {beyond:.1f} s by the clock (aim: at most 20 s), {first.processor_s:.1f} s of")
    print(f"  processors with the run itself; {kept:.0f} MB of cache (aim: at most 25 MB)")
    print(f"compiling of a run with tiers then: {other.wall_s - warm.wall_s:.1f} s by the clock")


def _megabytes(folder: str) -> float:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / 1e6


if __name__ == "__main__":
    main()
