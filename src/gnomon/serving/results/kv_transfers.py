"""KV that moved between pools: how much, how long it waited and took, how full the links were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gnomon.serving.engine.state import NONE
from gnomon.serving.results.percentiles import Percentiles, percentiles

if TYPE_CHECKING:
    from gnomon.serving.run.simulate import Run


@dataclass(frozen=True)
class Moves:
    """Requests that were prefilled in one replica and decoded in another."""

    moved: int
    stayed: int
    """Prefilled where they decoded: the decider's choice, or the same replica was chosen for both."""
    dropped: int
    """Prefilled once more where they decode, because they waited too long for KV blocks there."""
    bytes: float
    """Over all links."""
    wait_s: Percentiles
    """From the end of the prefill until the KV starts to move: the hop, and waiting for blocks (back-pressure)."""
    transfer_s: Percentiles
    """From then until the KV is there."""
    link_use: float
    """Share of what the links of the prefill replicas could have sent in the whole run."""


@dataclass(frozen=True)
class TierHits:
    """Prompt tokens by where they were found, as shares of those looked up (those on the GPU without being loaded)."""

    gpu: float
    host: float
    ssd: float
    remote: float
    peers: float
    computed: float
    """Not found, or found where loading would have taken longer than computing."""
    passed_over: float
    """Of those, found but computed, because that was sooner."""
    wait_s: Percentiles
    """From a request's arrival until what was loaded for it is there."""


def tier_hits(run: Run) -> TierHits | None:
    if run.tiers is None:
        return None
    q, replicas = run.cluster.requests, run.cluster.replicas
    queries = max(1, int(replicas.cache_queries.sum()))
    host, ssd, remote, peers, passed = (float(x) / queries for x in run.tiers.loaded_tokens.sum(axis=0))
    gpu = max(0.0, float(replicas.cache_hits.sum()) / queries - host - ssd - remote - peers)
    loaded = q.loaded_s >= 0
    return TierHits(
        gpu, host, ssd, remote, peers, max(0.0, 1.0 - gpu - host - ssd - remote - peers), passed,
        percentiles((q.loaded_s - q.arrival_s - q.front_s)[loaded]),
    )  # fmt: skip


def moves(run: Run, duration_s: float) -> Moves | None:
    """The figures of a run; None where no pool has a role."""
    transfers, q = run.transfers, run.cluster.requests
    if transfers is None:
        return None
    flows = transfers.flows[-q.size :]
    landed = q.landed_s >= 0
    senders = np.unique(q.prefill_replica[landed])
    capacity = float(transfers.links.capacity[senders].sum())
    sent = float(flows.bytes[landed].sum())
    was_sent_away = (q.prefill_replica != NONE) & (q.prefill_replica != q.replica)
    return Moves(
        moved=int(np.count_nonzero(landed)), stayed=int(np.count_nonzero((q.replica != NONE) & ~was_sent_away)),
        dropped=int(np.count_nonzero(was_sent_away & ~landed & (q.num_restarts > 0) & (q.prefilled_s >= 0))),
        bytes=sent, wait_s=percentiles((q.moving_s - q.prefilled_s)[landed]),
        transfer_s=percentiles((q.landed_s - q.moving_s)[landed]),
        link_use=sent / max(capacity * duration_s, 1e-12) if senders.size else 0.0,
    )  # fmt: skip
