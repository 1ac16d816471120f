"""The engine's loop: requests arrive on the clock whether or not the engine keeps up (open loop)."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gnomon.engine.load import Workload
from gnomon.engine.runner import Iteration, Prepared, Runner
from gnomon.engine.scheduler import Request, Scheduler
from gnomon.engine.shape import EngineConfig


@dataclass(frozen=True)
class Step:
    """One iteration on the run's clock, from the end of the one before (or an arrival) to its tokens."""

    start_s: float
    end_s: float
    iteration: Iteration


@dataclass(frozen=True)
class Served:
    """A finished run."""

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


def _loop(runner: Runner, requests: list[Request], clock: Callable[[], float]) -> list[Step]:
    scheduler = Scheduler(runner.config, runner.num_blocks, runner.tables)
    steps: list[Step] = []
    arrived, begun = 0, clock()
    batch, now = scheduler.plan(), 0.0
    prepared: Prepared | None = None
    while True:
        while arrived < len(requests) and requests[arrived].arrived_s <= now:
            scheduler.add(requests[arrived])
            arrived += 1
        if scheduler.admit(batch, now):
            prepared = runner.extend(prepared, batch) if prepared else runner.prepare(batch)
        if prepared is None:
            if scheduler.waiting:
                raise RuntimeError(f"request {scheduler.waiting[0].index} needs more KV blocks than there are")
            if arrived == len(requests):
                return steps
            _sleep_until(begun + requests[arrived].arrived_s, clock)
            now = clock() - begun
            continue
        runner.launch(prepared)
        scheduler.advance(batch)  # From here to `finish` the host works while the GPU does.
        following = scheduler.plan()
        ahead = runner.prepare(following) if following.requests else None
        sampled, iteration = runner.finish(prepared)
        end = clock() - begun
        scheduler.stamp(batch, sampled, end)
        steps.append(Step(now, end, iteration))
        batch, prepared, now = following, ahead, end


def _sleep_until(instant: float, clock: Callable[[], float]) -> None:
    """Sleep through most of the time and watch the clock for the last of it: sleeping alone is late by 0.1 ms."""
    while (left := instant - clock()) > 0:
        if left > 2e-3:
            time.sleep(left - 1e-3)
