"""Requests for the engine: arrivals and lengths, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Lengths = tuple[tuple[int, float, int], tuple[int, float, int]]
"""Of prompts and of outputs, log-normal: median, spread (sigma of the logarithm), and cap."""
MIXES: dict[str, Lengths] = {
    "chat": ((160, 0.7, 1500), (180, 0.6, 800)),
    "write": ((80, 0.7, 1000), (350, 0.5, 1000)),
    "summary": ((900, 0.5, 3000), (80, 0.6, 300)),
}
"""Shapes of load: prompts and outputs alike, short prompts with long outputs, long prompts with short answers."""


@dataclass(frozen=True)
class Workload:
    """Arrival times in seconds, ascending from 0, and lengths in tokens."""

    arrived_s: list[float]
    prompt_tokens: list[int]
    output_tokens: list[int]

    def __len__(self) -> int:
        return len(self.arrived_s)


def poisson(mix: str, rate: float, duration_s: float, seed: int, *, ramp: bool = False) -> Workload:
    """Poisson arrivals at `rate` per second for `duration_s`, lengths of `mix`.

    `ramp`: the rate rises from nothing to `rate` instead, so that one run sees batches of every size.
    """
    rng = np.random.default_rng(seed)
    count = int(rng.poisson(rate * duration_s * (0.5 if ramp else 1.0)))
    arrived = np.sort(rng.uniform(0.0, 1.0, count) ** (0.5 if ramp else 1.0) * duration_s)
    prompts, outputs = draw(MIXES[mix], count, rng)
    return Workload([round(float(t), 6) for t in arrived], prompts, outputs)


def draw(lengths: Lengths, count: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    sides = [(median * np.exp(sigma * rng.standard_normal(count)), most) for median, sigma, most in lengths]
    prompts, outputs = (np.clip(np.rint(drawn), 2, most).astype(int).tolist() for drawn, most in sides)
    return prompts, outputs
