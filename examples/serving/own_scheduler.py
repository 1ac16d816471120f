"""A scheduler of one's own with Gnomon as its clock: shortest prompt first against first come, first served.

python examples/serving/own_scheduler.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import gnomon
from gnomon.api.time import StepTimer

MAX_RUNNING, CHUNK = 64, 2048


@dataclass
class Request:
    arrival_s: float
    prompt: int
    output: int
    computed: int = 0
    produced: int = 0
    first_s: float = -1.0


def serve(requests: list[Request], order: Callable[[Request], float], step: StepTimer) -> float:
    """Mean time to the first token when waiting prompts are taken in this order."""
    now, waiting, running = 0.0, [], []
    coming = sorted(requests, key=lambda one: one.arrival_s)
    while coming or waiting or running:
        while coming and coming[0].arrival_s <= now:
            waiting.append(coming.pop(0))
        if not waiting and not running:
            now = coming[0].arrival_s
            continue
        waiting.sort(key=order)
        room, prefills = CHUNK, []
        decoding = [one for one in running if one.produced]
        for one in [one for one in running if not one.produced]:
            prefills.append((one, min(room, one.prompt - one.computed)))
            room -= prefills[-1][1]
        while waiting and room > 0 and len(running) < MAX_RUNNING:
            one = waiting.pop(0)
            running.append(one)
            prefills.append((one, min(room, one.prompt)))
            room -= prefills[-1][1]
        parts = [(one, tokens) for one, tokens in prefills if tokens > 0]
        now += step(
            prefills=[(tokens, one.computed) for one, tokens in parts],
            decodes=[one.prompt + one.produced for one in decoding],
        )
        for one, tokens in parts:
            one.computed += tokens
            if one.computed == one.prompt:
                one.produced, one.first_s = 1, now
        for one in decoding:
            one.produced += 1
        running = [one for one in running if one.produced < one.output]
    return float(np.mean([one.first_s - one.arrival_s for one in requests]))


def drawn(count: int, rate: float) -> list[Request]:
    random = np.random.default_rng(0)
    arrivals = np.cumsum(random.exponential(1 / rate, count))
    prompts = np.clip(random.lognormal(6.5, 1.0, count), 8, 6000).astype(int)
    return [Request(float(at), int(n), int(random.integers(2, 120))) for at, n in zip(arrivals, prompts, strict=True)]


def main() -> None:
    step = gnomon.step_timer(model="llama-3-8b", device="h100")
    for name, order in (("first come", lambda one: one.arrival_s), ("shortest prompt", lambda one: one.prompt)):
        print(f"{name}: {serve(drawn(400, 24.0), order, step):.3f} s to the first token")


if __name__ == "__main__":
    main()
