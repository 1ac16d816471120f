"""Deficit longest prefix match: of the classes with credit, the request whose prefix is cached furthest goes first.

From: S. Cao et al., "Locality-aware Fair Scheduling in LLM Serving" (arXiv 2501.14312), algorithm 1. Waiting requests
are looked at in the order of their longest cached prefix; one whose class has used up its credit is passed over; when
no waiting class has any, all of them get a quantum. A class pays for the prompt tokens that are computed (cached ones
are free) and for its output tokens. A larger quantum keeps more locality, a smaller one is fairer.
"""

from gnomon.jit import inlined
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.batch_operations import tokens_placed
from gnomon.serving.engine.state import NONE, Replica
from gnomon.serving.policies import batching_policy
from gnomon.serving.policies.service_by_class import (
    admit_charged,
    balance,
    is_queued,
    move_to_front,
    refill,
    settle_credit,
)
from gnomon.serving.policies.vllm_v1 import continue_running

_QUANTUM, _PROMPT_PRICE, _OUTPUT_PRICE, _DEPTH, _RESERVES_PROMPT = range(5)  # the options' places


@inlined
def _has_credit(replica: Replica, c: int) -> bool:
    prices = replica.parameters
    return balance(replica, c, prices[_PROMPT_PRICE], prices[_OUTPUT_PRICE]) > 0.0


@inlined
def _ensure_credit(replica: Replica) -> None:
    """Where no class that waits has credit, all of them get some."""
    prices = replica.parameters
    for c in range(replica.classes.shape[0]):
        if is_queued(replica, c) and _has_credit(replica, c):
            return
    refill(replica, prices[_QUANTUM], prices[_PROMPT_PRICE], prices[_OUTPUT_PRICE])


@inlined
def _best_to_front(replica: Replica) -> None:
    """Bring the waiting request with the longest cached prefix forward, among those whose class has credit and, as
    long as one is found there, among the first `depth`; ties to the first."""
    state, requests = replica.state, replica.requests
    best, best_before, most = NONE, NONE, -1
    before, r, seen = NONE, state.first_waiting, 0
    while r != NONE and seen < state.num_waiting:
        if seen >= replica.parameters[_DEPTH] and best != NONE:
            break
        if _has_credit(replica, requests[r].user_class):
            hits = prefix_cache.count_hits(replica, r)
            if hits > most:
                best, best_before, most = r, before, hits
        before, r, seen = r, requests[r].next_waiting, seen + 1
    if best != NONE:
        move_to_front(replica, best_before, best)


@batching_policy(
    "dlpm", defaults={"max_sequences": 256, "max_batch_tokens": 8192, "watermark": 0.0, "prefix_cache": True},
    max_batch_tokens_of="iteration", speculates=True,
    options={"quantum": 4096.0, "prompt_price": 1.0, "output_price": 2.0, "depth": 128.0, "reserve_full_prompt": 1.0},
)  # fmt: skip
def dlpm(replica: Replica) -> None:
    """Running requests first; then, of the classes with credit, the request with the longest cached prefix."""
    state, prices = replica.state, replica.parameters
    settle_credit(replica, prices[_PROMPT_PRICE], prices[_OUTPUT_PRICE])
    if continue_running(replica):
        budget = state.max_batch_tokens - tokens_placed(replica)
        tokens = 1
        while tokens > 0 and state.num_waiting > 0:
            _ensure_credit(replica)
            _best_to_front(replica)
            tokens = admit_charged(replica, budget, True, prices[_RESERVES_PROMPT] != 0.0)
            budget -= tokens
    state.steppable = 2
