"""SGLang: prefills before decodes, chunked, with memory kept for part of the outputs to come.

From: L. Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs" (NeurIPS 2024), and the
scheduler of its runtime (`python/sglang/srt/managers/{scheduler,schedule_policy,schedule_batch}.py` of commit 00550cd;
`PrefillAdder` also of 0.5.9):

- Admission keeps memory for a share of the outputs that running requests have yet to produce, of each at most 4096
  tokens, and for the whole output of those admitted in the same pass. The share starts at 0.7, falls to 0.098 over 600
  decode steps, is set anew when requests are retracted, and starts over when the engine was idle.
- A prompt that does not fit into what is left of the chunk (`--chunked-prefill-size`) starts with what does. But one
  that would use up what is left of `--max-prefill-tokens` (option `max_prefill_tokens`) waits for the next pass, unless
  it is alone: where both limits are equal, only a prompt longer than them is cut.
- Once a request did not fit, none is tried until one leaves.
- When a decode step lacks memory, the requests that have produced least are retracted, at least one: their KV beyond
  what they prefilled is freed at once, and they go to the end of the queue. Where even a single one lacks memory, it
  is rejected.
- With `--scheduler-recv-interval` above 1 (option `receive_interval`) the scheduler looks for new requests after a
  prefill or when it is idle, but only after so many decode iterations in a row.
- Before 0.5.10 (option `joins_at_once` 0), a data-parallel rank to which KV has come from a prefill worker decodes
  nothing in that step, while other ranks do (`disaggregation/decode.py`; pull requests 12839, 19568).

Blocks stand for SGLang's pages. SGLang knows `max_new_tokens`, Gnomon the output itself; and where SGLang shortens
`max_new_tokens` to what can ever fit, an idle replica takes whatever fits.
"""

from typing import Any

from gnomon.jit import inlined
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.batch_operations import (
    blocks_for,
    blocks_missing,
    hold,
    hold_cached,
    is_decoding,
    keep_running,
    place,
    pop_waiting,
    preempt,
    prefill_left,
    retract,
)
from gnomon.serving.engine.decode_group import ID, place_together, processed_now
from gnomon.serving.engine.state import Replica
from gnomon.serving.policies import batching_policy

_FIRST_RATIO, _LEAST_RATIO, _FALL_PER_STEP = 0.7, 0.098, 0.602 / 600
_RETRACT_AHEAD = 20  # Decode steps that the share after a retraction looks ahead.
_MOST_EXPECTED = 4096  # Output tokens of a request that admission counts (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION)
_RECEIVE_INTERVAL, _MAX_PREFILL, _JOINS_AT_ONCE = range(3)  # The options' places.
# In memory: waiting requests that the scheduler knows of, iterations since it looked for new ones, 1 + how many had
# left when a request did not fit, the share of outputs to come that KV blocks are kept for, and when the KV came of
# the last that a rank let join.
_RECEIVED, _SINCE_LOOK, _LEFT_WHEN_FULL, _RATIO, _JOINED_S = range(5)
_AT_ONCE = 1 << 30  # Iterations since the last look for new requests that are more than any interval.


@inlined
def _output_left(replica: Replica, r: int) -> int:
    """Output tokens of request `r` to come, as admission counts them."""
    left = replica.requests[r].total_tokens - max(processed_now(replica, r), replica.requests[r].prefill_tokens)
    return min(left, _MOST_EXPECTED)


@inlined
def _whole_output(replica: Replica, r: int) -> int:
    return min(replica.requests[r].output_tokens, _MOST_EXPECTED)


@inlined
def _was_idle(replica: Replica) -> bool:
    """Whether nothing was there until the request that is first in the queue arrived."""
    state = replica.state
    return state.num_holding == 0 and replica.requests[state.first_waiting].arrival_s == state.now_s


@inlined
def _receive(replica: Replica) -> None:
    """Look for new requests, unless the last iterations were decodes and fewer than the interval."""
    state, memory = replica.state, replica.memory
    if memory[_RATIO] == 0.0 or (state.num_waiting > 0 and _was_idle(replica)):
        memory[_RATIO] = _FIRST_RATIO
    is_idle = state.num_running + state.num_grouped == 0
    if is_idle or memory[_SINCE_LOOK] >= replica.parameters[_RECEIVE_INTERVAL]:
        memory[_RECEIVED] = state.num_waiting
        memory[_SINCE_LOOK] = 0
    memory[_RECEIVED] = min(memory[_RECEIVED], state.num_waiting)  # Some may have been rejected or cancelled.


@inlined
def _missing(replica: Replica, r: int) -> int:
    """Blocks that the next tokens of a decode need."""
    request = replica.requests[r]
    return blocks_missing(replica, r, min(request.processed + replica.state.num_speculative, request.total_tokens))


@inlined
def _sits_out(replica: Replica) -> bool:
    """Whether a rank lets those join whose KV has come since others last did, instead of decoding."""
    state, last_s = replica.state, replica.memory[_JOINED_S]
    if state.group_size > 1 and replica.parameters[_JOINS_AT_ONCE] == 0.0:
        for i in range(state.num_running):
            request = replica.requests[replica.running[i]]
            if request.processed == request.prefill_tokens + 1:
                replica.memory[_JOINED_S] = max(replica.memory[_JOINED_S], request.landed_s)
    return bool(replica.memory[_JOINED_S] > last_s)


@inlined
def _num_left(state: Any) -> int:
    """Requests that have left the running ones so far."""
    return state.num_finished + state.num_rejected + state.num_preemptions


@inlined
def _place_prefills(replica: Replica) -> None:
    """The chunk in progress, then new requests, within the chunk and the memory that outputs to come leave free."""
    state, running, memory = replica.state, replica.running, replica.memory
    budget = min(state.max_batch_tokens, state.max_chunk_tokens)
    most = int(replica.parameters[_MAX_PREFILL])
    kept = 0
    spare = float(state.free_blocks * state.block_size)
    for i in range(state.num_grouped):
        spare -= memory[_RATIO] * _output_left(replica, replica.grouped[i, ID])
    for i in range(state.num_running):
        r = running[i]
        if is_decoding(replica, r):
            spare -= memory[_RATIO] * _output_left(replica, r)
            running[kept] = r
            kept += 1
            continue
        tokens = min(prefill_left(replica, r), budget)
        if tokens == prefill_left(replica, r):
            spare -= _whole_output(replica, r)
        place(replica, r, tokens)
        budget -= tokens
        most -= tokens
    keep_running(replica, 0, kept)

    if memory[_LEFT_WHEN_FULL] == _num_left(state) + 1 and state.num_holding > 0:
        return
    while memory[_RECEIVED] > 0 and budget > 0 and state.num_holding < state.max_running:
        r = state.first_waiting
        hits = prefix_cache.count_hits(replica, r)
        left = prefill_left(replica, r) - hits * state.block_size
        taken = prefix_cache.count_free_hits(replica, r, hits)
        needed = blocks_for(replica, replica.requests[r].prefill_tokens) - hits
        wanted = left + taken * state.block_size + _output_left(replica, r) + state.block_size
        # An idle replica takes whatever fits at all.
        if needed + taken > state.free_blocks or (wanted >= spare and state.num_holding > 0):
            memory[_LEFT_WHEN_FULL] = _num_left(state) + 1
            return
        if left >= most and state.batch_size > 0:
            return
        pop_waiting(replica)
        memory[_RECEIVED] -= 1
        hold_cached(replica, r, hits)
        hold(replica, r, needed)
        tokens = min(left, budget)
        place(replica, r, tokens)
        budget -= tokens
        most -= tokens
        spare -= (needed + taken + 1) * state.block_size + _whole_output(replica, r)


@inlined
def _blocks_to_grow(replica: Replica) -> int:
    """Blocks that one token for every running request needs."""
    needed = 0
    for i in range(replica.state.num_running):
        needed += _missing(replica, replica.running[i])
    return needed


@inlined
def _first_to_go(replica: Replica) -> int:
    """Where in the running list the request stands that has produced least; of those, the longest prompt, the last."""
    found, least, longest = 0, 1 << 62, 0
    for i in range(replica.state.num_running):
        request = replica.requests[replica.running[i]]
        produced = request.processed - request.prompt_tokens
        if produced < least or (produced == least and request.prompt_tokens >= longest):
            found, least, longest = i, produced, request.prompt_tokens
    return found


@inlined
def _retract(replica: Replica) -> None:
    """Retract requests until the others have the blocks they need now, and set the share that admission keeps."""
    state, running, memory = replica.state, replica.running, replica.memory
    while state.num_running > 1 and state.free_blocks < _blocks_to_grow(replica):
        at = _first_to_go(replica)
        r = running[at]
        for i in range(at, state.num_running - 1):
            running[i] = running[i + 1]
        state.num_running -= 1
        retract(replica, r)
        memory[_RECEIVED] += 1
    produced, total = 0, 1
    for i in range(state.num_running):
        request = replica.requests[running[i]]
        produced += request.processed - request.prompt_tokens
        total += request.output_tokens
    memory[_RATIO] = min(1.0, (produced + _RETRACT_AHEAD * state.num_running) / total)


@batching_policy(
    "sglang",
    defaults={"max_sequences": 256, "max_batch_tokens": 8192, "watermark": 0.0, "prefix_cache": True},
    max_batch_tokens_of="prefill",
    mixes=False,
    launches_first=True,  # managers/scheduler.py event_loop_overlap: run_batch, then the last result is processed.
    speculates=True,
    holds_back="keeps memory for part of the outputs that running requests have yet to produce",
    options={"receive_interval": 1.0, "max_prefill_tokens": 16384.0, "joins_at_once": 1.0},
    memory=5,
    engine="sglang",
)
def sglang(replica: Replica) -> None:
    """A prefill-only batch if any request can be prefilled, else one token for every running request."""
    state, running, memory = replica.state, replica.running, replica.memory
    _receive(replica)
    _place_prefills(replica)
    if state.batch_size > 0:
        memory[_SINCE_LOOK] = _AT_ONCE
        return
    memory[_SINCE_LOOK] += 1
    if _sits_out(replica):
        return
    place_together(replica)
    needed = _blocks_to_grow(replica)
    if needed > state.free_blocks:
        _retract(replica)
        needed = _blocks_to_grow(replica)
    else:
        memory[_RATIO] = max(_LEAST_RATIO, memory[_RATIO] - _FALL_PER_STEP)
    first = 0
    if needed > state.free_blocks:
        # Even the last one lacks memory: it is given up, unless batches in flight will make room.
        if state.num_holding > state.num_running:
            return
        preempt(replica, running[0])
        memory[_RECEIVED] += 1
        first = 1
    while first < state.num_running and state.batch_size < state.max_in_batch:
        missing = _missing(replica, running[first])
        if missing > 0:
            hold(replica, running[first], missing)
        place(replica, running[first], 1 + state.num_speculative)
        first += 1
    keep_running(replica, first, state.num_running)
    state.steppable = 1
