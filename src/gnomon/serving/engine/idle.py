"""A replica with nothing to do: at the start of a run, and when it comes back after it was emptied or has died."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnomon.serving.engine.calendar import NEVER
from gnomon.serving.engine.decode_group import NEVER_STEP
from gnomon.serving.engine.state import NONE, STATE, Cluster


def make_idle(records: Any) -> None:
    """Let the state of these `REPLICA` records be that of new replicas with the same limits."""
    for name in STATE:
        records[name] = 0
    records["free_blocks"] = records["reported_free"] = records["num_blocks"]
    records["first_waiting"] = records["last_waiting"] = NONE
    records["next_finish"] = NEVER_STEP
    records["next_end_s"] = NEVER
    records["reply_s"] = records["base_reply_s"]


def renew(cluster: Cluster, r: int) -> None:
    """Let replica `r` be as new, but for its accounts; a batch that was launched is taken back from those."""
    state = cluster.replicas[r]
    for i in range(state.num_in_flight):
        position = (state.oldest + i) % cluster.flights.shape[1]
        flight = cluster.flights[r, position]
        state.busy_s -= cluster.stage_end_s[r, position, 0] - cluster.stage_start_s[r, position, 0]
        state.num_iterations -= 1
        state.tokens_computed -= flight.tokens
        state.num_beyond_measured -= flight.beyond_measured
        for name in ("flops", "bytes", "kv_block_s"):
            state[name] -= flight[name]
    had_blocks = state.tracks_blocks != 0
    make_idle(state)
    cluster.next_end_s[r] = NEVER
    cluster.growth[r], cluster.stage_free_s[r], cluster.service[r] = 0, 0.0, 0.0
    cluster.policy_memory[r] = 0.0
    if had_blocks:
        for cache in (cluster.block_key, cluster.block_users, cluster.slot_key, cluster.slot_block):
            cache[r] = 0
    cluster.tables[r, :, :1] = 0  # Requests, until blocks have an identity.
    cluster.free_rows[r] = np.arange(cluster.free_rows.shape[1])
    slots = cluster.adapter_slots[r]
    slots[:] = np.zeros((), slots.dtype)
    slots["adapter"] = NONE
