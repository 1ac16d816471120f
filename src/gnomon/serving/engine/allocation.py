"""Empty arrays for a cluster."""

from typing import Any

import numpy as np

from gnomon.core.arrays import Floats, Ints, sparse_zeros
from gnomon.serving.engine.calendar import NEVER
from gnomon.serving.engine.decode_group import ID, NEVER_STEP
from gnomon.serving.engine.state import (
    FLIGHT,
    NEIGHBOURS,
    NO_LIMIT,
    NONE,
    NUM_SERVICE,
    REPLICA,
    REQUEST,
    STATE,
    Cluster,
    ring_position,
)
from gnomon.serving.features.adapters import new_slots
from gnomon.serving.features.breakdown import ENTRY


def new_cluster(
    num_replicas: int, num_requests: int, max_stages: int, max_running: int, block_size: int, max_in_batch: int, *,
    cached_blocks: int = 0, blocks_per_request: int = 0, num_parameters: int = 8, num_memory: int = 8,
    num_drafted: int = 1, num_classes: int = 1, max_moving: int = 0, adapter_slots: int = 0,
    prefix_hashes: Ints | None = None, recorded: tuple[Ints, Floats] | None = None,
) -> Cluster:  # fmt: skip
    """Empty arrays for a cluster; `cached_blocks` > 0 makes room for prefix caches of that many blocks."""
    slots = 1 << (2 * cached_blocks).bit_length() if cached_blocks else 0
    rows = min(max_running + max_moving, num_requests) if cached_blocks else 0
    links = cached_blocks + 1 if cached_blocks else 0

    def ints(*shape: int) -> Ints:
        return sparse_zeros(shape, np.int64)

    def each(row: Ints) -> Ints:
        return np.tile(row, (num_replicas, 1))

    first, seconds = recorded if recorded is not None else (ints(0), np.zeros((0, 1)))
    return Cluster(
        replicas=np.zeros(num_replicas, REPLICA).view(np.recarray),
        requests=np.zeros(num_requests, REQUEST).view(np.recarray),
        flights=np.zeros((num_replicas, max_stages), FLIGHT).view(np.recarray),
        running=ints(num_replicas, max_running), grouped=ints(num_replicas, max_running, 3),
        growth=ints(num_replicas, block_size), flight_requests=ints(num_replicas, max_stages, max_in_batch),
        flight_tokens=ints(num_replicas, max_stages, max_in_batch), next_end_s=np.full(num_replicas, NEVER),
        soonest_s=np.full(-(-num_replicas // NEIGHBOURS), NEVER), stage_free_s=np.zeros((num_replicas, max_stages)),
        stage_start_s=np.zeros((num_replicas, max_stages, max_stages)),
        stage_end_s=np.zeros((num_replicas, max_stages, max_stages)),
        parameters=np.zeros((num_replicas, num_parameters)), policy_memory=np.zeros((num_replicas, num_memory)),
        acceptance=np.zeros((num_replicas, num_drafted)), block_key=ints(num_replicas, cached_blocks),
        block_users=ints(num_replicas, cached_blocks), newer=ints(num_replicas, links),
        older=ints(num_replicas, links), slot_key=ints(num_replicas, slots), slot_block=ints(num_replicas, slots),
        tables=ints(num_replicas, rows, min(blocks_per_request, cached_blocks + 1)),
        free_rows=each(np.arange(rows, dtype=np.int64)), loose_blocks=ints(num_replicas, cached_blocks),
        prefix_hashes=prefix_hashes if prefix_hashes is not None else ints(0),
        classes=np.tile((1.0, 1.0, np.inf, np.inf), (num_classes, 1)),
        service=np.zeros((num_replicas, num_classes, NUM_SERVICE)), recorded_first=first, recorded_s=seconds,
        control=np.array([NO_LIMIT, 0, NONE, NONE, 0, 0]), adapter_slots=new_slots(num_replicas, adapter_slots),
        breakdown=np.zeros(0, ENTRY).view(np.recarray), parts_ns=ints(0, 0, 0), clocks=ints(0, 0),
        flight_ns=ints(0, 0, 0), floor_ns=ints(0, 0), context_ns=ints(0, 0),
    )  # fmt: skip


def make_idle(records: Any) -> None:
    """Let these `REPLICA` records, whose state is zero, be those of new replicas with their limits."""
    records["free_blocks"] = records["reported_free"] = records["num_blocks"]
    records["first_waiting"] = records["last_waiting"] = NONE
    records["next_finish"] = NEVER_STEP
    records["next_end_s"] = NEVER
    records["reply_s"] = records["base_reply_s"]


def settle(cluster: Cluster, r: int) -> None:
    """Bring the records of those that step together in replica `r`, which is about to be renewed, up to date."""
    state, requests = cluster.replicas[r], cluster.requests
    members = cluster.grouped[r, : state.num_grouped, ID]
    done = state.steps - requests.joined[members]
    requests.processed[members] += done
    requests.last_token_s[members] = np.where(done > 0, state.last_step_s, requests.last_token_s[members])


def renew(cluster: Cluster, r: int) -> None:
    """Let replica `r` be as new, but for its accounts; a batch that was launched is taken back from those."""
    state = cluster.replicas[r]
    for i in range(state.num_in_flight):
        position = ring_position(cluster, r, i)
        # When it was last at work: a run may be over before that.
        cluster.stage_free_s[r] = np.minimum(cluster.stage_free_s[r], cluster.stage_start_s[r, position, 0])
        flight = cluster.flights[r, position]
        busy_s = cluster.stage_end_s[r, position, 0] - cluster.stage_start_s[r, position, 0]
        state.busy_s = max(0.0, state.busy_s - busy_s)  # Sums of floats may come out just below.
        state.num_iterations -= 1
        state.tokens_computed -= flight.tokens
        state.num_beyond_measured -= flight.beyond_measured
        for name in ("flops", "bytes", "kv_block_s"):
            state[name] = max(0.0, state[name] - flight[name])
    had_blocks = state.tracks_blocks != 0
    for name in STATE:
        state[name] = 0
    make_idle(state)
    cluster.next_end_s[r] = NEVER
    cluster.growth[r], cluster.service[r] = 0, 0.0
    cluster.policy_memory[r] = 0.0
    if had_blocks:
        for cache in (cluster.block_key, cluster.block_users, cluster.slot_key, cluster.slot_block):
            cache[r] = 0
    cluster.tables[r, :, :1] = 0  # Requests, until blocks have an identity.
    cluster.free_rows[r] = np.arange(cluster.free_rows.shape[1])
    slots = cluster.adapter_slots[r]
    slots[:] = np.zeros((), slots.dtype)
    slots["adapter"] = NONE
