"""Overlapped scheduling: a batch is formed while the one before it runs.

Batch n+1 is formed when n starts, from what is known then: the results of n-1, and who has come. Those in n are taken
to get their tokens. Whatever is heard later is acted on when n+2 is formed: a request that comes, KV that lands, the
blocks and places of those that end in n. Nothing else happens to a replica meanwhile, so it is the same to form n+1 at
the end of n and to hear the news just after that. A server with nothing in flight forms a batch at once.

The host launches a batch as soon as it has formed it, so that launching n+1 hides behind n; and the next one is formed
only when that is done. Where one thread does both, as in SGLang and TensorRT-LLM, the results of n, too, are taken in
only then: its tokens go out, and what it has prefilled is handed over, when n+1 is launched.
"""

from gnomon.jit import noinline
from gnomon.serving.engine.batch_operations import finish, is_decoding, place, push_waiting, tokens_placed
from gnomon.serving.engine.state import LEAVES, RUNNING, SURPLUS_AMONG_DECODES, WAITING, Replica
from gnomon.serving.features.handover import hand_over


@noinline
def apply_deferred(replica: Replica, now: float, heard_s: float) -> None:
    """Act on what has come since the batch that now starts was formed; tokens of the last one go out at `heard_s`."""
    state, r = replica.state, replica.state.first_answered
    for _ in range(state.num_answered):
        replica.requests[r].first_reply_s += heard_s - now
        r = replica.requests[r].next_answered
    state.num_answered, r = 0, state.first_deferred
    while state.num_deferred > 0:
        state.num_deferred -= 1
        request, following = replica.requests[r], replica.requests[r].next_waiting
        if request.status == WAITING:
            push_waiting(replica, r)
        elif request.processed >= request.total_tokens:
            finish(replica, r, now)
            request.last_reply_s = max(request.last_reply_s, state.reply_s + heard_s - now)
        elif request.processed == request.prefill_tokens:
            hand_over(replica, r, heard_s)
        else:  # Its KV has landed.
            replica.running[state.num_running] = r
            state.num_running += 1
        r = following


@noinline
def place_surplus(replica: Replica) -> None:
    """Those that have just ended are in the batch all the same: it was formed before anybody knew. A full one has
    computed a token less of others instead."""
    state, r = replica.state, replica.state.first_deferred
    prefills = state.batch_size > 0 and state.in_step == 0 and not is_decoding(replica, replica.batch[0])
    if prefills and state.surplus == SURPLUS_AMONG_DECODES:
        return
    each, tokens = 1 + state.num_speculative, tokens_placed(replica)
    for _ in range(state.num_deferred):
        request = replica.requests[r]
        has_room = state.batch_size < state.max_in_batch and tokens + each <= state.max_batch_tokens
        has_ended = request.processed >= request.total_tokens and request.held_counts != LEAVES
        if request.status == RUNNING and has_ended and has_room:
            place(replica, r, each)
            request.status = RUNNING
            tokens += each
        r = request.next_waiting
