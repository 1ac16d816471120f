"""The replica on which the request would finish first, foretold from the timing tables.

Knows how fast each replica is, how much prefill is queued there and how many requests decode; expects outputs of
`expected_output` tokens, because true output lengths are not known at arrival.
"""

from __future__ import annotations

from gnomon.core.jit import inner
from gnomon.serving.routers import Fleet, router
from gnomon.timing.lookup import Shape, stage_s, with_host_s


@inner
def iteration_s(fleet: Fleet, r: int, prefill: int, decodes: int, kv: float) -> float:
    """One iteration of replica `r` over all its stages, with a prefill chunk and some decodes."""
    state, tables = fleet.cluster.replicas[r], fleet.tables
    tokens = min(prefill + decodes, tables.token_s.shape[1] - 1)
    sequences = min(decodes + (1 if prefill > 0 else 0), tables.sequence_s.shape[1] - 1)
    decodes = min(decodes, tables.decode_s.shape[1] - 1)
    shape = Shape(tokens, sequences, float(prefill) * prefill, 0.0, decodes, decodes * kv, kv)
    total = 0.0
    for stage in range(state.num_stages):
        total += stage_s(tables, state.row + stage, shape, tokens)
    return with_host_s(tables, state.row, total, sequences)


@inner
def foretold_s(fleet: Fleet, r: int, prompt: int, output: float) -> float:
    """Seconds until a request of this size would be done on replica `r`, if nothing else arrived."""
    state = fleet.cluster.replicas[r]
    used = (state.num_blocks - state.free_blocks) * state.block_size
    decoding = max(0, state.num_holding)
    kv = used / decoding if decoding > 0 else 0.0
    chunk = max(
        1, min(state.prefill_left + prompt, state.max_batch_tokens - min(decoding, state.max_batch_tokens // 2))
    )
    num_chunks = (state.prefill_left + prompt) / chunk
    prefill_s = num_chunks * iteration_s(fleet, r, chunk, decoding, kv)
    # Requests beyond the batch cap or the memory wait for others to finish first.
    batch = min(state.num_outstanding + 1, state.max_running)
    per_token_s = iteration_s(fleet, r, 0, batch, max(kv, float(prompt)))
    rounds = (state.num_outstanding + 1) / batch
    need = state.waiting_tokens + prompt + output
    free = state.free_blocks * state.block_size
    if need > free:
        rounds += (need - free) / max(1.0, float(state.num_blocks * state.block_size))
    return prefill_s + rounds * output * per_token_s


@router("lookahead", expected_output=200.0)
def lookahead(fleet: Fleet, request_id: int) -> int:
    """Smallest foretold time to finish; ties to the lowest id."""
    prompt = fleet.cluster.requests[request_id].prompt_tokens
    best, least = 0, 1e300
    for r in range(fleet.cluster.replicas.size):
        seconds = foretold_s(fleet, r, prompt, fleet.parameters[0])
        if seconds < least:
            best, least = r, seconds
    return best
