"""Clusters and requests for training: drawn from a domain, or those of one scenario."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.config import build
from gnomon.core.errors import ConfigError
from gnomon.core.streams import stream
from gnomon.routing.domain import DomainConfig, Episode
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.pool import Pool
from gnomon.serving.scenario.pools import bake, policies_of, resolve
from gnomon.timing.iteration import IterationTables
from gnomon.timing.lookup import Shape, iteration_s
from gnomon.workload import Requests, generate
from gnomon.workload.config import SessionsConfig, WorkloadConfig
from gnomon.workload.lengths import tokens
from gnomon.workload.requests import Profile, limit_lengths
from gnomon.workload.sessions import with_sessions

TRAINING_SHARE = 0.7  # Of a trace, by requests.


def training_requests(workload: WorkloadConfig, count: int, seed: int) -> Requests:
    if not _is_recorded(workload):
        return generate(workload.model_copy(update={"num_requests": count}), seed)
    whole = _recorded(workload)
    return _window(whole, 0, max(1, int(TRAINING_SHARE * len(whole))), count, seed)


def held_out_requests(workload: WorkloadConfig, seed: int) -> Requests:
    """The requests of a comparison. Of a trace, `num_requests` of its last part; all of that part unless given."""
    if not _is_recorded(workload):
        return generate(workload, seed)
    whole = _recorded(workload)
    first = min(len(whole) - 1, int(TRAINING_SHARE * len(whole)))
    return _window(whole, first, len(whole) - first, workload.num_requests or len(whole) - first, seed)


def _is_recorded(workload: WorkloadConfig) -> bool:
    return "trace" in (workload.arrivals.process, workload.lengths.distribution)


@lru_cache(maxsize=8)
def _recorded(workload: WorkloadConfig) -> Requests:
    return generate(workload.model_copy(update={"num_requests": None}), 0)


def _window(whole: Requests, first: int, length: int, count: int, seed: int) -> Requests:
    """`count` requests of the part [first, first + length), from a place that the seed chooses; where the part is too
    short it begins anew, after a mean gap."""
    start = int(stream(seed, "window of a trace").integers(length))
    places = start + np.arange(count)
    index, rounds = first + places % length, places // length
    times = whole.arrival_s[first : first + length]
    span_s = float(times[-1] - times[0]) * length / max(1, length - 1)
    found = replace(whole, shape=None, num_rejected=0, notes=()).take(index)
    arrival_s = times[places % length] + rounds * span_s
    return replace(found, arrival_s=arrival_s - arrival_s[0])


NUM_TROUBLES = 2  # At most, of a trace.
BLOCK_TOKENS = 16
CACHED_BLOCKS, SESSION_TOKENS, SESSION_SEQUENCES = 4096, 4096, 64
"""KV blocks, longest request and batch cap of a replica with a prefix cache: small, because every training cluster
keeps its own cache."""


@lru_cache(maxsize=8)
def _pools_and_tables(domain: DomainConfig) -> tuple[list[Pool], IterationTables]:
    """Every pool that the domain may draw, by device, then by slowdown; one row of the tables each."""
    written = [
        {"device": device, "timing": {"source": domain.source, "scale": slowdown}}
        for device in domain.devices
        for slowdown in domain.slowdowns
    ]
    batching = {"max_sequences": max(domain.max_sequences), "max_batch_tokens": max(domain.max_batch_tokens)}
    scenario = build(Scenario, {"model": domain.model, "engine": "none", "pools": written, "batching": batching})
    pools = resolve(scenario)
    count = max(domain.max_sequences)  # As many as a batch may hold.
    longest = _requests(np.full(count, domain.max_tokens - 1), np.ones(count))
    return pools, bake(domain.model, pools, longest).tables


class RandomTraffic:
    """Clusters and requests drawn from a domain."""

    def __init__(self, domain: DomainConfig) -> None:
        self.domain, self.policies = domain, ["vllm_v1"]
        self._pools, self.tables = _pools_and_tables(domain)
        self.max_replicas, self.max_stages = domain.num_replicas[1], 1
        self.max_running = self.max_in_batch = max(domain.max_sequences)
        self.max_warm_up = domain.warm_up[1]
        self.block_size = BLOCK_TOKENS
        self.cached_blocks = CACHED_BLOCKS if domain.session_share else 0
        self.blocks_per_request = SESSION_TOKENS // BLOCK_TOKENS + 2

    def draw(self, num_decisions: int, random: np.random.Generator) -> Episode:
        domain = self.domain
        warm_up = int(random.integers(*domain.warm_up, endpoint=True))
        has_sessions = random.random() < domain.session_share
        pools = self._replicas(has_sessions, random)
        requests = _lengths(domain, warm_up + num_decisions, has_sessions, random)
        prompt, output = float(requests.prompt_tokens.mean()), float(requests.output_tokens.mean())
        capacity = total_capacity_per_s(self.tables, pools, prompt, output)
        times = _arrivals(domain, len(requests), random.uniform(*domain.load) * capacity, random)
        requests = replace(requests, arrival_s=times)
        if has_sessions:
            requests = _in_sessions(requests, random)
        alone_s = least_alone_s(self.tables, pools, prompt, output)
        return Episode(pools, requests, warm_up, alone_s, _troubles(domain, len(pools), requests.arrival_s, random))

    def _replicas(self, has_sessions: bool, random: np.random.Generator) -> list[tuple[Pool, int]]:
        domain = self.domain
        count = int(random.integers(*domain.num_replicas, endpoint=True))
        device = int(random.integers(len(domain.devices)))
        cap, budget = int(random.choice(domain.max_sequences)), int(random.choice(domain.max_batch_tokens))
        if has_sessions:
            cap = min(cap, SESSION_SEQUENCES)
        slowdowns = np.zeros(count, int)
        if random.random() < domain.unequal_share:
            slowdowns = random.integers(0, len(domain.slowdowns), count)
        custom = {"max_sequences": cap, "max_batch_tokens": budget, "prefix_cache": has_sessions}
        drawn = []
        for slowdown in slowdowns:
            row = device * len(domain.slowdowns) + int(slowdown)
            pool = self._pools[row]
            blocks = min(pool.num_kv_blocks, CACHED_BLOCKS) if has_sessions else pool.num_kv_blocks
            batching = pool.batching.model_copy(update=custom)
            replica = pool.replica.model_copy(update={"num_kv_blocks": blocks})
            drawn.append((replace(pool, num_replicas=1, given_batching=batching, replica=replica), row))
        return drawn


class ScenarioTraffic:
    """The fleet of one scenario, with requests drawn anew for every episode, or windows of the first part of its trace.
    The first tenth is warm-up."""

    def __init__(self, scenario: Scenario, num_decisions: int) -> None:
        pools = resolve(scenario)
        self.scenario, self.policies = scenario, policies_of(pools)
        self.max_warm_up = max(1, num_decisions // 10)
        sample = training_requests(scenario.workload, num_decisions + 2 * self.max_warm_up, scenario.seed)
        if sample.concurrency or not np.isfinite(sample.arrival_s).all():
            raise ConfigError("a router is trained on an open loop.", where="workload.arrivals", fix="Give it a rate.")
        sample = replace(sample, output_tokens=np.full_like(sample.output_tokens, sample.output_tokens.max()))
        self.tables = bake(scenario.model, pools, sample).tables
        rows = np.cumsum([0, *(pool.replica.pipeline_parallel for pool in pools)])
        self._pools = [
            (pool, int(row)) for row, pool in zip(rows, pools, strict=False) for _ in range(pool.num_replicas)
        ]
        self.max_replicas = sum(pool.num_ranks for pool in pools)
        self.max_stages = max(pool.replica.pipeline_parallel for pool in pools)
        self.max_running = max(pool.max_running for pool in pools)
        self.max_in_batch = max(pool.max_in_batch for pool in pools)
        self.cached_blocks = max((pool.num_kv_blocks for pool in pools if pool.batching.prefix_cache), default=0)
        self._longest = int(sample.total_tokens.max())
        sizes = [pool.batching.block_size for pool in pools]
        self.block_size, self.blocks_per_request = max(sizes), self._longest // min(sizes) + 2

    def draw(self, num_decisions: int, random: np.random.Generator) -> Episode:
        """The scenario's cluster, with `num_decisions` arrivals after its warm-up."""
        seed = int(random.integers(2**31))
        requests = training_requests(self.scenario.workload, num_decisions + self.max_warm_up, seed)
        requests = limit_lengths(requests, self._longest, "truncate")
        prompt, output = float(requests.prompt_tokens.mean()), float(requests.output_tokens.mean())
        alone = least_alone_s(self.tables, self._pools, prompt, output)
        pools = [(replace(pool, num_replicas=1), row) for pool, row in self._pools]
        return Episode(pools, requests, self.max_warm_up, alone)


def _log_uniform(random: np.random.Generator, between: tuple[float, float]) -> float:
    return float(np.exp(random.uniform(*np.log(between))))


def _lengths(domain: DomainConfig, count: int, has_sessions: bool, random: np.random.Generator) -> Requests:
    sigma = random.uniform(*domain.sigma, 2)
    prompt = _log_uniform(random, domain.prompt_median) * np.exp(sigma[0] * random.standard_normal(count))
    output = _log_uniform(random, domain.output_median) * np.exp(sigma[1] * random.standard_normal(count))
    if has_sessions:
        prompt, output = np.minimum(prompt, 512), np.minimum(output, 512)
    elif random.random() < domain.long_traces:
        is_long = random.random(count) < random.uniform(*domain.long_share)
        low, high = np.sort(random.uniform(*domain.long_prompt, 2))
        prompt = np.where(is_long, random.uniform(low, high, count), prompt)
        answer = _log_uniform(random, domain.long_output_median) * np.exp(sigma[1] * random.standard_normal(count))
        output = np.where(is_long, answer, output)
    return limit_lengths(_requests(prompt, output), domain.max_tokens, "truncate")


def _requests(prompt: Any, output: Any) -> Requests:
    return Requests(np.zeros(len(prompt)), tokens(prompt), tokens(output))


def _arrivals(domain: DomainConfig, count: int, rate: float, random: np.random.Generator) -> Floats:
    """Gamma gaps at a mean rate; in some traces the rate triples for a tenth of the time."""
    shape = _log_uniform(random, domain.cv) ** -2
    times = np.cumsum(random.gamma(shape, 1 / (shape * rate), count))
    if random.random() < domain.spike_share:
        span = float(times[-1])
        before, spike = span * random.uniform(0.2, 0.7), 0.1 * span
        profile = Profile(np.array([before, spike, span - before - spike]), np.array([1.0, 3.0, 1.0]))
        times = profile.warp(times)
    return times


def _troubles(domain: DomainConfig, num_replicas: int, arrival_s: Floats, random: np.random.Generator) -> Floats:
    """A replica that becomes slower for a while, and one that stops: an iteration of it takes 20 to 130 times as
    long."""
    found, last = np.zeros((NUM_TROUBLES, 4)), float(arrival_s[-1])
    if random.random() < domain.straggler_share:
        begin, length = random.uniform(0.0, 0.8) * last, random.uniform(0.1, 0.6) * last
        found[0] = begin, begin + length, random.integers(num_replicas), _log_uniform(random, (1.3, 4.0)) - 1.0
    if random.random() < domain.hang_share:
        at = int(random.integers(len(arrival_s) - 4))
        found[1] = arrival_s[at], arrival_s[at + 3], random.integers(num_replicas), random.uniform(20.0, 130.0)
    return found


def _in_sessions(requests: Requests, random: np.random.Generator) -> Requests:
    config = SessionsConfig(
        num_active=int(random.integers(8, 64)),
        turns=int(random.integers(2, 8)),
        shared_prefix_tokens=int(random.choice([0, 256, 1024])),
        num_shared_prefixes=int(random.integers(1, 8)),
        block_tokens=BLOCK_TOKENS,
    )
    talking = with_sessions(requests, config, int(random.integers(2**31)))
    return limit_lengths(talking, SESSION_TOKENS, "truncate")


# How much a replica can take.
def _iteration_s(
    tables: IterationTables, row: int, prefill: float, decodes: int, kv: float, num_stages: int = 1
) -> float:
    count = min(int(prefill) + decodes, tables.token_s.shape[1] - 1)
    sequences = min(decodes + (prefill > 0), tables.sequence_s.shape[1] - 1)
    shape = Shape(count, sequences, float(prefill) ** 2, 0.0, decodes, decodes * kv, kv, decodes, 0.0)
    return float(iteration_s(tables, row, num_stages, shape, count))


def capacity_per_s(tables: IterationTables, row: int, pool: Pool, prompt: float, output: float) -> float:
    """Requests per second that a replica can serve: full batches in which as many start as finish."""
    kv = prompt + output / 2
    room = pool.num_kv_blocks * pool.batching.block_size / (prompt + output)
    batch = max(1, int(min(pool.max_in_batch, room)))
    chunk = min(batch * prompt / output, pool.token_budget)
    return min(batch / output, chunk / prompt) / _iteration_s(tables, row, chunk, batch, kv)


def alone_s(tables: IterationTables, row: int, pool: Pool, prompt: float, output: float) -> float:
    """Latency of a request that has a replica for itself."""
    chunk = min(prompt, pool.token_budget)
    stages = pool.replica.pipeline_parallel
    prefill = prompt / chunk * _iteration_s(tables, row, chunk, 0, 0.0, stages)
    return prefill + output * _iteration_s(tables, row, 0, 1, prompt, stages)


def least_alone_s(tables: IterationTables, pools: list[tuple[Pool, int]], prompt: float, output: float) -> float:
    """`alone_s` on the fastest of some replicas."""
    pool_of_row = {row: pool for pool, row in pools}
    return min(alone_s(tables, row, pool, prompt, output) for row, pool in pool_of_row.items())


def total_capacity_per_s(tables: IterationTables, pools: list[tuple[Pool, int]], prompt: float, output: float) -> float:
    each = {row: capacity_per_s(tables, row, pool, prompt, output) for row, pool in {r: k for k, r in pools}.items()}
    return sum(each[row] for _, row in pools)
