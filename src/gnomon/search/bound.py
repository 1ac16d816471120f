"""The load that a configuration cannot exceed, from its iteration times alone: no simulation.

Every token passes through every pipeline stage, and a stage does no token faster than in its best batch. What is left
out (waiting, full memory, partly filled batches, host time) only makes the true capacity smaller.
"""

from __future__ import annotations

import numpy as np

from gnomon.serving.deciders import DECIDERS
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.pool import Pool
from gnomon.serving.scenario.pools import accepted, bake, resolve
from gnomon.timing.iteration import IterationTables
from gnomon.workload import Requests


def rate_bound(scenario: Scenario, requests: Requests) -> float:
    """Requests per second that the replicas of a scenario cannot exceed on these requests."""
    pools = resolve(scenario, requests)
    served = accepted(scenario, pools, requests)
    tables = bake(scenario.model, pools, served).tables
    row, rates = 0, dict.fromkeys(("both", "prefill", "decode"), 0.0)
    for pool in pools:
        stages = range(row, row + pool.replica.pipeline_parallel)
        rates[pool.role] += pool.num_ranks / max(_seconds_per_request(pool, tables, stage, served) for stage in stages)
        row += pool.replica.pipeline_parallel
    # Replicas that do both may help either side. Where requests may stay where they decode, prefill replicas only add.
    is_apart = not rates["both"] and DECIDERS.chosen(scenario.disaggregation.decider).always_elsewhere
    return rates["both"] + (min if is_apart else sum)((rates["prefill"], rates["decode"]))


def _seconds_per_request(pool: Pool, tables: IterationTables, stage: int, requests: Requests) -> float:
    """The least time of a stage for a mean request, or for the part of it that its role leaves."""
    prompt, output = requests.prompt_tokens.astype(np.float64), requests.output_tokens.astype(np.float64)
    if pool.role == "prefill":
        output = np.ones_like(output)
    elif pool.role == "decode":
        prompt = np.ones_like(prompt)
    if pool.batching.prefix_cache and len(requests.prefix_hashes):
        prompt = np.ones_like(prompt)  # All of it may be cached, up to the last token.
    decodes = output - 1.0
    budget = min(pool.max_iteration_tokens(requests), tables.token_s.shape[1] - 1)
    per_token = _cheapest(tables.token_s[stage], budget)
    per_decode = per_token if pool.policy.mixes else _cheapest(tables.token_s[stage], pool.max_in_batch)
    seconds = per_token * prompt.mean() + per_decode * decodes.mean()
    seconds += _cheapest(tables.sequence_s[stage], pool.max_in_batch) * (decodes.mean() / pool.tokens_per_decode)
    if not tables.mixed_s.shape[1] and not tables.skew.shape[1]:
        pairs = prompt * prompt / 2.0
        read = decodes * prompt + decodes * decodes / 2.0
        seconds += _least_prefill(tables, stage) * pairs.mean()
        seconds += _least_decode(tables, stage) * read.mean() / pool.tokens_per_decode
    # Nor can it do with fewer iterations than its batch cap allows.
    iterations = decodes.mean() / (pool.max_in_batch * pool.tokens_per_decode)
    return float(max(seconds, iterations * tables.token_s[stage, 1 : budget + 1].min()))


def _cheapest(seconds: np.ndarray, most: int) -> float:
    """The least seconds per unit over batches of 1 to `most` units."""
    last = min(most, seconds.size - 1)
    return float((seconds[1 : last + 1] / np.arange(1, last + 1)).min())


def _least_prefill(tables: IterationTables, stage: int) -> float:
    """The least seconds per query-key pair. Between grid points the interpolation of c x kv + c^2/2 lies above it."""
    chunk, kv = tables.chunk_axis[1:, None], tables.kv_axis[None, :]
    return float((tables.prefill_s[stage, 1:] / (chunk * (kv + chunk / 2.0))).min())


def _least_decode(tables: IterationTables, stage: int) -> float:
    """The least seconds per KV token that a decode reads."""
    count = np.arange(1, tables.decode_s.shape[1])[:, None]
    return float((tables.decode_s[stage, 1:, 1:] / (count * tables.kv_axis[None, 1:])).min())
