"""How fast it starts: `import gnomon`, `--help`, the first simulation ever, and the next one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time


def seconds_of(*arguments: str, **environment: str) -> float:
    """Wall-clock seconds of one fresh process, which may keep its byte code, as that of an installed package is."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env={**own, **environment})
    return time.perf_counter() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        measure()


def measure() -> None:
    bare = min(seconds_of("-c", "pass") for _ in range(3))
    imported = min(seconds_of("-c", "import gnomon") for _ in range(3))
    helped = min(seconds_of("-m", "gnomon.cli.main", "--help") for _ in range(3))
    print(f"import gnomon: {imported - bare:.3f} s beyond the interpreter's own {bare:.3f} s (aim: under 0.3 s)")
    print(f"gnomon --help: {helped - bare:.3f} s beyond it")
    with tempfile.TemporaryDirectory() as folder:
        words = ("-m", "gnomon.cli.main", "simulate", "--workload.num-requests", "1000", "--out", f"{folder}/run")
        first = seconds_of(*words, GNOMON_CACHE=f"{folder}/cache")
        again = min(seconds_of(*words, GNOMON_CACHE=f"{folder}/cache") for _ in range(2))
    print(f"gnomon simulate, first time ever (compiling): {first:.1f} s (aim: under 60 s); next time {again:.2f} s")


if __name__ == "__main__":
    main()
