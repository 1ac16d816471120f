"""Replicas that die: what they have in flight is lost, and their requests can go elsewhere."""

from __future__ import annotations

import math

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.serving.ledger import lose
from gnomon.serving.migration import empty
from gnomon.serving.state import IN_FLIGHT, NONE, NOT_ARRIVED, RUNNING, WAITING, Cluster
from gnomon.serving.stepping import ID


def freeze(cluster: Cluster, ranks: range) -> None:
    """The ranks of a replica stop: the batch in flight never ends, and none is formed. Requests may still be sent."""
    for r in ranks:
        state = cluster.replicas[r]
        state.next_end_s = cluster.next_end_s[r] = math.inf
        state.frozen = 1


def evacuate(cluster: Cluster, ranks: range, keeps_tokens: bool) -> Ints:
    """Take all requests from a frozen replica; returns them in order of arrival. They have not arrived anywhere, and go
    on from the tokens they have, or start over. The replica is empty, and so is its prefix cache."""
    q = cluster.requests
    is_here = (q.replica >= ranks.start) & (q.replica < ranks.stop)
    ids = np.flatnonzero(is_here & np.isin(q.status, (WAITING, RUNNING, IN_FLIGHT)))
    if cluster.ledger.size:
        lose(cluster, ids, keeps_tokens)
    for r in ranks:
        state = cluster.replicas[r]
        members = cluster.stepping[r, : state.num_stepping, ID]
        done = state.steps - q.joined[members]
        q.processed[members] += done
        q.last_token_s[members] = np.where(done > 0, state.last_step_s, q.last_token_s[members])
    if keeps_tokens:
        q.prefill_tokens[ids] = np.maximum(q.prefill_tokens[ids], q.processed[ids])
    else:
        q.prefill_tokens[ids] = q.prompt_tokens[ids]
        for stamp in ("first_token_s", "last_token_s"):
            q[stamp][ids] = -1.0
        q.charged[ids] = 0
    q.num_restarts[ids] += q.processed[ids] > 0
    q.num_tries[ids] += 1
    for name, value in (("processed", 0), ("num_blocks", 0), ("keyed_blocks", 0), ("status", NOT_ARRIVED),
                        ("replica", NONE), ("preempted_at_s", -1.0)):  # fmt: skip
        q[name][ids] = value
    for r in ranks:
        empty(cluster, r)
        forget_cache(cluster, r)
    return ids


def forget_cache(cluster: Cluster, r: int) -> None:
    """The replica's prefix cache is as at the start."""
    cluster.replicas[r].tracks_blocks = 0
    for array in (cluster.block_key, cluster.block_users, cluster.slot_key, cluster.slot_block):
        array[r] = 0
    cluster.free_rows[r] = np.arange(cluster.free_rows.shape[1])
