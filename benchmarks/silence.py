"""How long a command says nothing: the longest silence of every command of the README's table, in a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
NEVER_END = ("ui", "serve", "calibrate", "convert")
"""Servers, and what needs files that the README does not bring."""
MOST_S = 600.0


def silence_of(words: list[str], folder: Path) -> tuple[float, float, int]:
    """Seconds without a word at the longest, seconds in all, and the exit code."""
    process, terminal = pty.fork()
    if process == 0:  # The child: Gnomon, at a terminal.
        os.chdir(folder)
        os.execv(sys.executable, [sys.executable, "-m", "gnomon.cli.main", *words])
    start = last = time.perf_counter()
    longest = 0.0
    while time.perf_counter() - start < MOST_S:
        ready, _, _ = select.select([terminal], [], [], 1.0)
        try:
            said = os.read(terminal, 65536) if ready else b""
        except OSError:  # The other end is closed.
            break
        if ready and not said:
            break
        if said:
            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    done = time.perf_counter()
    _, status = os.waitpid(process, 0)
    return max(longest, done - last), done - start, os.waitstatus_to_exitcode(status)


def main() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [shlex.split(one)[1:] for one in re.findall(r"\| `(gnomon [^`]+)` \|", text)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "examples").symlink_to(ROOT / "examples")
        (folder / "scenario.yaml").write_text("model: llama-3-8b\n")
        for out in ("runs/demo", "runs/main"):
            silence_of(["simulate", "--out", out], folder)
        for words in commands:
            if words[0] in (*NEVER_END, "verify") or "trace.csv" in words:
                continue
            longest_s, whole_s, code = silence_of(words, folder)
            share = f"{longest_s:5.1f} s of {whole_s:6.1f} s ({longest_s / whole_s:4.0%})"
            print(f"{share}, exit code {code}: gnomon {shlex.join(words)}", flush=True)


if __name__ == "__main__":
    main()
