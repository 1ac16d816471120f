"""SGLang: prefills before decodes, chunked, with memory kept for part of the outputs to come.

From: L. Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs" (NeurIPS 2024), and the
scheduler of its runtime (`schedule_policy.py`, `schedule_batch.py`): the share of future outputs that admission keeps
memory for starts at 0.7 whenever the server was idle, falls to 0.098 over 600 decode iterations, and rises again when
requests had to be retracted. With `--scheduler-recv-interval` above 1 (option `receive_interval`) the scheduler looks
for new requests after a prefill or when it is idle, but only after so many decode iterations in a row.
"""

from __future__ import annotations

from gnomon.core.jit import inner
from gnomon.serving import prefix_cache
from gnomon.serving.policies import batching_policy
from gnomon.serving.state import Replica
from gnomon.serving.stepping import place_together, processed_now
from gnomon.serving.verbs import (
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
)

_FIRST_RATIO, _LEAST_RATIO, _FALL_PER_ITERATION = 0.7, 0.098, 0.602 / 600
_RETRACT_AHEAD = 20  # decode steps for which a retraction makes room
_LONGEST_OUTPUT = 4096  # more output tokens are not reckoned with (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION)
_RECEIVE_INTERVAL = 0  # the option's place
_AT_ONCE = 1 << 30  # iterations since the last look for new requests that are more than any interval


@inner
def _ratio(replica: Replica) -> float:
    """The share of outputs to come that admission keeps memory for."""
    ratio = replica.state.reserve_ratio
    return ratio if ratio > 0.0 else _FIRST_RATIO


@inner
def _output_left(replica: Replica, r: int) -> int:
    request = replica.requests[r]
    left = request.total_tokens - max(processed_now(replica, r), request.prefill_tokens)
    return min(left, _LONGEST_OUTPUT)


@inner
def _receive(replica: Replica) -> None:
    """Look for new requests, unless the last iterations were decodes and fewer than the interval."""
    state = replica.state
    is_idle = state.num_running + state.num_stepping == 0
    if is_idle:
        state.reserve_ratio = _FIRST_RATIO
    if is_idle or state.wait_count >= replica.parameters[_RECEIVE_INTERVAL]:
        state.num_received = state.num_waiting
        state.wait_count = 0


@inner
def _missing(replica: Replica, r: int) -> int:
    """Blocks that the next tokens of a decode need."""
    request = replica.requests[r]
    return blocks_missing(replica, r, min(request.processed + replica.state.num_speculative, request.total_tokens))


@inner
def _compute_prefill(replica: Replica, r: int, tokens: int) -> None:
    prefix_cache.key_full_blocks(replica, r, replica.requests[r].processed + tokens)
    place(replica, r, tokens)


@inner
def _place_prefills(replica: Replica) -> None:
    """The chunk in progress, then new requests, within the chunk and the memory that outputs to come leave free."""
    state, running = replica.state, replica.running
    budget = min(state.max_batch_tokens, state.max_chunk_tokens)
    kept = 0
    spare = float(state.free_blocks * state.block_size)
    for i in range(state.num_stepping):
        spare -= _ratio(replica) * _output_left(replica, replica.stepping[i, 0])
    for i in range(state.num_running):
        r = running[i]
        spare -= _ratio(replica) * _output_left(replica, r)
        if is_decoding(replica, r):
            running[kept] = r
            kept += 1
            continue
        tokens = min(prefill_left(replica, r), budget)
        _compute_prefill(replica, r, tokens)
        budget -= tokens
    keep_running(replica, 0, kept)

    while state.num_received > 0 and budget > 0 and state.num_holding < state.max_running:
        r = state.first_waiting
        hits = prefix_cache.count_hits(replica, r)
        left = prefill_left(replica, r) - hits * state.block_size
        taken = prefix_cache.count_free_hits(replica, r, hits) if hits > 0 else 0
        needed = blocks_for(replica, replica.requests[r].prefill_tokens) - hits
        if needed + taken > state.free_blocks:
            break
        # An idle replica takes whatever fits at all.
        if left + taken * state.block_size + _output_left(replica, r) >= spare and state.num_holding > 0:
            break
        pop_waiting(replica)
        state.num_received -= 1
        hold_cached(replica, r, hits)
        hold(replica, r, needed)
        tokens = min(left, budget)
        _compute_prefill(replica, r, tokens)
        budget -= tokens
        spare -= left + taken * state.block_size + _ratio(replica) * _output_left(replica, r)


@inner
def _blocks_to_grow(replica: Replica) -> int:
    """Blocks that one token for every running request needs."""
    needed = 0
    for i in range(replica.state.num_running):
        needed += _missing(replica, replica.running[i])
    return needed


@inner
def _retract(replica: Replica) -> None:
    """Pre-empt the requests that have produced least until the others have the blocks they need now."""
    state, running = replica.state, replica.running
    retracted = False
    while state.num_running > 1 and state.free_blocks < _blocks_to_grow(replica):
        least, at = 1 << 62, 0
        for i in range(state.num_running):
            request = replica.requests[running[i]]
            produced = request.processed - request.prompt_tokens
            if produced <= least:
                least, at = produced, i
        r = running[at]
        for i in range(at, state.num_running - 1):
            running[i] = running[i + 1]
        state.num_running -= 1
        preempt(replica, r)
        state.num_received += 1
        retracted = True
    if retracted:
        produced, total = 0, 0
        for i in range(state.num_running):
            request = replica.requests[running[i]]
            produced += request.processed - request.prompt_tokens
            total += request.output_tokens
        state.reserve_ratio = min(1.0, (produced + _RETRACT_AHEAD * state.num_running) / max(total, 1))
    else:
        state.reserve_ratio = max(_LEAST_RATIO, _ratio(replica) - _FALL_PER_ITERATION)


@batching_policy(
    "sglang",
    defaults={"max_sequences": 256, "max_batch_tokens": 8192, "watermark": 0.0, "prefix_cache": True},
    max_batch_tokens_of="prefill",
    mixes=False,
    speculates=True,
    options={"receive_interval": 1.0},
    engine="sglang",
)
def sglang(replica: Replica) -> None:
    """A prefill-only batch if any request can be prefilled, else one token for every running request."""
    state, running = replica.state, replica.running
    _receive(replica)
    _place_prefills(replica)
    if state.batch_size > 0:
        state.wait_count = _AT_ONCE
        return
    place_together(replica)
    _retract(replica)
    first = 0
    while first < state.num_running and state.batch_size < state.max_in_batch:
        r = running[first]
        missing = _missing(replica, r)
        if missing > state.free_blocks:
            break
        if missing > 0:
            hold(replica, r, missing)
        place(replica, r, 1 + state.num_speculative)
        first += 1
    if state.batch_size == 0 and state.num_running > 0:
        preempt(replica, running[0])
        state.num_received += 1
        first = 1
    keep_running(replica, first, state.num_running)
    state.wait_count += 1
    state.steppable = 1
