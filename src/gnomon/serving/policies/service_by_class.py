"""Verbs of policies that tell classes of users apart: whose turn it is, and what each class has had so far.

Every replica keeps an account of each class (`replica.service`): how many of its requests wait, and the prompt and
output tokens it was served. A class's share of the service is counted against its weight (`replica.classes`).
"""

from gnomon.jit import inlined
from gnomon.serving.engine.decode_group import ID
from gnomon.serving.engine.state import (
    CREDIT,
    NONE,
    OUTPUT_TOKENS,
    PRIORITY,
    PROMPT_TOKENS,
    QUEUED,
    WAS_QUEUED,
    WEIGHT,
    Replica,
)
from gnomon.serving.policies.vllm_v1 import admit_first


@inlined
def is_queued(replica: Replica, c: int) -> bool:
    """Whether a request of class `c` waits."""
    return replica.service[c, QUEUED] > 0.0


@inlined
def most_urgent(replica: Replica) -> int:
    """The class of the highest priority that has a request waiting, NONE if nothing waits; ties to the first."""
    best = NONE
    for c in range(replica.classes.shape[0]):
        if is_queued(replica, c) and (best == NONE or replica.classes[c, PRIORITY] > replica.classes[best, PRIORITY]):
            best = c
    return best


@inlined
def bring_forward(replica: Replica, c: int) -> None:
    """Move the first waiting request of class `c` to the front of the queue; the others keep their order."""
    state, requests = replica.state, replica.requests
    before, r = NONE, state.first_waiting
    while requests[r].user_class != c:
        before, r = r, requests[r].next_waiting
    move_to_front(replica, before, r)


@inlined
def move_to_front(replica: Replica, before: int, r: int) -> None:
    """Move request `r`, which waits behind `before` (NONE: it is the first), to the front of the queue."""
    state, requests = replica.state, replica.requests
    if before == NONE:
        return
    requests[before].next_waiting = requests[r].next_waiting
    if state.last_waiting == r:
        state.last_waiting = before
    requests[r].next_waiting = state.first_waiting
    state.first_waiting = r


@inlined
def charge_outputs(replica: Replica) -> None:
    """Bring the accounts of output tokens up to date. Call before anything is placed."""
    for i in range(replica.state.num_running):
        r = replica.running[i]
        _charge(replica, r, replica.requests[r].processed)
    for i in range(replica.state.num_grouped):
        r = replica.grouped[i, ID]
        request = replica.requests[r]
        _charge(replica, r, request.processed + replica.state.steps - request.joined)


@inlined
def _charge(replica: Replica, r: int, processed: int) -> None:
    request = replica.requests[r]
    produced = max(processed, request.prefill_tokens) - request.prompt_tokens
    replica.service[request.user_class, OUTPUT_TOKENS] += produced - request.charged
    request.charged = produced


@inlined
def spent(replica: Replica, c: int, prompt_price: float, output_price: float) -> float:
    """What class `c` was served, at these prices of a token."""
    return prompt_price * replica.service[c, PROMPT_TOKENS] + output_price * replica.service[c, OUTPUT_TOKENS]


@inlined
def balance(replica: Replica, c: int, prompt_price: float, output_price: float) -> float:
    """What is left of the credit of class `c`; below 0, it is in debt."""
    return replica.service[c, CREDIT] - spent(replica, c, prompt_price, output_price)


@inlined
def refill(replica: Replica, quantum: float, prompt_price: float, output_price: float) -> None:
    """Give every class that waits the same number of quanta times its weight, as few as let one of them go on."""
    rounds = -1.0
    for c in range(replica.classes.shape[0]):
        if is_queued(replica, c):
            debt = -balance(replica, c, prompt_price, output_price)
            needed = debt // (quantum * replica.classes[c, WEIGHT]) + 1.0
            rounds = needed if rounds < 0.0 else min(rounds, needed)
    for c in range(replica.classes.shape[0]):
        if is_queued(replica, c):
            replica.service[c, CREDIT] += max(rounds, 1.0) * quantum * replica.classes[c, WEIGHT]


@inlined
def forget_idle_credit(replica: Replica, prompt_price: float, output_price: float) -> None:
    """A class whose queue is empty keeps its debt, but saves no credit up."""
    for c in range(replica.classes.shape[0]):
        if not is_queued(replica, c):
            had = spent(replica, c, prompt_price, output_price)
            replica.service[c, CREDIT] = min(replica.service[c, CREDIT], had)


@inlined
def note_queued(replica: Replica) -> None:
    """Remember which classes wait, until the policy is asked again."""
    for c in range(replica.classes.shape[0]):
        replica.service[c, WAS_QUEUED] = 1.0 if is_queued(replica, c) else 0.0


@inlined
def settle_credit(replica: Replica, prompt_price: float, output_price: float) -> None:
    """Charge for what was produced since, and forget the credit of classes that do not wait."""
    if replica.state.num_waiting > 0:
        charge_outputs(replica)
        forget_idle_credit(replica, prompt_price, output_price)


@inlined
def admit_charged(replica: Replica, budget: int, cached_are_free: bool, reserves_prompt: bool) -> int:
    """`admit_first`, and its class pays for the prompt, or for what of it is computed, unless it was pre-empted here;
    returns its tokens, or 0."""
    r, state = replica.state.first_waiting, replica.state
    has_paid = state.num_waiting > 0 and replica.requests[r].preempted_at_s >= 0.0
    tokens = admit_first(replica, budget, reserves_prompt)
    if tokens > 0 and not has_paid:
        request = replica.requests[r]
        free = request.processed if cached_are_free else 0
        replica.service[request.user_class, PROMPT_TOKENS] += request.prompt_tokens - free
    return tokens
