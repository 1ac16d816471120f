"""The arrays of a cluster, filled in from a scenario."""

from dataclasses import dataclass

import numpy as np

from gnomon.catalog import Model
from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import ConfigError
from gnomon.core.streams import stream
from gnomon.serving.engine.allocation import make_idle, new_cluster
from gnomon.serving.engine.state import LAUNCHES_FIRST, NONE, OVERLAPS, SURPLUS_ALWAYS, SURPLUS_AMONG_DECODES, Cluster
from gnomon.serving.features import breakdown
from gnomon.serving.features.adapters import Adapters, new_adapters
from gnomon.serving.features.iteration_breakdown import NUM_COLUMNS, tabulate
from gnomon.serving.run.kv_links import max_moving
from gnomon.serving.scenario.acceptance import chances
from gnomon.serving.scenario.lora import LoraConfig, adapter_bytes
from gnomon.serving.scenario.pool import Pool
from gnomon.serving.scenario.pools import policies_of
from gnomon.timing.iteration import IterationTables
from gnomon.workload import Requests

_ROWS = 4096  # Requests that are written at a time.


@dataclass(frozen=True)
class Recording:
    """Stage times to replay instead of timing tables: those of the n-th batch of each replica."""

    first: Ints
    """[replica + 1]: where each replica's batches start."""
    stage_s: Floats
    """[batch, stage]"""
    num_members: int
    """Requests in all batches: how much to record for the comparison."""


def build_cluster(
    pools: list[Pool], requests: Requests, seed: int, recording: Recording | None = None, adapter_slots: int = 0,
) -> Cluster:  # fmt: skip
    """Arrays for all replicas and requests, with their limits filled in."""
    caches = [pool.num_kv_blocks for pool in pools if pool.batching.prefix_cache]
    smallest_block = min(pool.batching.block_size for pool in pools)
    num_drafted = max(pool.tokens_per_decode for pool in pools)
    # Drafts go beyond the end, and surplus ones twice.
    most_tokens = int(requests.total_tokens.max()) + 2 * num_drafted
    cluster = new_cluster(
        num_replicas=sum(pool.num_ranks for pool in pools), num_requests=len(requests),
        max_stages=max(pool.replica.pipeline_parallel for pool in pools),
        max_running=max(pool.max_running for pool in pools), max_in_batch=max(pool.max_in_batch for pool in pools),
        block_size=max(pool.batching.block_size for pool in pools), cached_blocks=max(caches, default=0),
        blocks_per_request=most_tokens // smallest_block + 2,
        max_moving=max(map(max_moving, pools)) if any(pool.role != "both" for pool in pools) else 0,
        num_drafted=num_drafted, num_classes=max(1, len(requests.classes)),
        adapter_slots=adapter_slots if len(requests.adapter) else 0,
        num_parameters=max(8, *(len(pool.parameters) for pool in pools)),
        num_memory=max(8, *(pool.policy.memory for pool in pools)),
        prefix_hashes=prefix_keys(requests, smallest_block),
        recorded=(recording.first, recording.stage_s) if recording else None,
    )  # fmt: skip
    fill_requests(cluster, requests, seed)
    policies = policies_of(pools)
    first, row = 0, 0
    for pool in pools:
        fill_replicas(cluster, pool, requests, first, row, policies.index(pool.batching.policy))
        first += pool.num_ranks
        row += pool.replica.pipeline_parallel
    return cluster


def with_breakdown(cluster: Cluster, pools: list[Pool], tables: IterationTables) -> Cluster:
    """A cluster with accounts of where its requests' time goes (`gnomon.serving.features.breakdown`)."""
    replicas, requests = cluster.replicas, cluster.requests
    rows = sum(pool.replica.pipeline_parallel for pool in pools)
    floor_ns = np.zeros((rows, replicas.max_in_batch.max() + 1), np.int64)
    context_ns = np.zeros((rows, int(requests.total_tokens.max()) + 2), np.int64)
    clocks = np.zeros((replicas.size, breakdown.NUM_CLOCKS), np.int64)
    clocks[:, breakdown.CAUSE] = breakdown.ITERATION
    row = first = 0
    for pool in pools:
        stages = pool.replica.pipeline_parallel
        tabulate(tables, row, stages, pool.tokens_per_decode, floor_ns[row], context_ns[row])
        here = clocks[first : first + pool.num_ranks]
        here[:, breakdown.NEEDS] = breakdown.NEEDS_OF[pool.policy.reserves]
        here[:, breakdown.CHUNKS] = pool.policy.chunks_prompts
        first, row = first + pool.num_ranks, row + stages
    # Times are held against those of the fastest pool of the same role: what a slower one takes more has its own part.
    alone = floor_ns[replicas.row, 1] + context_ns[replicas.row, -1] // context_ns.shape[1]
    role = np.repeat([pool.role for pool in pools], [pool.num_ranks for pool in pools])
    for one in np.unique(role):
        mine = np.flatnonzero(role == one)
        fastest = replicas[mine[int(np.argmin(alone[mine]))]]
        clocks[mine, breakdown.REFERENCE_ROW] = fastest.row
        clocks[mine, breakdown.REFERENCE_STAGES] = fastest.num_stages
    return cluster._replace(
        breakdown=np.zeros(requests.size, breakdown.ENTRY).view(np.recarray),
        parts_ns=np.empty((requests.size, 2, breakdown.NUM_PARTS), np.int64),  # Cleared as requests arrive.
        clocks=clocks,
        flight_ns=np.zeros((*cluster.flights.shape, NUM_COLUMNS), np.int64),
        floor_ns=floor_ns,
        context_ns=context_ns,
    )


def prefix_keys(requests: Requests, block_size: int) -> Ints:
    """The prefix hashes, or where one covers several blocks, their ranks: those leave room for the number of the block
    within 64 bits."""
    hashes = np.ascontiguousarray(requests.prefix_hashes, dtype=np.int64)
    if requests.prefix_block_tokens <= block_size or not hashes.size:
        return hashes
    return np.unique(hashes, return_inverse=True)[1].astype(np.int64)


def fill_requests(cluster: Cluster, requests: Requests, seed: int) -> None:
    """Write the requests, none of which has arrived yet, into a cluster's arrays."""
    draw = stream(seed, "speculation").integers(1, 2**31 - 1, len(requests))
    if requests.classes:
        cluster.classes[:, :2] = [(one.weight, one.priority) for one in requests.classes]
    for first in range(0, len(requests), _ROWS):  # So many at a time stay in the processor's cache.
        some = slice(first, first + _ROWS)
        table = cluster.requests[some]
        table.arrival_s = requests.arrival_s[some]
        table.prompt_tokens = table.prefill_tokens = requests.prompt_tokens[some]
        table.output_tokens = requests.output_tokens[some]
        table.total_tokens = table.prompt_tokens + table.output_tokens
        table.session = requests.session[some]
        table.adapter = requests.adapter[some] if len(requests.adapter) else NONE
        table.replica = table.prefill_replica = table.decode_replica = NONE
        if requests.classes:
            table.user_class = requests.user_class[some]
        for stamp in (
            "scheduled_s", "first_token_s", "last_token_s", "finished_s", "preempted_at_s", "prefilled_s", "moving_s",
            "landed_s", "loaded_s",
        ):  # fmt: skip
            table[stamp] = -1.0
        table.prefix_first = requests.prefix_offsets[:-1][some]
        table.prefix_count = np.diff(requests.prefix_offsets[first : first + _ROWS + 1])
        table.draw = draw[some]


def fill_replicas(cluster: Cluster, pool: Pool, requests: Requests, first: int, row: int, policy: int) -> None:
    """Write the limits of idle replicas of one pool, from number `first` on, into a cluster's arrays."""
    batching, replica, count = pool.batching, pool.replica, pool.num_ranks
    if batching.prefix_cache and requests.prefix_block_tokens % batching.block_size and len(requests.prefix_hashes):
        what = f"prefix hashes cover {requests.prefix_block_tokens} tokens, KV blocks hold {batching.block_size}."
        raise ConfigError(what, where="batching.block_size", fix="Choose a block size that divides the former.")
    table = cluster.replicas[first : first + count]
    table.id = np.arange(first, first + count)
    table.row = row
    table.policy = policy
    table.num_stages = replica.pipeline_parallel
    table.group_first = first + np.arange(count) // replica.data_parallel * replica.data_parallel
    table.group_size = replica.data_parallel
    table.block_size = batching.block_size
    table.num_blocks = pool.num_kv_blocks
    table.watermark_blocks = int(batching.watermark * pool.num_kv_blocks)
    table.max_running, table.max_in_batch = pool.max_running, pool.max_in_batch
    table.max_batch_tokens = pool.token_budget
    table.max_chunk_tokens = batching.max_chunk_tokens or pool.token_budget
    table.max_request_tokens, table.longest_prompt = pool.max_request_tokens, pool.longest_prompt
    table.prefix_cache = batching.prefix_cache and pool.num_kv_blocks > 0
    if batching.overlap and replica.pipeline_parallel == 1:
        table.overlaps = LAUNCHES_FIRST if pool.policy.launches_first else OVERLAPS
    if batching.overlap and batching.surplus_token:
        table.surplus = SURPLUS_ALWAYS if pool.policy.mixes else SURPLUS_AMONG_DECODES
    table.blocks_per_hash = max(1, requests.prefix_block_tokens // batching.block_size)
    if replica.speculative:
        table.num_speculative = replica.speculative.num_tokens
        drafted = chances(replica.speculative.acceptance, replica.speculative.num_tokens)
        cluster.acceptance[first : first + count, : drafted.size] = drafted
    make_idle(table)
    cluster.parameters[first : first + count, : len(pool.parameters)] = pool.parameters


def open_adapters(config: LoraConfig, model: Model, requests: Requests, num_replicas: int) -> Adapters:
    """The adapters of a run, none of which is loaded."""
    count = int(requests.adapter.max()) + 1 if len(requests.adapter) else 0
    sizes = np.resize([adapter_bytes(model, rank) for rank in config.ranks] if count else [], count)
    return new_adapters(config.latency_s + sizes / (config.bandwidth_gb_s * 1e9), config.curve(), num_replicas)
