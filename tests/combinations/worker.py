"""A process that examines cases, so that one which never ends, or which kills its process, costs only that process."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

LIMIT_S = 60.0
"""Seconds of the processor that a case may take: hundreds of times what one takes."""
BUSY = 6.0
"""How many times as long by the clock, on a machine that is busy."""
FIRST_S = 600.0
"""For the first run of a process, which may have to compile."""


class Worker:
    """Runs functions in a process of its own; a new one where it has to be ended."""

    def __init__(self, warm_up: Callable[[], Any], *, compiled: bool = True, limit_s: float = LIMIT_S) -> None:
        self.warm_up, self.compiled, self.limit_s = warm_up, compiled, limit_s
        self._process: Any = None
        self._pipe: Any = None

    def ask(self, function: Callable[..., Any], *args: Any, limit_s: float | None = None) -> Any:
        """The answer of `function(*args)`; TimeoutError where none comes, RuntimeError where the process dies."""
        if self._process is None or not self._process.is_alive():
            self._start()
            self._answer(self.warm_up, (), FIRST_S)
        return self._answer(function, args, limit_s or self.limit_s)

    def _answer(self, function: Callable[..., Any], args: tuple[Any, ...], allowed: float) -> Any:
        self._pipe.send((function, args))
        used_s, clock = self._cpu_s(), time.monotonic()
        while not self._pipe.poll(0.5):
            if self._cpu_s() - used_s > allowed or time.monotonic() - clock > BUSY * allowed:
                self.close()
                raise TimeoutError(f"no answer after {allowed:.0f} s")
        try:
            answer, error = self._pipe.recv()
        except EOFError:  # A pipe whose other end has gone is ready, too.
            self._process.join()
            code = self._process.exitcode
            self.close()
            raise RuntimeError(f"its process died with exit code {code}") from None
        if error is not None:
            raise error
        return answer

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        before = os.environ.get("GNOMON_JIT")
        os.environ["GNOMON_JIT"] = "1" if self.compiled else "0"
        try:
            self._process = context.Process(target=_serve, args=(other,), daemon=True)
            self._process.start()
        finally:
            if before is None:
                del os.environ["GNOMON_JIT"]
            else:
                os.environ["GNOMON_JIT"] = before
        other.close()

    def _cpu_s(self) -> float:
        try:
            with open(f"/proc/{self._process.pid}/stat", encoding="ascii") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return 0.0  # Where nobody tells, the clock alone counts.

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process = None


def _serve(pipe: Any) -> None:
    while True:
        try:
            function, args = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send((function(*args), None))
        except Exception as error:
            pipe.send((None, RuntimeError(f"{type(error).__name__}: {error}")))
