"""The GPU's clock and power during a run, as nvidia-smi sees them once a second."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from statistics import fmean
from typing import IO

QUERY = ("clocks.sm", "power.draw.instant", "temperature.gpu")
EVERY_MS = 1000


class Clocks:
    """Watches from entering to leaving; nothing is known where there is no nvidia-smi."""

    def __enter__(self) -> Clocks:
        self._file: IO[str] = tempfile.TemporaryFile("w+")
        self._process: subprocess.Popen[str] | None = None
        command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits", "--id=0"]
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen([*command, f"-lms={EVERY_MS}"], stdout=self._file, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        self._file.seek(0)
        self._seen = parse(self._file.read())
        self._file.close()

    def summary(self) -> dict[str, float]:
        """Means over the run, and the lowest clock; empty where nothing was seen."""
        if not self._seen:
            return {}
        clock, power, temperature = zip(*self._seen, strict=True)
        return {
            "sm_mhz_mean": round(fmean(clock), 1),
            "sm_mhz_least": min(clock),
            "power_w_mean": round(fmean(power), 1),
            "temperature_c_most": max(temperature),
        }


def parse(text: str) -> list[tuple[float, ...]]:
    """Lines of numbers; a line that was cut off or holds something else is left out."""
    rows = []
    for line in text.splitlines():
        try:
            row = tuple(float(part) for part in line.split(","))
        except ValueError:
            continue
        if len(row) == len(QUERY):
            rows.append(row)
    return rows
