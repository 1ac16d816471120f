"""Warm-up requests: served like all others, and then left out of everything that is reported."""

from dataclasses import replace
from typing import Any

import numpy as np

from gnomon.core.errors import ConfigError
from gnomon.serving.engine.log import Log
from gnomon.serving.engine.state import FINISHED, REJECTED, SHED, Cluster
from gnomon.workload import Requests

# The accounts of a replica that add up over a run.
_SUMS = (
    "num_iterations", "num_finished", "num_rejected", "num_preemptions", "num_beyond_measured", "busy_s",
    "tokens_computed", "flops", "bytes", "kv_block_s", "cache_queries", "cache_hits",
)  # fmt: skip


def begin_measuring(cluster: Cluster, log: Log, requests: Requests) -> dict[str, Any]:
    """The warm-up is over: start the measured requests now, with an empty log. Returns the accounts so far."""
    warmup = cluster.requests[: requests.num_warmup]
    left = int(np.count_nonzero(~np.isin(warmup.status, (FINISHED, REJECTED, SHED))))
    if left:
        what = f"{left:,} warm-up requests never ended: the time limit falls into the warm-up, or no replica is there."
        raise ConfigError(what, where="workload.warmup_requests", fix="Set it to 0, or raise time_limit_s.")
    wave = np.arange(requests.num_warmup, min(requests.num_warmup + requests.concurrency, len(requests)))
    cluster.requests.arrival_s[wave] = (warmup.finished_s + warmup.last_reply_s).max()
    log.used[:3] = 0
    log.used[5] = 0
    cluster.replicas.peak_blocks = 0
    return {name: cluster.replicas[name].copy() for name in _SUMS}


def without_warmup(cluster: Cluster, log: Log, requests: Requests, before: dict[str, Any]) -> tuple[Cluster, Requests]:
    """What is reported: the measured requests, and accounts that start with them."""
    first = requests.num_warmup
    for name, sums in before.items():
        cluster.replicas[name] -= sums
    log.members[: log.used[1], 0] -= first
    log.chunks.request[: log.used[5]] -= first
    note = f"{first:,} warm-up requests were served before and are left out of every figure."
    measured = replace(requests.take(np.arange(first, len(requests))), notes=(*requests.notes, note))
    kept = cluster._replace(
        requests=cluster.requests[first:], breakdown=cluster.breakdown[first:], parts_ns=cluster.parts_ns[first:]
    )
    return kept, measured
