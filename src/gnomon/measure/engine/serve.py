"""The engine's loop: requests arrive on the clock whether or not the engine keeps up (open loop)."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from gnomon.measure.engine.load import Workload
from gnomon.measure.engine.runner import Flight, Iteration, Prepared, Runner
from gnomon.measure.engine.scheduler import Batch, Request, Scheduler
from gnomon.measure.engine.shape import EngineConfig


@dataclass(frozen=True)
class Step:
    """One iteration on the run's clock, from the end of the one before (or an arrival) to its tokens."""

    start_s: float
    end_s: float
    iteration: Iteration


@dataclass(frozen=True)
class Served:
    requests: list[Request]
    steps: list[Step]


def make_requests(workload: Workload, vocab_size: int, config: EngineConfig, seed: int = 0) -> list[Request]:
    """Requests with random prompts; one that is too long for the engine is an error."""
    if not len(workload):
        raise ValueError("the load has no requests: raise the rate or the duration")
    rng = np.random.default_rng(seed)
    requests = []
    for index, (arrived, prompt, output) in enumerate(
        zip(workload.arrived_s, workload.prompt_tokens, workload.output_tokens, strict=True)
    ):
        if prompt + output > config.max_model_len:
            raise ValueError(f"request {index} has {prompt + output} tokens; max_model_len is {config.max_model_len}")
        requests.append(Request(index, arrived, rng.integers(0, vocab_size, prompt, np.int32), output))
    return requests


def serve(runner: Runner, requests: list[Request], clock: Callable[[], float] = time.perf_counter) -> Served:
    """Serve `requests` (ascending arrivals) to the end."""
    gc.collect()
    gc.disable()  # A collection of a large heap would stall an iteration by milliseconds.
    try:
        return Served(requests, _loop(runner, requests, clock))
    finally:
        gc.enable()


class _Arrivals:
    """Requests that come in on the clock, in order."""

    def __init__(self, requests: list[Request]) -> None:
        self._requests, self._next = requests, 0

    @property
    def next_s(self) -> float:
        return self._requests[self._next].arrived_s if self._next < len(self._requests) else math.inf

    def until(self, now_s: float) -> Iterator[Request]:
        while self.next_s <= now_s:
            self._next += 1
            yield self._requests[self._next - 1]


def _loop(runner: Runner, requests: list[Request], clock: Callable[[], float]) -> list[Step]:
    """Between the end of one iteration and the launch of the next stands only what cannot be done while the GPU works.

    Tokens are booked, the next batch is planned and prepared, and whoever arrives is admitted to it during an
    iteration: what is planned then is what would be planned at its end, since nothing else changes until then.
    """
    scheduler, arrivals = Scheduler(runner.config, runner.num_blocks, runner.tables), _Arrivals(requests)
    steps: list[Step] = []
    begun = clock()
    batch, now = scheduler.plan(), 0.0
    prepared: Prepared | None = None
    landed: tuple[Batch, Prepared, Flight, float, float] | None = None

    def admit(to: Batch, ready: Prepared | None, now_s: float) -> Prepared | None:
        for request in arrivals.until(now_s):
            scheduler.add(request)
        if scheduler.waiting and scheduler.admit(to, now_s):
            return runner.extend(ready, to) if ready else runner.prepare(to)
        return ready

    while True:
        prepared = admit(batch, prepared, now)
        flight = runner.launch(prepared) if prepared else None
        if landed:
            steps.append(_booked(scheduler, *landed))
            landed = None
        if prepared is None or flight is None:
            if scheduler.waiting:
                raise RuntimeError(f"request {scheduler.waiting[0].index} needs more KV blocks than there are")
            if arrivals.next_s == math.inf:
                return steps
            _sleep_until(begun + arrivals.next_s, clock)
            now = clock() - begun
            continue
        scheduler.advance(batch)
        following = scheduler.plan()
        ahead = runner.prepare(following) if following.requests else None
        while not flight.has_landed():
            if arrivals.next_s <= (instant := clock() - begun):
                ahead = admit(following, ahead, instant)
        end = clock() - begun
        landed = (batch, prepared, flight, now, end)
        batch, prepared, now = following, ahead, end


def _booked(
    scheduler: Scheduler, batch: Batch, prepared: Prepared, flight: Flight, start_s: float, end_s: float
) -> Step:
    """Hand out the tokens of an iteration."""
    scheduler.stamp(batch, flight.sampled[: len(batch.requests)].tolist(), end_s)
    return Step(start_s, end_s, replace(prepared.iteration, launch_s=flight.launch_s, gpu_s=flight.gpu_s()))


def _sleep_until(instant: float, clock: Callable[[], float]) -> None:
    """Sleep through most of the time and watch the clock for the last of it: sleeping alone is late by 0.1 ms."""
    while (left := instant - clock()) > 0:
        if left > 2e-3:
            time.sleep(left - 1e-3)
