"""Seconds of one call on the GPU: CUDA graph replays between events. The only module that reads a GPU's clock.

In an engine no kernel follows itself. Copies of one kernel in a row overlap at their ends and find their code in the
instruction cache, which makes them up to 1 us faster than they are there. Calls are therefore measured with a small
kernel of another kind before each, and the time of those alone is subtracted, with the gap between two replays.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch

from gnomon.measure.kernels.elementwise import implementation

Call = Callable[[int], None]
"""Run the operator once; the argument counts up, so that the call can rotate among buffers."""


@dataclass(frozen=True)
class Timing:
    """The median of the repeats, and their relative spread (inter-quartile range over median)."""

    seconds: float
    spread: float


Timer = Callable[[Call, float], Timing]
"""Times a call that should take about so many seconds; tests put a formula in its place."""
REPLAY_S = 500e-6  # Length of one timed replay: calls are repeated inside the graph until it is this long.
WARM_S = 4e-3  # Replays before the first timed one, so that clocks and caches settle.
REPEATS, MOST_CALLS = 9, 100  # Timed replays, and the most calls in one graph.
MOST_S = 20e-3  # Slow calls are repeated less often than `REPEATS` to stay within this, but at least three times.
REST_AFTER_S = 15e-3
"""A measurement that kept the GPU busy longer than this is followed by as long a rest: under sustained matrix products
a power-capped GPU lowers its clock within 50 ms (see `sustained`)."""
BETWEEN_SIZE = (8, 4096)
BETWEEN_REPEATS = 25
SHORTEST_S = 1e-7


class GraphTimer:
    """Captures calls into a CUDA graph, a small other kernel before each, and times its replays."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("no CUDA device: profiling needs a GPU (PyTorch sees none)")
        self._x, self._out = (torch.randn(BETWEEN_SIZE, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        self._between_s: dict[int, float] = {}

    def __call__(self, call: Call, expected_s: float) -> Timing:
        calls = max(1, min(MOST_CALLS, math.ceil(REPLAY_S / expected_s)))
        graph = _capture(self._with_between(call), calls)
        once = _replay_s(graph, 1)[0]
        warm = min(50, int(WARM_S / once))
        for _ in range(warm):
            graph.replay()
        repeats = max(3, min(REPEATS, int(MOST_S / once)))
        replays = _replay_s(graph, repeats)
        busy_s = (1 + warm + repeats) * once
        if busy_s > REST_AFTER_S:
            time.sleep(busy_s)
        between_s = self._all_between_s(calls)
        return summarise([max(SHORTEST_S, (seconds - between_s) / calls) for seconds in replays])

    def _between(self) -> None:
        implementation(self._x).norm(self._x, self._x[0], 1e-5, self._out)

    def _with_between(self, call: Call) -> Call:
        def both(index: int) -> None:
            self._between()
            call(index)

        return both

    def _all_between_s(self, calls: int) -> float:
        """Seconds of a replay with nothing but the kernels in between."""
        if calls not in self._between_s:
            graph = _capture(lambda index: self._between(), calls)
            _replay_s(graph, BETWEEN_REPEATS)
            self._between_s[calls] = statistics.median(_replay_s(graph, BETWEEN_REPEATS))
        return self._between_s[calls]


def sustained(call: Call, seconds: float = 1.0) -> float:
    """Time of `call` repeated for `seconds` without a pause, over that of the first 10 ms: the price of a power cap."""
    graph = _capture(call, 8)
    time.sleep(0.3)
    once = _replay_s(graph, 1)[0]
    time.sleep(0.3)
    samples = _replay_s(graph, max(8, int(seconds / once)))
    first = samples[: max(1, int(10e-3 / once))]
    return statistics.median(samples[len(samples) // 2 :]) / statistics.median(first)


def summarise(samples: list[float]) -> Timing:
    median = statistics.median(samples)
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(median, (high - low) / median)


def _capture(call: Call, calls: int) -> torch.cuda.CUDAGraph:
    call(0)  # Compiles kernels and lets cuBLAS choose, outside the capture.
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(calls):
            call(index)
    return graph


def _replay_s(graph: torch.cuda.CUDAGraph, repeats: int) -> list[float]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    events[-1].synchronize()
    return [first.elapsed_time(second) * 1e-3 for first, second in pairwise(events)]
