"""The scheduler of vLLM v1: one token budget, running requests first, chunked prefill, prefix cache.

After vLLM's `v1/core/sched/scheduler.py` (0.19): there is no prefill or decode phase, each request just catches up
with its tokens. Optional speculative decoding makes a decode compute `num_speculative` more tokens.
"""

from gnomon.jit import inlined
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.batch_operations import (
    blocks_for,
    blocks_missing,
    computed,
    hold,
    hold_cached,
    is_decoding,
    keep_running,
    place,
    pop_waiting,
    preempt,
    prefill_left,
    sort_running_by_admission,
    tokens_placed,
)
from gnomon.serving.engine.decode_group import dissolve, place_together
from gnomon.serving.engine.state import Replica
from gnomon.serving.policies import batching_policy

_PREFILL_INTERVAL, _RESERVES_PROMPT = range(2)  # the options' places
_SINCE = 0  # in memory: iterations since waiting requests were looked at


@inlined
def _tokens_wanted(replica: Replica, r: int) -> int:
    """What a running request computes in one iteration, if the batch has room for it."""
    if is_decoding(replica, r):
        return 1 + replica.state.num_speculative
    return min(prefill_left(replica, r), replica.state.max_chunk_tokens)


@inlined
def _must_take_turns(replica: Replica) -> bool:
    """Whether a running request that was admitted before some of those that step together could leave one of them
    without tokens or blocks: a long prompt in small chunks, overtaken by a short one."""
    state, is_older = replica.state, False
    if state.num_running == 0 or state.num_grouped == 0:
        return False
    tokens, blocks = state.num_grouped, 1 + replica.growth[state.steps % state.block_size]
    for i in range(state.num_running):
        r = replica.running[i]
        is_older = is_older or replica.requests[r].admission < state.last_admitted_grouped
        wanted = _tokens_wanted(replica, r)
        tokens += wanted
        blocks += blocks_missing(replica, r, computed(replica, r) + wanted)
    return is_older and (tokens > state.max_batch_tokens or blocks > state.free_blocks)


@inlined
def continue_running(replica: Replica, findable_ahead: bool = True) -> bool:
    """Give every running request its tokens, in order of admission; returns whether nobody was pre-empted.

    When blocks run out, the request admitted last makes room, if need be the one at hand itself; but where others are
    in flight (pipeline stages), it waits for them, lest two push each other out for ever. `findable_ahead`: the prefix
    cache finds blocks as soon as they are placed, as vLLM's does, not only once they are computed.
    """
    if _must_take_turns(replica):
        dissolve(replica, 0)
    budget = replica.state.max_batch_tokens - place_together(replica)
    sort_running_by_admission(replica)
    return continue_in_order(replica, budget, findable_ahead)


@inlined
def continue_in_order(replica: Replica, budget: int, findable_ahead: bool = True) -> bool:
    """`continue_running` in the order of the running list, with so many tokens."""
    state, running = replica.state, replica.running
    first, last = 0, state.num_running
    all_kept = True
    while first < last and budget > 0:
        r = running[first]
        tokens = min(_tokens_wanted(replica, r), budget)
        after = computed(replica, r) + tokens
        missing = blocks_missing(replica, r, after)
        while missing > state.free_blocks and first < last:
            all_kept = False
            if first + 1 == last and state.num_holding > 1 + state.batch_size:
                break
            last -= 1
            preempt(replica, running[last])
        if first == last or missing > state.free_blocks:
            break
        if missing > 0:
            hold(replica, r, missing)
        if findable_ahead and not is_decoding(replica, r):
            prefix_cache.key_full_blocks(replica, r, after)
        place(replica, r, tokens)
        budget -= tokens
        first += 1
    keep_running(replica, first, last)
    return all_kept


@inlined
def has_memory_for(replica: Replica, r: int, hits: int, after: int) -> bool:
    """Whether `after` tokens of a waiting request, `hits` blocks of which are cached, fit beside the watermark."""
    state = replica.state
    taken = prefix_cache.count_free_hits(replica, r, hits)
    return blocks_for(replica, after) - hits + taken <= state.free_blocks - state.watermark_blocks


@inlined
def admit_first(replica: Replica, budget: int, reserves_prompt: bool = True) -> int:
    """Admit the first waiting request if there are tokens, a place and blocks for it, those of its whole prompt or of
    its first chunk alone; returns its tokens, or 0."""
    state = replica.state
    if state.num_waiting == 0 or budget <= 0 or state.num_holding >= state.max_running:
        return 0
    r = state.first_waiting
    if state.lacks_blocks == r + 1 and budget >= state.lacks_with_budget:  # As it was: no need to look for its prefix.
        return 0
    hits = prefix_cache.count_hits(replica, r)
    tokens = min(prefill_left(replica, r) - hits * state.block_size, budget, state.max_chunk_tokens)
    after = hits * state.block_size + tokens
    if not has_memory_for(replica, r, hits, replica.requests[r].prefill_tokens if reserves_prompt else after):
        if hits > 0:
            state.lacks_blocks, state.lacks_with_budget = r + 1, budget
        return 0
    pop_waiting(replica)
    hold_cached(replica, r, hits)
    hold(replica, r, blocks_missing(replica, r, after))
    prefix_cache.key_full_blocks(replica, r, after)
    place(replica, r, tokens)
    return tokens


@inlined
def _waits_for_its_turn(replica: Replica, budget: int) -> bool:
    """With `prefill_interval` N, new requests are admitted in every Nth iteration only, while others run."""
    state, memory = replica.state, replica.memory
    if budget == state.max_batch_tokens or memory[_SINCE] + 1 >= replica.parameters[_PREFILL_INTERVAL]:
        memory[_SINCE] = 0
        return False
    memory[_SINCE] += 1
    return True


@batching_policy(
    "vllm_v1", defaults={"max_sequences": 256, "max_batch_tokens": 8192, "watermark": 0.0, "prefix_cache": True},
    max_batch_tokens_of="iteration", engine="vllm", speculates=True, recomputes_last_token=True,
    holds_back="admits new requests in every Nth iteration only (prefill_interval)",
    options={"prefill_interval": 1.0, "reserve_full_prompt": 1.0}, memory=1,
)  # fmt: skip
def vllm_v1(replica: Replica) -> None:
    """Running requests first; if none had to be pre-empted, waiting ones with what is left of the token budget."""
    if continue_running(replica):
        budget = replica.state.max_batch_tokens - tokens_placed(replica)
        reserves = replica.parameters[_RESERVES_PROMPT] != 0.0
        tokens = 0 if _waits_for_its_turn(replica, budget) else admit_first(replica, budget, reserves)
        while tokens > 0:
            budget -= tokens
            tokens = admit_first(replica, budget, reserves)
    replica.state.steppable = 2 if replica.parameters[_PREFILL_INTERVAL] <= 1.0 else 1
