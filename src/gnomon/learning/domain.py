"""What the router is trained on: clusters and traffic drawn at random, so that it learns more than one scenario."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from gnomon import catalog
from gnomon.core.config import Config, build
from gnomon.serving.kinds import Kind, bake, resolve
from gnomon.serving.scenario import Scenario
from gnomon.serving.state import Floats
from gnomon.timing.lookup import Shape, stage_s, with_host_s
from gnomon.timing.tables import IterationTables
from gnomon.workload import Requests
from gnomon.workload.config import SessionsConfig
from gnomon.workload.lengths import tokens
from gnomon.workload.requests import Profile, limit_lengths
from gnomon.workload.sessions import with_sessions

Share = Annotated[float, Field(ge=0, le=1)]
Between = tuple[PositiveFloat, PositiveFloat]


class DomainConfig(Config):
    """Ranges that every training cluster and its traffic are drawn from."""

    model: str = "llama-3-8b"
    """Model that all replicas serve."""
    devices: tuple[str, ...] = ("h100", "a100-80gb")
    """GPUs; all replicas of a cluster are on one of them, unless their speeds differ."""
    num_replicas: tuple[PositiveInt, PositiveInt] = (2, 8)
    """Fewest and most replicas."""
    slowdowns: tuple[PositiveFloat, ...] = (1.0, 1.5, 2.0, 3.0)
    """How much slower than its device a replica of an unequal cluster may be."""
    unequal_share: Share = 0.4
    """Share of the clusters whose replicas differ in speed."""
    max_sequences: tuple[PositiveInt, ...] = (32, 64, 128, 256)
    """Batch caps."""
    max_batch_tokens: tuple[PositiveInt, ...] = (2048, 8192)
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
    session_share: Share = 0.15
    """Share of the traces that are conversations with a prefix cache."""
    max_tokens: PositiveInt = 16384
    """Most tokens of a request."""
    warm_up: tuple[PositiveInt, PositiveInt] = (50, 300)
    """Arrivals before the first decision, routed by some rule, so that clusters are not empty."""

    @model_validator(mode="after")
    def _ordered(self) -> DomainConfig:
        for name in ("num_replicas", "load", "cv", "prompt_median", "output_median", "sigma", "long_share", "warm_up"):
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
    slo_ttft_s: PositiveFloat | None = None
    """integral: a time to the first token ..."""
    slo_weight: NonNegativeFloat = 0.0
    """... and the penalty for each request that misses it."""
    throughput_weight: NonNegativeFloat = 0.2
    """delta, instant, hybrid: weight of the requests finished since the last decision."""
    balance_penalty: NonNegativeFloat = 0.3
    """delta, instant, hybrid: weight of the spread (coefficient of variation) of requests over the replicas."""


@dataclass(frozen=True, eq=False)
class Hardware:
    """The kinds of replica of a domain, with their times in one set of tables."""

    kinds: list[Kind]
    """By device, then by slowdown."""
    tables: IterationTables
    num_slowdowns: int

    def row(self, device: int, slowdown: int) -> int:
        """The kind, and with it the row of the tables, of a device at one of the slowdowns."""
        return device * self.num_slowdowns + slowdown


MAX_CACHED_BLOCKS = 4096
"""KV blocks of a replica with a prefix cache: few, because every training cluster keeps its own."""
SESSION_TOKENS = 4096
"""Longest conversation."""


@lru_cache(maxsize=8)
def hardware(domain: DomainConfig) -> Hardware:
    """Resolve and bake every kind of replica that the domain may draw."""
    pools = [
        {"device": device, "timing": {"scale": slowdown}} for device in domain.devices for slowdown in domain.slowdowns
    ]
    batching = {"max_sequences": max(domain.max_sequences), "max_batch_tokens": max(domain.max_batch_tokens)}
    scenario = build(Scenario, {"model": domain.model, "pools": pools, "batching": batching})
    kinds = resolve(scenario, catalog.model(domain.model))
    longest = _requests(np.zeros(2), np.full(2, domain.max_tokens - 1), np.ones(2))
    longest = replace(longest, arrival_s=np.zeros(2))
    many = longest.take(np.zeros(max(domain.max_sequences), np.int64))  # As many as a batch may hold.
    return Hardware(kinds, bake(domain.model, kinds, many).tables, len(domain.slowdowns))


@dataclass(frozen=True, eq=False)
class Episode:
    """One cluster and its traffic."""

    kinds: list[tuple[Kind, int]]
    """The kind of every replica and its row of the tables."""
    requests: Requests
    warm_up: int
    """Arrivals before the first decision."""
    alone_s: float
    """Latency of the mean request alone on the fastest replica: the unit of rewards."""


def draw_episode(domain: DomainConfig, num_decisions: int, random: np.random.Generator) -> Episode:
    """Draw a cluster and traffic for it, `num_decisions` arrivals after the warm-up."""
    made = hardware(domain)
    warm_up = int(random.integers(*domain.warm_up, endpoint=True))
    has_sessions = random.random() < domain.session_share
    kinds = _draw_replicas(domain, made, has_sessions, random)
    count = warm_up + num_decisions
    requests = _draw_lengths(domain, count, has_sessions, random)
    mean_prompt, mean_output = float(requests.prompt_tokens.mean()), float(requests.output_tokens.mean())
    capacity = sum(capacity_per_s(made.tables, row, kind, mean_prompt, mean_output) for kind, row in kinds)
    load = random.uniform(*domain.load)
    requests = replace(requests, arrival_s=_draw_arrivals(domain, count, load * capacity, random))
    if has_sessions:
        requests = _in_sessions(requests, random)
    alone = min(_alone_s(made.tables, row, kind, mean_prompt, mean_output) for kind, row in kinds)
    return Episode(kinds, requests, warm_up, alone)


def _draw_replicas(
    domain: DomainConfig, made: Hardware, has_sessions: bool, random: np.random.Generator
) -> list[tuple[Kind, int]]:
    count = int(random.integers(*domain.num_replicas, endpoint=True))
    device = int(random.integers(len(domain.devices)))
    cap, budget = int(random.choice(domain.max_sequences)), int(random.choice(domain.max_batch_tokens))
    slowdowns = np.zeros(count, int)
    if random.random() < domain.unequal_share:
        slowdowns = random.integers(0, len(domain.slowdowns), count)
    drawn = []
    for slowdown in slowdowns:
        row = made.row(device, int(slowdown))
        kind = made.kinds[row]
        batching = kind.batching.model_copy(
            update={"max_sequences": cap, "max_batch_tokens": budget, "prefix_cache": has_sessions}
        )
        blocks = min(kind.num_kv_blocks, MAX_CACHED_BLOCKS) if has_sessions else kind.num_kv_blocks
        drawn.append((replace(kind, num_replicas=1, batching=batching, num_kv_blocks=blocks), row))
    return drawn


def _log_uniform(random: np.random.Generator, between: tuple[float, float]) -> float:
    return float(np.exp(random.uniform(*np.log(between))))


def _draw_lengths(domain: DomainConfig, count: int, has_sessions: bool, random: np.random.Generator) -> Requests:
    sigma = random.uniform(*domain.sigma, 2)
    prompt = _log_uniform(random, domain.prompt_median) * np.exp(sigma[0] * random.standard_normal(count))
    output = _log_uniform(random, domain.output_median) * np.exp(sigma[1] * random.standard_normal(count))
    if has_sessions:
        prompt, output = np.minimum(prompt, 512), np.minimum(output, 512)
    elif random.random() < domain.long_traces:
        is_long = random.random(count) < random.uniform(*domain.long_share)
        low, high = np.sort(random.uniform(*domain.long_prompt, 2))
        prompt = np.where(is_long, random.uniform(low, high, count), prompt)
    return limit_lengths(_requests(np.zeros(count), prompt, output), domain.max_tokens, "truncate")


def _requests(arrival_s: Floats, prompt: Any, output: Any) -> Requests:
    count = len(arrival_s)
    return Requests(
        arrival_s=arrival_s,
        prompt_tokens=tokens(prompt),
        output_tokens=tokens(output),
        session=np.full(count, -1, np.int32),
        priority=np.zeros(count, np.int8),
        prefix_offsets=np.zeros(count + 1, np.int64),
        prefix_hashes=np.zeros(0, np.int64),
    )


def _draw_arrivals(domain: DomainConfig, count: int, rate: float, random: np.random.Generator) -> Floats:
    """Gamma gaps at a mean rate; in some traces the rate triples for a tenth of the time."""
    shape = _log_uniform(random, domain.cv) ** -2
    times = np.cumsum(random.gamma(shape, 1 / (shape * rate), count))
    if random.random() < domain.spike_share:
        span = float(times[-1])
        before, spike = span * random.uniform(0.2, 0.7), 0.1 * span
        profile = Profile(np.array([before, spike, span - before - spike]), np.array([1.0, 3.0, 1.0]))
        times = profile.warp(times)
    return times


def _in_sessions(requests: Requests, random: np.random.Generator) -> Requests:
    config = SessionsConfig(
        num_active=int(random.integers(8, 64)),
        turns=int(random.integers(2, 8)),
        shared_prefix_tokens=int(random.choice([0, 256, 1024])),
        num_shared_prefixes=int(random.integers(1, 8)),
    )
    talking = with_sessions(requests, config, int(random.integers(2**31)))
    return limit_lengths(talking, SESSION_TOKENS, "truncate")


def _iteration_s(tables: IterationTables, row: int, prefill: float, decodes: int, kv: float) -> float:
    count = min(int(prefill) + decodes, tables.token_s.shape[1] - 1)
    sequences = min(decodes + (prefill > 0), tables.sequence_s.shape[1] - 1)
    seconds = stage_s(tables, row, Shape(count, sequences, float(prefill) ** 2, 0.0, decodes, decodes * kv, kv), count)
    return float(with_host_s(tables, row, seconds, sequences))


def capacity_per_s(tables: IterationTables, row: int, kind: Kind, prompt: float, output: float) -> float:
    """Requests per second that a replica can serve: full batches in which as many start as finish."""
    kv = prompt + output / 2
    room = kind.num_kv_blocks * (kind.batching.block_size or 1) / (prompt + output)
    batch = max(1, int(min(kind.max_in_batch, room)))
    chunk = min(batch * prompt / output, float(kind.batching.max_batch_tokens or 1))
    return min(batch / output, chunk / prompt) / _iteration_s(tables, row, chunk, batch, kv)


def _alone_s(tables: IterationTables, row: int, kind: Kind, prompt: float, output: float) -> float:
    chunk = min(prompt, float(kind.batching.max_batch_tokens or 1))
    return prompt / chunk * _iteration_s(tables, row, chunk, 0, 0.0) + output * _iteration_s(tables, row, 0, 1, prompt)
