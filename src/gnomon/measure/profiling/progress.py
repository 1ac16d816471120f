"""A progress line on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time


class Progress:
    """Counts work done out of an estimate that may grow."""

    def __init__(self, label: str, total: int, every_s: float = 0.2) -> None:
        self.label, self.total, self.done = label, total, 0
        self._begun = self._shown = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._every_s = every_s if self._is_terminal else 15.0

    def step(self, what: str) -> None:
        """One more piece is done."""
        self.done += 1
        now = time.monotonic()
        if now - self._shown < self._every_s:
            return
        self._shown = now
        share = min(1.0, self.done / max(1, self.total))
        left = (now - self._begun) * (1 - share) / share
        line = f"{self.label} {share:4.0%}  {left:4.0f} s left  {what}"
        bar = "#" * round(20 * share)
        sys.stderr.write(f"\r[{bar:<20}] {line:<60.60}" if self._is_terminal else line + "\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Finish the line."""
        if self._is_terminal:
            sys.stderr.write("\n")
