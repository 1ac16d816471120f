"""What a router that observes knows of the replicas: what a gateway can know, or (option `omniscient`) all there is.

A gateway knows its own requests exactly, metrics as read every `scrape_s` seconds, prefixes by KV events, a share
`kv_loss` of which never came, speeds as fitted to what was done between two readings, with a factor beside them that
follows a sudden change, and when a replica's last token came. An omniscient router sees tables and states in their
place. A router asks here and need not know which of the two it is told; it calls `look` once for every arrival.
"""

from typing import Any

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.jit import inlined, noinline
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.context import Fleet
from gnomon.serving.engine.state import replica_view
from gnomon.serving.policies import UNBOUNDED
from gnomon.timing import lookup
from gnomon.timing.lookup import Shape

# Of each replica: when it was read last, its counters then, whether it has been busy since, its free blocks, ...
_READ_S, _ITERATIONS, _TOKENS, _PRODUCED, _BUSY, _FREE = range(6)
# ... when a token came last, and how many had come, ...
_HEARD_S, _HEARD = 6, 7
# ... the fit: a factor, four speeds, their normal equations.
_FACTOR, _SPEEDS, _SUMS, _PRODUCTS = 8, 9, 13, 17
_SCRAPED_S = 33  # When its metrics came last, whether or not they said anything of speeds.
_PER_REPLICA = 34
# And of the fleet, behind all of them: two of the options, and the mean speeds.
_SCRAPE_S, _KV_LOSS, _USUAL = range(3)
_OF_FLEET = 6

_UNITS = (1.0, 1e-3, 1e-2, 1e-5)
"""Speeds are seconds per iteration, 1,000 prompt tokens, 100 decodes, and 100,000 tokens of context."""
_AT_FIRST = (0.01, 0.04, 0.004, 0.005)
"""What they are thought to be before anything was seen; only their ratios matter then."""
_FORGETTING, _QUICK, _BELIEF, _SWEEPS = 0.985, 0.15, 300.0, 4
"""What is kept of the sums from one reading to the next; weight of the newest in the factor; how many readings of one
unit each the fleet's mean speeds are worth; rounds of the solver."""
_LONGEST_S = 2.0  # What is read says nothing of speeds before two iterations have ended; then, or if none does so long.
_SHORTEST_SILENCE_S, _PRIME = 0.25, 2_147_483_647
_WITHOUT_BUDGET = 4096
"""Prompt tokens of an iteration where the policy has no token budget: the prompts of an iteration are priced as one,
and attention over one as long as the whole queue would cost many times what it does."""
_SHORTEST_S = 1e-9  # Ratios of times must exist even where a table of the user's says that nothing takes any time.


def at_first(num_blocks: Any, scrape_s: float, kv_loss: float, omniscient: float) -> Floats:
    """What is known of replicas with so many blocks before the first arrival: beliefs; nothing for who sees all."""
    if omniscient:
        return np.zeros(0)
    known = np.zeros(_PER_REPLICA * len(num_blocks) + _OF_FLEET)
    each, fleet = known[:-_OF_FLEET].reshape(-1, _PER_REPLICA), known[-_OF_FLEET:]
    each[:, _FREE], each[:, _FACTOR], each[:, _SPEEDS : _SPEEDS + 4] = num_blocks, 1.0, _AT_FIRST
    fleet[:] = scrape_s, kv_loss, *_AT_FIRST
    return known


@noinline
def look(fleet: Fleet, now: float) -> None:
    """Listen to all replicas, and read the metrics of those where that is due."""
    known, of_fleet = fleet.known, _PER_REPLICA * fleet.cluster.replicas.size
    for r in range(fleet.cluster.replicas.size if known.size > 0 else 0):
        state, mine = fleet.cluster.replicas[r], _PER_REPLICA * r
        has = state.num_outstanding + state.num_coming
        if has == 0 or state.num_produced != known[mine + _HEARD]:
            known[mine + _HEARD], known[mine + _HEARD_S] = state.num_produced, now
        if has == 0:
            known[mine + _BUSY] = 0.0
        if now - known[mine + _SCRAPED_S] < known[of_fleet + _SCRAPE_S]:
            continue
        known[mine + _SCRAPED_S] = now
        elapsed_s = now - known[mine + _READ_S]
        iterations = state.num_iterations - int(known[mine + _ITERATIONS])
        if known[mine + _BUSY] > 0.0 and iterations <= 1 and elapsed_s < _LONGEST_S:
            known[mine + _FREE] = state.reported_free
            continue
        if known[mine + _BUSY] > 0.0 and iterations > 1:
            made = state.num_produced - known[mine + _PRODUCED]
            prefill = max(0.0, state.tokens_computed - known[mine + _TOKENS] - made)
            used = (state.num_blocks - known[mine + _FREE]) * state.block_size
            kv = used / max(1, state.num_outstanding - state.num_waiting)
            _fit(known, mine, of_fleet + _USUAL, elapsed_s, iterations, prefill, made, kv)
        known[mine + _READ_S], known[mine + _ITERATIONS] = now, state.num_iterations
        known[mine + _TOKENS], known[mine + _PRODUCED] = state.tokens_computed, state.num_produced
        known[mine + _BUSY], known[mine + _FREE] = 1.0 if has > 0 else 0.0, state.reported_free


@noinline
def _fit(
    known: Any, mine: int, usual: int, elapsed_s: float, iterations: int, prefill: float, made: float, kv: float
) -> None:
    """Take in what a replica did in so many seconds: least squares with speeds of at least 0, held to the fleet's."""
    done = (float(iterations), prefill * _UNITS[1], made * _UNITS[2], made * kv * _UNITS[3])
    expected = 0.0
    for i in range(4):
        expected += known[mine + _SPEEDS + i] * done[i]
    ratio = min(5.0, max(0.2, elapsed_s / max(1e-9, expected)))
    known[mine + _FACTOR] += _QUICK * (ratio - known[mine + _FACTOR])
    for i in range(4):
        known[mine + _SUMS + i] = _FORGETTING * known[mine + _SUMS + i] + done[i] * elapsed_s
        for j in range(4):
            at = mine + _PRODUCTS + 4 * i + j
            known[at] = _FORGETTING * known[at] + done[i] * done[j]
    for _ in range(_SWEEPS):
        for i in range(4):
            rest = known[mine + _SUMS + i] + _BELIEF * known[usual + i]
            for j in range(4):
                if j != i:
                    rest -= known[mine + _PRODUCTS + 4 * i + j] * known[mine + _SPEEDS + j]
            known[mine + _SPEEDS + i] = max(0.0, rest / (known[mine + _PRODUCTS + 5 * i] + _BELIEF))
    for i in range(4):
        known[usual + i] += 0.02 * (known[mine + _SPEEDS + i] - known[usual + i])


@inlined
def iteration_s(fleet: Fleet, r: int, prefill: float, decodes: int, kv: float) -> float:
    """One iteration of replica `r` over all its stages, with a prefill chunk and some decodes of length `kv` each."""
    if fleet.known.size > 0:
        at, known = _PER_REPLICA * r + _SPEEDS, fleet.known
        work = known[at] + known[at + 1] * prefill * _UNITS[1]
        work += decodes * (known[at + 2] * _UNITS[2] + known[at + 3] * kv * _UNITS[3])
        return max(_SHORTEST_S, known[_PER_REPLICA * r + _FACTOR] * work)
    state, tables, chunk = fleet.cluster.replicas[r], fleet.tables, int(prefill)
    tokens = min(chunk + decodes, tables.token_s.shape[1] - 1)
    sequences = min(decodes + (1 if chunk > 0 else 0), tables.sequence_s.shape[1] - 1)
    decodes = min(decodes, tables.decode_s.shape[1] - 1)
    shape = Shape(tokens, sequences, float(chunk) * chunk, 0.0, decodes, decodes * kv, kv, decodes, 0.0)
    return max(_SHORTEST_S, lookup.iteration_s(tables, state.row, state.num_stages, shape, tokens))


@inlined
def free_blocks(fleet: Fleet, r: int) -> float:
    """KV blocks that nobody uses."""
    return (
        fleet.known[_PER_REPLICA * r + _FREE] if fleet.known.size > 0 else float(fleet.cluster.replicas[r].free_blocks)
    )


@inlined
def kv_used_each(fleet: Fleet, r: int, count: int) -> float:
    """Mean KV tokens of so many requests."""
    state = fleet.cluster.replicas[r]
    return (state.num_blocks - free_blocks(fleet, r)) * state.block_size / max(1, count)


@inlined
def batch_ends_in_s(fleet: Fleet, r: int, now: float, running: int, kv: float) -> float:
    """Seconds until the batch in flight ends; where that is not known half an iteration of so many decodes of length
    `kv` each."""
    state = fleet.cluster.replicas[r]
    if fleet.known.size == 0:
        return max(0.0, state.next_end_s - now) if state.num_in_flight > 0 else 0.0
    return 0.5 * iteration_s(fleet, r, 0.0, running, kv) if running > 0 else 0.0


@inlined
def new_tokens(fleet: Fleet, r: int, request_id: int) -> int:
    """Prompt tokens that replica `r` would have to compute: not in its cache nor of a request that waits there.
    As events say, where a later block of a prefix is known to be there, those before it are, too."""
    replica = replica_view(fleet.cluster, r)
    hits = prefix_cache.count_hits(replica, request_id)
    loss = fleet.known[_PER_REPLICA * fleet.cluster.replicas.size + _KV_LOSS] if fleet.known.size > 0 else 0.0
    if loss > 0.0:
        told = 0
        for position in range(hits):
            key = prefix_cache.key_of(replica, request_id, position)
            if (key % _PRIME * 48_271 + r * 69_621) % _PRIME * 48_271 % _PRIME >= loss * _PRIME:
                told = position + 1
        hits = told
    request, waiting = fleet.cluster.requests[request_id], replica.state.first_waiting
    shared = request.prefix_count * replica.state.blocks_per_hash
    for _ in range(replica.state.num_waiting if hits < shared else 0):
        while hits < shared and prefix_cache.key_of(replica, waiting, hits) == prefix_cache.key_of(
            replica, request_id, hits
        ):
            hits += 1
        waiting = fleet.cluster.requests[waiting].next_waiting
    return max(1, request.prompt_tokens - hits * replica.state.block_size)


@inlined
def is_silent(fleet: Fleet, r: int, now: float, silence: float, prefill: float) -> bool:
    """Whether requests are on replica `r` and no token has come for `silence` times as long as could be, with so many
    prompt tokens to compute; who sees all sees that it is dead."""
    state = fleet.cluster.replicas[r]
    if silence <= 0.0 or fleet.known.size == 0:
        return silence > 0.0 and state.frozen != 0
    if state.num_outstanding == 0:
        return False
    running = state.num_outstanding - state.num_waiting
    room = prefill_room(state, min(running, prefill_room(state, 0) // 2))
    longest_s = iteration_s(fleet, r, min(prefill, float(room)), running, kv_used_each(fleet, r, running))
    if running <= 1:  # Nobody but prompts, so that the first token comes with the last chunk of one.
        longest_s *= max(1.0, prefill / room)
    return now - fleet.known[_PER_REPLICA * r + _HEARD_S] > _SHORTEST_SILENCE_S + silence * longest_s


@inlined
def prefill_room(state: Any, decodes: int) -> int:
    """Prompt tokens that an iteration of a replica has room for beside so many decodes, as routers predict it."""
    budget = state.max_batch_tokens if state.max_batch_tokens < UNBOUNDED else _WITHOUT_BUDGET
    return max(1, budget - decodes)
