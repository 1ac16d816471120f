"""Pools with roles: who prefills, who decodes, and the links between them, from a scenario."""

import numpy as np

from gnomon import catalog
from gnomon.catalog import Model
from gnomon.core.arrays import Ints
from gnomon.core.errors import ConfigError
from gnomon.serving.engine.calendar import LINKS_CHANGE, Calendar, report_ends, schedule_all
from gnomon.serving.engine.state import FROM_DECODE, FROM_PREFILL, FROM_TRANSFER, Cluster
from gnomon.serving.features.tiers import HOST, NUM_SOURCES, PEERS, REMOTE, SSD, Tiers, new_tiers
from gnomon.serving.features.transfers import (
    HOP_S,
    LAST_PART,
    LATENCY_S,
    OVERLAP,
    PREFILLS_AGAIN,
    TIMEOUT_S,
    Transfers,
    new_transfers,
)  # fmt: skip
from gnomon.serving.policies import POLICIES
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import DisaggregationConfig
from gnomon.serving.scenario.pool import Pool
from gnomon.workload import Requests

_FIRST_TOKEN_AT = {"decode": FROM_DECODE, "transfer": FROM_TRANSFER, "prefill": FROM_PREFILL}


def max_moving(pool: Pool) -> int:
    """Requests whose KV a prefill replica may hold beside those that run: beyond, they count as running."""
    return max(64, 3 * pool.max_running)


def replicas_that(pools: list[Pool], role: str) -> Ints:
    """The replicas that can do this: `prefill` or `decode`."""
    can = np.repeat([pool.role in (role, "both") for pool in pools], [pool.num_ranks for pool in pools])
    return np.flatnonzero(can).astype(np.int64)


def open_pools(
    scenario: Scenario, model: Model, pools: list[Pool], cluster: Cluster, calendar: Calendar, num_requests: int
) -> Transfers:
    """The links of a fleet with roles or tiers; prefill replicas report what ends in them. Nothing where KV stays."""
    size, has_tiers = cluster.replicas.size, scenario.kv_tiers.is_used
    moves = scenario.has_roles or scenario.migrates
    if not (moves or has_tiers):
        return new_transfers(0, 0, 0)
    transfers = new_transfers(num_requests, size, size * (1 + NUM_SOURCES if has_tiers else 1))
    if not moves:
        return transfers
    config = scenario.disaggregation
    transfers.settings[[LATENCY_S, HOP_S, TIMEOUT_S]] = config.latency_s, config.hop_s, config.timeout_s
    transfers.settings[[OVERLAP, LAST_PART]] = config.moves == "by_layer", 1.0 / model.num_layers
    first = 0
    for pool in pools:
        ranks = slice(first, first + pool.num_ranks)
        transfers.links.capacity[ranks] = link_bytes_s(config, pool)
        transfers.bytes_per_token[ranks] = kv_bytes_per_token(model, pool)
        cluster.replicas.max_moving[ranks] = max_moving(pool) if scenario.has_roles else 0
        first += pool.num_ranks
    if scenario.fleet is not None and scenario.fleet.migration is not None:
        transfers.settings[OVERLAP] = 0.0  # Nothing is computed while it moves.
        if scenario.fleet.migration.moves == "nothing":
            transfers.settings[[TIMEOUT_S, PREFILLS_AGAIN]] = 0.0, 1.0
        cluster.replicas.first_token_at = FROM_PREFILL
        report_ends(calendar, cluster)
        calendar.book.migrates = 1
        return transfers
    cluster.replicas.first_token_at = _FIRST_TOKEN_AT[first_token(config, pools)]
    prefill = replicas_that(pools, "prefill")
    cluster.replicas.reports[prefill] = 1
    calendar.reports[cluster.replicas.group_first[prefill]] = 1
    calendar.book.num_reporting = calendar.reports.sum()
    calendar.book.has_roles = 1
    if config.down_s is not None:
        schedule_all(calendar, LINKS_CHANGE, np.array(config.down_s), np.array([1, 0]))
    return transfers


FLEET_EVENTS = 64  # Events in the calendar at a time for each replica of a fleet that changes, beside the arrivals.


def max_events(scenario: Scenario, requests: Requests, num_replicas: int) -> int:
    """Events that can stand in the calendar at a time."""
    total, events = len(requests), 0
    if scenario.has_roles or scenario.kv_tiers.is_used or requests.concurrency:
        # One for each request that moves, is loaded or is sent by a closed loop, one for each that has waited for
        # blocks meanwhile, and two for links that go down.
        events += (2 if scenario.has_roles else 1) * total + 2
    if len(requests.parents) or len(requests.adapter):
        events += total
    if scenario.front_end.per_request_s or scenario.front_end.per_prompt_token_s:
        events += total
    if scenario.tool_cache.is_used:
        events += 3 * total  # A call's KV is let go at its time or when the next one has arrived, and expires.
    if scenario.workload.patience is not None:
        events += 2 * total + 1  # Further tries, blocks that are freed, and the next deadline.
    if scenario.migrates:
        events += 4 * total + 2  # As with roles, and some have waited for blocks before.
    if scenario.fleet is not None:
        events += total + FLEET_EVENTS * num_replicas
    return events


def open_tiers(
    scenario: Scenario, model: Model, pools: list[Pool], cluster: Cluster, calendar: Calendar, transfers: Transfers,
    requests: Requests,
) -> Tiers:  # fmt: skip
    """Empty shelves for KV beyond the GPUs; every replica reports what ends in it. Nothing where no tier is given."""
    config, num_replicas = scenario.kv_tiers, cluster.replicas.size
    if not config.is_used:
        return new_tiers(num_replicas, 0, 0, 0)
    if config.remote is not None:
        _check_one_format(model, pools)
    sizes = [kv_bytes_per_token(model, pool) * pool.batching.block_size for pool in pools]
    block = np.repeat(sizes, [pool.num_ranks for pool in pools])
    per_hash = int(cluster.replicas.blocks_per_hash.max())
    keys = max(1, int(np.unique(cluster.prefix_hashes).size) * per_hash)
    longest = max(1, int(cluster.requests.prefix_count.max()) * per_hash)
    tiers = new_tiers(num_replicas, len(requests), keys, longest)
    capacity = transfers.links.capacity[num_replicas:].reshape(NUM_SOURCES, num_replicas)
    for at, tier in ((HOST, config.host), (SSD, config.ssd), (REMOTE, config.remote)):
        if tier is not None:
            one = tiers.tiers[at]
            one.is_there, one.is_shared, one.is_fifo = 1, at == REMOTE, tier.eviction == "fifo"
            one.writes_back = tier.write == "back" and any((config.host, config.ssd)[:at])
            one.max_blocks = min(keys, max(1, int(tier.size_gb * 1e9 // block.max())))
            one.latency_s = tier.latency_s
            capacity[at] = tier.bandwidth_gb_s * 1e9
            one.down_from_s, one.down_to_s = tier.down_s or (np.inf, np.inf)
    if config.peers is not None:
        one = tiers.tiers[PEERS]
        one.is_there, one.latency_s = 1, config.peers.latency_s
        capacity[PEERS] = config.peers.bandwidth_gb_s * 1e9
        one.down_from_s = one.down_to_s = np.inf
    tiers.block_bytes[:] = block
    tiers.always_loads[0] = config.load == "always"
    report_ends(calendar, cluster)
    calendar.book.has_tiers = 1
    return tiers


def _check_one_format(model: Model, pools: list[Pool]) -> None:
    """Refuse a shared store for pools that cannot read each other's blocks."""
    sizes = {pool.batching.block_size for pool in pools}
    dtypes = {str(model.kv_precision(pool.timing.kv_dtype, pool.timing.dtype)) for pool in pools}
    for what, found in (("block sizes", sizes), ("data types of KV", dtypes)):
        if len(found) > 1:
            known = " and ".join(str(one) for one in sorted(found, key=str))
            raise ConfigError(
                f"the pools share a remote store, but their {what} differ ({known}): they cannot read each other's "
                "blocks.",
                where="kv_tiers.remote",
                fix="Give all pools the same, or leave the remote store out.",
            )


def first_token(config: DisaggregationConfig, pools: list[Pool]) -> str:
    """Who gives the first token, as the batching policies of the decode replicas do it if the scenario does not say."""
    recompute = all(pool.policy.recomputes_last_token for pool in pools if pool.role != "prefill")
    if config.first_token == "auto":
        return "decode" if recompute else "transfer"
    if config.first_token == "decode" and not recompute:
        able = ", ".join(name for name in POLICIES if POLICIES[name].recomputes_last_token)
        what = f"the last prompt token is computed once more where it decodes by {able} alone."
        raise ConfigError(what, where="disaggregation.first_token", fix="Choose transfer or prefill.")
    return config.first_token


def link_bytes_s(config: DisaggregationConfig, pool: Pool) -> float:
    """Bytes per second in one direction of the links of all GPUs of one rank of this pool."""
    gpus = pool.replica.num_gpus // pool.replica.data_parallel
    if config.bandwidth_gb_s is not None:
        return gpus * config.bandwidth_gb_s * 1e9
    node = catalog.node(pool.node) if pool.node else catalog.default_node(pool.device)
    if config.link == "nvlink":
        return gpus * (node.send_link or node.link).bandwidth_bytes_s
    return gpus * node.network.bandwidth_bytes_s * (node.network_links or node.num_gpus) / node.num_gpus


def kv_bytes_per_token(model: Model, pool: Pool, tokens: int = 4096) -> float:
    """KV that the GPUs of one rank take in for a token of a prompt: what each of them keeps, copies of heads (or of
    MLA's latent) included; windows and states spread over `tokens`."""
    cut = pool.replica.parallelism
    dtype = model.kv_precision(pool.timing.kv_dtype, pool.timing.dtype)
    layers = [cut.layers_of_stage(model, stage) for stage in range(cut.pipeline_parallel)]
    kept = sum(model.sequence_bytes(tokens, dtype, cut.tensor_parallel, one) for one in layers)
    return kept * cut.tensor_parallel / tokens
