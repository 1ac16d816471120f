"""What a scenario takes in memory, estimated before it is taken."""

from __future__ import annotations

from gnomon.core.sizes import check_memory
from gnomon.serving.scenario import Scenario

PER_REQUEST = 700
"""Bytes: drawn lengths and arrivals, the request's state, its share of the log. Measured with a million requests."""
PER_RANK = 4_000
"""Bytes of a replica's (or data-parallel rank's) state and queues; measured with 10,000 replicas."""
PER_BLOCK = 80
"""Bytes of a KV block that can be found again by its content, where prompts share prefixes."""


def estimated_bytes(scenario: Scenario, num_requests: int = 0) -> float:
    """Bytes that simulating it takes at its peak; of a trace, whose length is not known yet, nothing is counted."""
    total = PER_REQUEST * float(num_requests or scenario.workload.num_requests or 0)
    shares_prefixes = scenario.workload.sessions is not None or scenario.workload.trace is not None
    for pool in scenario.all_pools():
        ranks = pool.num_replicas * (pool.replica.data_parallel if pool.replica else 1)
        blocks = (pool.replica.num_kv_blocks if pool.replica else None) or 0
        total += ranks * (PER_RANK + (PER_BLOCK * blocks if shares_prefixes else 0))
    return total


def check_size(scenario: Scenario, num_requests: int = 0) -> None:
    """Refuse a scenario that this machine's memory cannot hold."""
    fix = "Use fewer requests or replicas."
    check_memory(estimated_bytes(scenario, num_requests), "the simulation", where="scenario", fix=fix)
