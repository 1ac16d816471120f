"""Virtual token counter: the class that was served least goes first.

From: Y. Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), algorithm 2, with weights. A class's
counter grows with its prompt tokens at admission and its output tokens as they come; a class that comes back after
having had nothing to send is lifted to the others, so that it cannot save service up.
"""

from gnomon.jit import inlined
from gnomon.serving.engine.batch_operations import tokens_placed
from gnomon.serving.engine.state import CREDIT, NONE, WAS_QUEUED, WEIGHT, Replica
from gnomon.serving.policies import batching_policy
from gnomon.serving.policies.service_by_class import (
    admit_charged,
    bring_forward,
    charge_outputs,
    is_queued,
    note_queued,
    spent,
)
from gnomon.serving.policies.vllm_v1 import continue_running

_PROMPT_PRICE, _OUTPUT_PRICE, _RESERVES_PROMPT = range(3)  # the options' places


@inlined
def _counter(replica: Replica, c: int) -> float:
    prices = replica.parameters
    had = spent(replica, c, prices[_PROMPT_PRICE], prices[_OUTPUT_PRICE])
    return had / replica.classes[c, WEIGHT] + replica.service[c, CREDIT]


@inlined
def _served_least(replica: Replica, only_lasting: bool) -> int:
    """The class that waits with the smallest counter (of those that waited before, too), NONE if there is none."""
    best = NONE
    for c in range(replica.classes.shape[0]):
        counts = is_queued(replica, c) and (not only_lasting or replica.service[c, WAS_QUEUED] != 0.0)
        if counts and (best == NONE or _counter(replica, c) < _counter(replica, best)):
            best = c
    return best


@inlined
def _lift_newcomers(replica: Replica) -> None:
    """A class that did not wait before starts no lower than those that did; where none did, than the highest of all
    that were served: the last one to leave."""
    least = _served_least(replica, True)
    level = 0.0
    if least != NONE:
        level = _counter(replica, least)
    else:
        for c in range(replica.classes.shape[0]):
            if not is_queued(replica, c):
                level = max(level, _counter(replica, c))
    for c in range(replica.classes.shape[0]):
        if is_queued(replica, c) and replica.service[c, WAS_QUEUED] == 0.0:
            replica.service[c, CREDIT] += max(0.0, level - _counter(replica, c))


@batching_policy(
    "vtc", defaults={"max_sequences": 256, "max_batch_tokens": 8192, "watermark": 0.0, "prefix_cache": True},
    max_batch_tokens_of="iteration", speculates=True,
    options={"prompt_price": 1.0, "output_price": 2.0, "reserve_full_prompt": 1.0},
)  # fmt: skip
def vtc(replica: Replica) -> None:
    """Running requests first; then the first of the class with the smallest counter, again and again."""
    state = replica.state
    if state.num_waiting > 0:
        charge_outputs(replica)
        _lift_newcomers(replica)
    if continue_running(replica):
        budget = state.max_batch_tokens - tokens_placed(replica)
        tokens, c = 1, _served_least(replica, False)
        while tokens > 0 and c != NONE:
            bring_forward(replica, c)
            tokens = admit_charged(replica, budget, False, replica.parameters[_RESERVES_PROMPT] != 0.0)
            budget -= tokens
            c = _served_least(replica, False)
    note_queued(replica)
    state.steppable = 2
