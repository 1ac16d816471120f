"""What the router is trained on, and what for: ranges of clusters and traffic, and the reward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from gnomon.core.arrays import Floats
from gnomon.core.config import Config
from gnomon.serving.scenario.pool import Pool
from gnomon.timing.iteration import IterationTables
from gnomon.workload import Requests

Share = Annotated[float, Field(ge=0, le=1)]
Between = tuple[PositiveFloat, PositiveFloat]


class DomainConfig(Config):
    """Ranges that every training cluster and its traffic are drawn from."""

    model: str = "llama-3-8b"
    """Model that all replicas serve."""
    devices: Annotated[tuple[str, ...], Field(min_length=1)] = ("h100", "a100-80gb")
    """GPUs; all replicas of a cluster are on one of them, unless their speeds differ."""
    source: str = "roofline"
    """Where iteration times come from (`timing.source`), so that a policy does not depend on what is installed."""
    num_replicas: tuple[PositiveInt, PositiveInt] = (2, 8)
    """Fewest and most replicas."""
    slowdowns: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] = (1.0, 1.5, 2.0, 3.0)
    """How much slower than its device a replica of an unequal cluster may be."""
    unequal_share: Share = 0.4
    """Share of the clusters whose replicas differ in speed."""
    max_sequences: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (32, 64, 128, 256)
    """Batch caps."""
    max_batch_tokens: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (2048, 8192)
    """Token budgets of an iteration."""
    load: tuple[PositiveFloat, PositiveFloat] = (0.5, 0.95)
    """Least and most offered load, as a share of what the cluster can serve."""
    cv: tuple[PositiveFloat, PositiveFloat] = (1.0, 4.0)
    """Coefficient of variation of the gaps between arrivals: 1 is Poisson, 4 very bursty."""
    spike_share: Share = 0.15
    """Share of the traces in which the rate triples for a while."""
    prompt_median: Between = (100.0, 1500.0)
    """Range of median prompt tokens."""
    output_median: Between = (50.0, 300.0)
    """Range of median output tokens."""
    sigma: Between = (0.2, 1.2)
    """Range of the spread of lengths: the standard deviation of their logarithms."""
    long_share: tuple[NonNegativeFloat, NonNegativeFloat] = (0.02, 0.2)
    """Share of long prompts, in the traces that have some."""
    long_traces: Share = 0.5
    """Share of the traces with long prompts among ordinary ones."""
    long_prompt: tuple[PositiveInt, PositiveInt] = (3000, 12000)
    """Range of long prompts, in tokens."""
    long_output_median: Between = (10.0, 200.0)
    """Range of median output tokens after long prompts: summaries are short, reports are not."""
    session_share: Share = 0.15
    """Share of the traces that are conversations with a prefix cache."""
    straggler_share: Share = 0.25
    """Share of the traces in which a replica becomes 1.3 to 4 times slower for a while."""
    hang_share: Share = 0.15
    """Share of the traces in which a replica stops for seconds and nobody notices, as where one has died."""
    max_tokens: PositiveInt = 16384
    """Most tokens of a request."""
    warm_up: tuple[PositiveInt, PositiveInt] = (50, 300)
    """Arrivals before the first decision, routed by some rule, so that clusters are not empty."""

    @model_validator(mode="after")
    def _ordered(self) -> DomainConfig:
        for name in (
            "num_replicas", "load", "cv", "prompt_median", "output_median", "sigma", "long_share", "long_prompt",
            "long_output_median", "warm_up",
        ):  # fmt: skip
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: the range [{low}, {high}] is empty")
        return self


class RewardConfig(Config):
    """What the policy is rewarded for. The default is minus the latency itself; delta, instant and hybrid are kept to
    be compared with it."""

    mode: Literal["integral", "delta", "instant", "hybrid"] = "integral"
    """integral: minus the time-integral of requests in the system between two decisions, which sums to their total
    latency; delta: minus the growth of the backlog; instant: minus the backlog; hybrid: half of each of the two."""
    latency_weight: NonNegativeFloat = 1.0
    """Weight of the latency (integral), or of the backlog (the others)."""
    ttft_weight: NonNegativeFloat = 0.2
    """integral: weight of the time-integral of requests without their first token."""
    tail_weight: NonNegativeFloat = 0.0
    """integral: weight of the squares of the times to the first token, to which the slowest add most: keeps the tail
    short."""
    slo_ttft_s: PositiveFloat | None = None
    """integral: a time to the first token ..."""
    slo_weight: NonNegativeFloat = 0.0
    """... and the penalty for each request that misses it."""
    throughput_weight: NonNegativeFloat = 0.2
    """delta, instant, hybrid: weight of the requests finished since the last decision."""
    balance_penalty: NonNegativeFloat = 0.3
    """delta, instant, hybrid: weight of the spread (coefficient of variation) of requests over the replicas."""


@dataclass(frozen=True, eq=False)
class Episode:
    """One cluster and its traffic."""

    pools: list[tuple[Pool, int]]
    """The pool of every replica and its row of the tables."""
    requests: Requests
    warm_up: int
    """Arrivals before the first decision."""
    alone_s: float
    """Latency of the mean request alone on the fastest replica: the unit of rewards."""
    troubles: Floats = field(default_factory=lambda: np.zeros((0, 4)))
    """[trouble, (from, until, replica, slowdown)]: when a replica is slower, and by which share."""


def filled_up(array: Any, num_replicas: int) -> Any:
    """An array by environment and replica with zeros for replicas that its fleet does not have."""
    more = num_replicas - array.shape[1]
    return np.pad(array, [(0, 0), (0, more), *[(0, 0)] * (array.ndim - 2)]) if more else array


class Traffic(Protocol):
    """Where the clusters of an environment and their requests come from, and how much room they need."""

    tables: IterationTables
    policies: list[str]
    """Batching policies, in the order in which replicas refer to them."""
    max_replicas: int
    """Data-parallel ranks counted as replicas."""
    max_stages: int
    max_running: int
    max_in_batch: int
    max_warm_up: int
    block_size: int
    """Tokens per KV block, at most."""
    cached_blocks: int
    """Blocks of the largest prefix cache; 0 for none."""
    blocks_per_request: int

    def draw(self, num_decisions: int, random: np.random.Generator) -> Episode: ...
