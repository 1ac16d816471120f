"""A batching policy of one's own, with a memory: new requests are admitted in bursts.

    gnomon simulate --batching.policy in_bursts --batching.file examples/own/in_bursts.py

Like vllm_v1, every running request gets its tokens first. But while some run, the others wait until `burst` of them can
be admitted together, or for `patience` iterations: decodes are then disturbed less often. How many iterations have gone
by since the last admission is what the policy remembers.
"""

from __future__ import annotations

from gnomon.extend import Replica, batching_policy, tokens_placed
from gnomon.serving.policies.vllm_v1 import admit_first, continue_running

BURST, PATIENCE = range(2)  # The options' places in `replica.parameters`.
SINCE = 0  # The place in `replica.memory`.


@batching_policy(
    "in_bursts",
    max_batch_tokens_of="iteration",
    options={"burst": 4.0, "patience": 20.0},
    memory=1,
    holds_back="waits until several can be admitted together",
)
def in_bursts(replica: Replica) -> None:
    """Running requests, then all waiting ones that fit, if they are many enough or have waited long enough."""
    state, memory = replica.state, replica.memory
    nobody_preempted, placed = continue_running(replica), tokens_placed(replica)
    memory[SINCE] += 1
    is_time = state.num_waiting >= replica.parameters[BURST] or memory[SINCE] > replica.parameters[PATIENCE]
    if nobody_preempted and (placed == 0 or is_time):
        budget = state.max_batch_tokens - placed
        tokens = admit_first(replica, budget)
        while tokens > 0:
            memory[SINCE] = 0
            budget -= tokens
            tokens = admit_first(replica, budget)
    state.steppable = 1
