"""Deficit round robin: classes take turns, each as long as its credit lasts.

From: M. Shreedhar and G. Varghese, "Efficient Fair Queuing Using Deficit Round Robin" (SIGCOMM 1995). A request's
length is not known when it starts, so a class pays for its prompt at admission and for its output as it comes, and may
fall into debt; a class in debt waits for as many rounds as it takes.
"""

from gnomon.jit import inlined
from gnomon.serving.engine.batch_operations import tokens_placed
from gnomon.serving.engine.state import NONE, Replica
from gnomon.serving.policies import batching_policy
from gnomon.serving.policies.service_by_class import (
    admit_charged,
    balance,
    bring_forward,
    is_queued,
    refill,
    settle_credit,
)
from gnomon.serving.policies.vllm_v1 import continue_running

_QUANTUM, _PROMPT_PRICE, _OUTPUT_PRICE, _RESERVES_PROMPT = range(4)  # the options' places
_TURN = 0  # in memory: the class after the one whose turn it is, 0 at the start


@inlined
def _next_class(replica: Replica) -> int:
    """The next class in turn that waits and has credit; NONE where nothing waits."""
    state, prices, count = replica.state, replica.parameters, replica.classes.shape[0]
    if state.num_waiting == 0:
        return NONE
    first = max(0, int(replica.memory[_TURN]) - 1)
    for _ in range(2):
        for i in range(count):
            c = (first + i) % count
            if is_queued(replica, c) and balance(replica, c, prices[_PROMPT_PRICE], prices[_OUTPUT_PRICE]) > 0.0:
                replica.memory[_TURN] = c + 1
                return c
        refill(replica, prices[_QUANTUM], prices[_PROMPT_PRICE], prices[_OUTPUT_PRICE])
        first = int(replica.memory[_TURN]) % count
    return NONE


@batching_policy(
    "drr", defaults={"max_sequences": 256, "max_batch_tokens": 8192, "watermark": 0.0, "prefix_cache": True},
    max_batch_tokens_of="iteration", speculates=True,
    options={"quantum": 2048.0, "prompt_price": 1.0, "output_price": 2.0, "reserve_full_prompt": 1.0}, memory=1,
)  # fmt: skip
def drr(replica: Replica) -> None:
    """Running requests first; then waiting ones, class by class in turn, while the class has credit."""
    state, prices = replica.state, replica.parameters
    settle_credit(replica, prices[_PROMPT_PRICE], prices[_OUTPUT_PRICE])
    if continue_running(replica):
        budget = state.max_batch_tokens - tokens_placed(replica)
        tokens, c = 1, _next_class(replica)
        while tokens > 0 and c != NONE:
            bring_forward(replica, c)
            tokens = admit_charged(replica, budget, False, prices[_RESERVES_PROMPT] != 0.0)
            budget -= tokens
            c = _next_class(replica) if tokens > 0 else NONE
    state.steppable = 2
