"""The replica where a request adds the least latency in all, by what a gateway can know.

As `unselfish`, but without the simulator's tables and exact states. What is known of a replica:

- the gateway's own requests there: how many, which have had no token yet, how many tokens have come;
- its counters and the share of its KV blocks in use, as read every `scrape_s` seconds;
- what it holds of a prefix, by its KV events, a share `kv_loss` of which never came;
- how fast it is: seconds of an iteration, a prompt token, a decode and a token of context, fitted to what was done
  between two scrapes, and a factor beside them that follows a sudden change;
- silence: where requests are and no token has come for `silence` times as long as could be, nothing more is sent.

A first token that comes late costs more than its seconds: `late` times the fourth power of its time, in units of the
time that the slowest hundredth would need were all work spread evenly. Short waits cost next to nothing, those beyond
it very much, whatever the fleet and the load. How long that is, is known from all replicas together, wherever the work
lies: from what is ahead on them, by their speeds. Its 99th percentile is followed from arrival to arrival, and what is
left of a prefill that one finds under way is added. It counts for what is new of a prompt: where most of it is cached,
a request may well wait. And it chooses only among replicas that cost hardly more than the least, by a share of
`within`: a sooner first token is not worth any price.

Beside that and the times of `unselfish` a request counts what its prompt costs later: those who wait already (`later`),
and the cached prefixes that must give way (`reuse`). `omniscient: 1` looks at tables and states instead.
"""

import math
from typing import Any, NamedTuple

from gnomon.jit import inlined, noinline
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.context import Fleet
from gnomon.serving.engine.state import replica_view
from gnomon.serving.routers import router
from gnomon.serving.routers.prediction import ADDED_WEIGHTS, expected_output, iteration_s, mean_output, prefill_room

# Memory of each replica: when it was read last, its counters then, whether it has been busy since, its free blocks, ...
_READ_S, _ITERATIONS, _TOKENS, _PRODUCED, _BUSY, _FREE = range(6)
# ... when a token came last, and how many had come; prefill sent of late, and when that was brought up to date; ...
_HEARD_S, _HEARD, _SENT_S, _SENT_AT_S = range(6, 10)
# ... the fit: a factor, four speeds, their normal equations; what the request costs there, and how late it would be.
_FACTOR, _SPEEDS, _SUMS, _PRODUCTS, _COST, _LATENESS = 10, 11, 15, 19, 35, 36
_PER_REPLICA = 37
# And of the fleet, behind all of them.
_COUNT, _TAIL_S, _ALONE_S, _ALONE_SQUARED, _FOUND, _MEAN_NEW, _USUAL = range(7)
_OF_FLEET = 2  # Numbers more per replica: the fleet's are ten, and eight come with any memory.

_UNITS = (1.0, 1e-3, 1e-2, 1e-5)
"""Speeds are seconds per iteration, 1,000 prompt tokens, 100 decodes, and 100,000 tokens of context."""
_AT_FIRST = (0.01, 0.04, 0.004, 0.005)
"""What they are thought to be before anything was seen; only their ratios matter then."""
_FORGETTING, _QUICK, _BELIEF, _SWEEPS = 0.985, 0.15, 300.0, 4
"""What is kept of the sums from one reading to the next; weight of the newest in the factor; how many readings of one
unit each the fleet's mean speeds are worth; rounds of the solver."""
_LIVES = 4.0
_TAIL, _PACE, _SETTLING = 0.99, 0.1, 20.0
"""Share of the first tokens that come sooner than `_TAIL_S`; how fast that follows, and until which arrival faster."""
_SHORTEST_SILENCE_S, _NEVER_S, _PRIME = 0.25, 1e9, 2_147_483_647


class Known(NamedTuple):
    """A replica, as far as it is known."""

    running: int  # Requests that have had a token, or are about to.
    waiting: int  # Those that have not, in front ends too.
    prefill: float  # Prompt tokens to compute yet.
    kv: float  # Tokens of context per running request.
    free: float  # Tokens of KV memory not in use.
    begun_s: float  # Until the batch in flight ends; half an iteration where that is not known.
    is_silent: bool


@inlined
def _seconds(fleet: Fleet, r: int, prefill: float, decodes: int, kv: float, omniscient: bool) -> float:
    """An iteration with so many prompt tokens and decodes."""
    if omniscient:
        return iteration_s(fleet, r, int(prefill), decodes, kv)
    at, memory = _PER_REPLICA * r + _SPEEDS, fleet.memory
    work = memory[at] + memory[at + 1] * prefill * _UNITS[1]
    work += decodes * (memory[at + 2] * _UNITS[2] + memory[at + 3] * kv * _UNITS[3])
    return max(1e-9, memory[_PER_REPLICA * r + _FACTOR] * work)


@noinline
def _fit(
    memory: Any, mine: int, usual: int, elapsed_s: float, iterations: int, prefill: float, made: float, kv: float
) -> None:
    """Take in what a replica did in so many seconds: least squares with speeds of at least 0, held to the fleet's."""
    done = (float(iterations), prefill * _UNITS[1], made * _UNITS[2], made * kv * _UNITS[3])
    expected = 0.0
    for i in range(4):
        expected += memory[mine + _SPEEDS + i] * done[i]
    ratio = min(5.0, max(0.2, elapsed_s / max(1e-9, expected)))
    memory[mine + _FACTOR] += _QUICK * (ratio - memory[mine + _FACTOR])
    for i in range(4):
        memory[mine + _SUMS + i] = _FORGETTING * memory[mine + _SUMS + i] + done[i] * elapsed_s
        for j in range(4):
            at = mine + _PRODUCTS + 4 * i + j
            memory[at] = _FORGETTING * memory[at] + done[i] * done[j]
    for _ in range(_SWEEPS):
        for i in range(4):
            rest = memory[mine + _SUMS + i] + _BELIEF * memory[usual + i]
            for j in range(4):
                if j != i:
                    rest -= memory[mine + _PRODUCTS + 4 * i + j] * memory[mine + _SPEEDS + j]
            memory[mine + _SPEEDS + i] = max(0.0, rest / (memory[mine + _PRODUCTS + 5 * i] + _BELIEF))
    for i in range(4):
        memory[usual + i] += 0.02 * (memory[mine + _SPEEDS + i] - memory[usual + i])


@inlined
def _begin(fleet: Fleet) -> None:
    """Before the first arrival: beliefs."""
    memory, count = fleet.memory, fleet.cluster.replicas.size
    usual = _PER_REPLICA * count + _USUAL
    for i in range(4):
        memory[usual + i] = _AT_FIRST[i]
    for r in range(count):
        memory[_PER_REPLICA * r + _FACTOR] = 1.0
        memory[_PER_REPLICA * r + _FREE] = fleet.cluster.replicas[r].num_blocks
        for i in range(4):
            memory[_PER_REPLICA * r + _SPEEDS + i] = _AT_FIRST[i]


@inlined
def _read(fleet: Fleet, r: int, now: float, scrape_s: float) -> None:
    """Listen to a replica, and read its metrics where that is due."""
    state, memory, mine = fleet.cluster.replicas[r], fleet.memory, _PER_REPLICA * r
    has = state.num_outstanding + state.num_coming
    if has == 0 or state.num_produced != memory[mine + _HEARD]:
        memory[mine + _HEARD], memory[mine + _HEARD_S] = state.num_produced, now
    if has == 0:
        memory[mine + _BUSY] = 0.0
    elapsed_s = now - memory[mine + _READ_S]
    if elapsed_s < scrape_s:
        return
    iterations = state.num_iterations - int(memory[mine + _ITERATIONS])
    if memory[mine + _BUSY] > 0.0 and iterations > 1:
        made = state.num_produced - memory[mine + _PRODUCED]
        prefill = max(0.0, state.tokens_computed - memory[mine + _TOKENS] - made)
        used = (state.num_blocks - memory[mine + _FREE]) * state.block_size
        kv = used / max(1, state.num_outstanding - state.num_waiting)
        usual = _PER_REPLICA * fleet.cluster.replicas.size + _USUAL
        _fit(memory, mine, usual, elapsed_s, iterations, prefill, made, kv)
    memory[mine + _READ_S], memory[mine + _ITERATIONS] = now, state.num_iterations
    memory[mine + _TOKENS], memory[mine + _PRODUCED] = state.tokens_computed, state.num_produced
    memory[mine + _BUSY], memory[mine + _FREE] = 1.0 if has > 0 else 0.0, state.reported_free


@inlined
def _known(fleet: Fleet, r: int, now: float, silence: float, omniscient: bool) -> Known:
    """What is known of a replica at an arrival."""
    state, memory, mine = fleet.cluster.replicas[r], fleet.memory, _PER_REPLICA * r
    running = state.num_outstanding - state.num_waiting
    free = state.free_blocks if omniscient else memory[mine + _FREE]
    kv = (state.num_blocks - free) * state.block_size / max(1, running)
    prefill = state.prefill_left + state.num_coming * memory[_PER_REPLICA * fleet.cluster.replicas.size + _MEAN_NEW]
    begun_s = 0.0
    if omniscient and state.num_in_flight > 0:
        begun_s = max(0.0, state.next_end_s - now)
    elif not omniscient and running > 0:
        begun_s = 0.5 * _seconds(fleet, r, 0.0, running, kv, False)
    is_silent = False
    if silence > 0.0 and state.num_outstanding > 0:
        room = prefill_room(state, min(running, prefill_room(state, 0) // 2))
        longest_s = _seconds(fleet, r, min(prefill, float(room)), running, kv, omniscient)
        if running <= 1:  # Nobody but prompts, so that the first token comes with the last chunk of one.
            longest_s *= max(1.0, prefill / room)
        is_silent = now - memory[mine + _HEARD_S] > _SHORTEST_SILENCE_S + silence * longest_s
    waiting = state.num_waiting + state.num_coming
    return Known(running, waiting, prefill, kv, free * state.block_size, begun_s, is_silent)


@inlined
def _new_tokens(fleet: Fleet, r: int, request_id: int, loss: float) -> int:
    """Prompt tokens that replica `r` would have to compute, as its events say: where a later block of a prefix is known
    to be there, those before it are, too."""
    replica = replica_view(fleet.cluster, r)
    hits = prefix_cache.count_hits(replica, request_id)
    if loss > 0.0:
        known = 0
        for position in range(hits):
            key = prefix_cache.key_of(replica, request_id, position)
            if (key % _PRIME * 48_271 + r * 69_621) % _PRIME * 48_271 % _PRIME >= loss * _PRIME:
                known = position + 1
        hits = known
    return max(1, fleet.cluster.requests[request_id].prompt_tokens - hits * replica.state.block_size)


@inlined
def _tail_s(memory: Any, of_fleet: int) -> float:
    """When the slowest hundredth of the first tokens would come; 0 before the first one was foretold."""
    if memory[of_fleet + _TAIL_S] == 0.0:
        return 0.0
    return memory[of_fleet + _TAIL_S] + memory[of_fleet + _ALONE_SQUARED] / (2.0 * memory[of_fleet + _ALONE_S])


@inlined
def _learn_tail(memory: Any, of_fleet: int, even_s: float, alone_s: float) -> None:
    """Take in when a first token would come were all work spread evenly, and how long its prefill takes alone."""
    count, tail_s = memory[of_fleet + _COUNT], memory[of_fleet + _TAIL_S]
    if tail_s == 0.0:
        memory[of_fleet + _TAIL_S] = even_s
    else:
        step = max(_PACE, _SETTLING / (_SETTLING + count))
        memory[of_fleet + _TAIL_S] *= math.exp(step * (_TAIL if even_s > tail_s else _TAIL - 1.0))
    weight = max(0.01, 1.0 / count)
    memory[of_fleet + _ALONE_S] += weight * (alone_s - memory[of_fleet + _ALONE_S])
    memory[of_fleet + _ALONE_SQUARED] += weight * (alone_s**2 - memory[of_fleet + _ALONE_SQUARED])


@router(
    "gateway",
    options={
        **ADDED_WEIGHTS, "stall": 1.0, "later": 1.0, "reuse": 5.0, "late": 8.0, "silence": 4.0,
        "scrape_s": 0.25, "kv_loss": 0.0, "omniscient": 0.0, "within": 0.3,
    },
    memory=_PER_REPLICA + _OF_FLEET,
    predicts=True,
)  # fmt: skip
def gateway(fleet: Fleet, request_id: int) -> int:
    """Least added latency among the replicas that answer, and among the others where none does; ties to the lowest
    id."""
    weights, memory, replicas = fleet.parameters, fleet.memory, fleet.cluster.replicas
    request, of_fleet = fleet.cluster.requests[request_id], _PER_REPLICA * replicas.size
    now, prompt, omniscient = request.arrival_s, request.prompt_tokens, weights[10] > 0.0
    if memory[of_fleet + _COUNT] == 0.0:
        _begin(fleet)
    memory[of_fleet + _COUNT] += 1.0
    for r in range(replicas.size):
        _read(fleet, r, now, weights[8])
    mean = mean_output(fleet)
    output = max(1.0, expected_output(fleet, request_id, mean))
    tail_s = _tail_s(memory, of_fleet)
    ahead_of_all, speeds, most_found = 0.0, 0.0, 0.0
    least = math.inf
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        state, known, mine = replicas[r], _known(fleet, r, now, weights[7], omniscient), _PER_REPLICA * r
        new = _new_tokens(fleet, r, request_id, weights[9])
        most_found = max(most_found, 1.0 - new / prompt)
        n, kv = known.running, known.kv
        step = _seconds(fleet, r, 0.0, n, kv, omniscient) if n > 0 else 0.0
        joined = _seconds(fleet, r, 0.0, n + 1, (kv * n + prompt) / (n + 1), omniscient)
        room = float(min(prefill_room(state, min(n, prefill_room(state, 0) // 2)), state.max_chunk_tokens))
        chunk = min(float(new), room)
        mixed = _seconds(fleet, r, chunk, n, kv, omniscient)
        own = new / chunk * mixed
        ahead = 0.0
        if known.prefill > 0.0:
            chunk_ahead = min(known.prefill, room)
            ahead = known.prefill / chunk_ahead * _seconds(fleet, r, chunk_ahead, n, kv, omniscient)
        rounds = max(0.0, (n + known.waiting + 1.0) / state.max_running - 1.0)
        rounds += max(0.0, state.waiting_tokens + prompt + output - known.free) / (state.num_blocks * state.block_size)
        wait = known.begun_s + ahead + rounds * mean * joined
        window = _LIVES * mean * joined
        memory[mine + _SENT_S] *= math.exp(-(now - memory[mine + _SENT_AT_S]) / window)
        memory[mine + _SENT_AT_S] = now
        cost = wait + own + output * joined + weights[0] * (wait + own)
        cost += (
            weights[1] * new / chunk * max(0.0, mixed - step) * n + weights[2] * max(0.0, joined - step) * n * output
        )
        cost += weights[3] * memory[mine + _SENT_S] / window * output * joined + weights[4] * own * known.waiting
        if state.tokens_computed > state.num_blocks * state.block_size:  # The cache is full.
            cost += weights[5] * memory[of_fleet + _FOUND] * own * (1.0 + known.waiting)
        ahead_of_all += (wait + own) * new / own
        speeds += new / own
        if known.is_silent:
            cost += _NEVER_S
        least = min(least, cost)
        memory[mine + _COST], memory[mine + _LATENESS] = cost, 0.0
        if tail_s > 0.0:
            memory[mine + _LATENESS] = weights[6] * ((wait + own) / tail_s) ** 4 * tail_s * new / prompt
    chosen, best = fleet.candidates[0], math.inf
    for i in range(fleet.candidates.size):
        mine = _PER_REPLICA * fleet.candidates[i]
        in_all = memory[mine + _COST] + memory[mine + _LATENESS]
        if memory[mine + _COST] <= (1.0 + weights[11]) * least and in_all < best:
            chosen, best = fleet.candidates[i], in_all
    _learn_tail(memory, of_fleet, ahead_of_all / speeds, prompt * fleet.candidates.size / speeds)
    new = _new_tokens(fleet, chosen, request_id, weights[9])
    weight = max(0.01, 1.0 / memory[of_fleet + _COUNT])
    memory[of_fleet + _FOUND] += weight * (most_found - memory[of_fleet + _FOUND])
    memory[of_fleet + _MEAN_NEW] += weight * (new - memory[of_fleet + _MEAN_NEW])
    room = float(min(prefill_room(replicas[chosen], 0), replicas[chosen].max_chunk_tokens))
    chunk = min(float(new), room)
    memory[_PER_REPLICA * chosen + _SENT_S] += new / chunk * _seconds(fleet, chosen, chunk, 0, 0.0, omniscient)
    return chosen
