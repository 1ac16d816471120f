"""TensorRT-LLM (PyTorch backend): in-flight batching under a token budget, with memory guaranteed to the end.

After its `scheduler.py` and `py_executor.py`. The capacity scheduler admits a request only if its KV cache fits to the
last token, beside those of all admitted before (GUARANTEED_NO_EVICT), or as long as there is room now, pausing the
request admitted last when there is none (MAX_UTILIZATION). The micro-batch scheduler then takes every generation, and
prompts in order of arrival while `max_num_tokens` allows: whole ones, or in chunks of whole blocks. Prompts may be held
back: until a batch is full enough (`batch_wait_timeout_iters`, `batch_wait_max_tokens_ratio`), or, with attention data
parallelism, until all ranks have some (`attention_dp_config`).
"""

from gnomon.jit import inlined
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.batch_operations import (
    blocks_for,
    hold,
    hold_cached,
    is_decoding,
    place,
    pop_waiting,
    prefill_left,
    tokens_placed,
)
from gnomon.serving.engine.state import Replica
from gnomon.serving.policies import batching_policy
from gnomon.serving.policies.vllm_v1 import continue_running

OPTIONS = {
    "max_utilization": 0.0, "chunked_prefill": 0.0, "wait_iterations": 0.0, "wait_tokens_ratio": 0.0, "balance": 0.0,
    "balance_wait_iterations": 10.0, "balance_timeout_iterations": 50.0,
}  # fmt: skip
_MAX_UTILIZATION, _CHUNKED, _WAIT, _WAIT_RATIO, _BALANCE, _BALANCE_WAIT, _BALANCE_TIMEOUT = range(7)
# In memory: iterations that prompts have waited for a fuller batch, and for other ranks; whether the group waits now.
_WAITED, _WAITED_FOR_RANKS, _HOLDS = range(3)


@inlined
def _needed(replica: Replica, r: int, hits: int) -> int:
    """Blocks that an admission takes: those of the whole request, or of its prompt."""
    request = replica.requests[r]
    to_the_end = replica.parameters[_MAX_UTILIZATION] == 0.0
    tokens = request.total_tokens if to_the_end else request.prefill_tokens
    return blocks_for(replica, tokens) - hits


@inlined
def _first_part(replica: Replica, left: int, budget: int) -> int:
    """Tokens of a prompt in this iteration: all that is left, a chunk of whole blocks, or none."""
    if left <= budget:
        return left
    if replica.parameters[_CHUNKED] == 0.0:
        return 0
    return budget // replica.state.block_size * replica.state.block_size


@inlined
def _prompts_that_fit(replica: Replica, budget: int) -> tuple[int, int]:
    """How many waiting requests the two schedulers would take now, and the tokens of their prompts."""
    state = replica.state
    count, tokens, blocks = 0, 0, 0
    r = state.first_waiting
    for _ in range(state.num_waiting):
        if state.num_holding + count >= state.max_running or state.batch_size + count >= state.max_in_batch:
            break
        hits = prefix_cache.count_hits(replica, r)
        taken = prefix_cache.count_free_hits(replica, r, hits)
        blocks += _needed(replica, r, hits) + taken
        part = _first_part(replica, prefill_left(replica, r) - hits * state.block_size, budget - tokens)
        if blocks > state.free_blocks - state.watermark_blocks or part <= 0:
            break
        count += 1
        tokens += part
        r = replica.requests[r].next_waiting
    return count, tokens


@inlined
def _waits_for_more(replica: Replica, prompts: int, decodes: int) -> bool:
    """Hold prompts back until they fill the batch, or for so many iterations; never while nothing is generated."""
    state, given, memory = replica.state, replica.parameters, replica.memory
    if decodes == 0 or prompts == 0:
        return False
    if memory[_WAITED] >= given[_WAIT] or prompts + decodes >= given[_WAIT_RATIO] * state.max_batch_tokens:
        memory[_WAITED] = 0
        return False
    memory[_WAITED] += 1
    return True


@inlined
def _hold_back_group(replica: Replica) -> None:
    """The first rank decides for its group whether any of them prefills: only if all have prompts and places for them,
    then after `balance_wait_iterations`; else after the time-out, or where a rank has nothing to generate."""
    leader, ranks, given, memory = replica.state, replica.ranks, replica.parameters, replica.memory
    all_prompts, all_decodes, all_places = True, True, True
    for i in range(leader.group_first, leader.group_first + leader.group_size):
        decodes = ranks[i].num_holding
        all_prompts = all_prompts and ranks[i].num_waiting > 0
        all_decodes = all_decodes and decodes > 0
        all_places = all_places and decodes < ranks[i].max_in_batch
    memory[_HOLDS] = 0
    if all_places and all_prompts:
        memory[_WAITED_FOR_RANKS] = 0
        if all_decodes and memory[_WAITED] < given[_BALANCE_WAIT]:
            memory[_WAITED] += 1
            memory[_HOLDS] = 1
        elif all_decodes:
            memory[_WAITED] = 0
        return
    memory[_WAITED_FOR_RANKS] += 1
    if memory[_WAITED_FOR_RANKS] >= given[_BALANCE_TIMEOUT] or not all_decodes:
        memory[_WAITED_FOR_RANKS] = 0
    else:
        memory[_HOLDS] = 1


@inlined
def _is_held_back(replica: Replica, prompts: int, decodes: int) -> bool:
    """Whether the prompts that would fit wait for a later iteration."""
    state = replica.state
    if state.group_size == 1:
        return _waits_for_more(replica, prompts, decodes)
    if replica.parameters[_BALANCE] == 0.0:
        return False
    if state.id == state.group_first:
        _hold_back_group(replica)
    return bool(replica.group_memory[_HOLDS] != 0)


@inlined
def _admit(replica: Replica, budget: int) -> int:
    """Take the first waiting request in; returns its tokens in this iteration."""
    state = replica.state
    r = state.first_waiting
    hits = prefix_cache.count_hits(replica, r)
    tokens = _first_part(replica, prefill_left(replica, r) - hits * state.block_size, budget)
    needed = _needed(replica, r, hits)
    pop_waiting(replica)
    hold_cached(replica, r, hits)
    hold(replica, r, needed)
    place(replica, r, tokens)
    return tokens


@batching_policy(
    "trtllm", max_batch_tokens_of="iteration", reserves="request", has_chunk_cap=False, chunks_if="chunked_prefill",
    defaults={
        "max_sequences": 2048, "max_batch_tokens": 8192, "block_size": 32, "watermark": 0.0, "prefix_cache": True,
    },
    holds_back="holds prompts back until a batch is fuller, or all ranks have some",
    launches_first=True,  # _torch/pyexecutor/py_executor.py: _forward_step, then _process_previous_batch.
    speculates=True, options=OPTIONS, memory=3, engine="trtllm",
)  # fmt: skip
def trtllm(replica: Replica) -> None:
    """Every generation and chunk under way, then prompts of new requests, unless they are held back."""
    state = replica.state
    state.steppable = 1
    nobody_paused = continue_running(replica, False)
    used = tokens_placed(replica)
    decodes = state.num_grouped if state.in_step != 0 else 0
    for i in range(decodes, state.batch_size):
        decodes += 1 if is_decoding(replica, replica.batch[i]) else 0
    count, prompts = _prompts_that_fit(replica, state.max_batch_tokens - used) if nobody_paused else (0, 0)
    if _is_held_back(replica, prompts, decodes):
        return
    for _ in range(count):
        used += _admit(replica, state.max_batch_tokens - used)
