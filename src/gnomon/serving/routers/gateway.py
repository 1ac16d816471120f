"""The replica where a request adds the least latency in all, by what a gateway can know.

Where requests are and no token has come for `silence` times as long as could be, nothing more is sent, nor where a
prompt does not fit into one iteration beside the decodes and is not cut: it would wait there, and all others behind it.

Who will miss its SLO counts as `miss` answers more: the request by its first token or its pace, and those who decode by
what its prefill adds to theirs. A prefill that decodes are held up by slows them in the share of time that it takes.

A first token that comes late costs more than its seconds: `late` times the fourth power of its time, or the square
where an SLO says what is too late, in units of the time that the slowest hundredth would need were all work spread
evenly: from what is ahead on all replicas, by their speeds.
Its 99th percentile is followed from arrival to arrival, and what is left of a prefill that one finds under way is
added. It counts for what is new of a prompt, and it chooses only among replicas that cost hardly more than the least,
by a share of `within`: a sooner first token is not worth any price.

Beside that and the times of `unselfish` a request counts what its prompt costs later: those who wait already (`later`),
and the cached prefixes that must give way (`reuse`).
"""

import math
from typing import Any

from gnomon.jit import inlined
from gnomon.serving.engine.context import Fleet
from gnomon.serving.engine.state import TPOT_S, TTFT_S
from gnomon.serving.routers import known, router
from gnomon.serving.routers.prediction import ADDED_WEIGHTS, expected_output, mean_output

# Memory of each replica: prefill sent of late, and when that was brought up to date; what the request costs there, and
# how late it would be.
_SENT_S, _SENT_AT_S, _COST, _LATENESS = range(4)
_PER_REPLICA = 4
# And of the fleet, behind all of them.
_COUNT, _TAIL_S, _ALONE_S, _ALONE_SQUARED, _FOUND, _MEAN_NEW, _LEAST, _ANSWER_S = range(8)
MEMORY = _PER_REPLICA + 8  # Of each replica, however few there are.

OPTIONS = {
    **ADDED_WEIGHTS, "stalls_to_come": 1.0, "stall": 1.0, "later": 1.0, "reuse": 5.0, "late": 5.0, "silence": 4.0,
    "within": 0.3, "miss": 3.0,
}  # fmt: skip
USUAL = tuple(OPTIONS.values())
_WITHIN, MOST = 8, 20.0

_LIVES = 4.0
_TAIL, _PACE, _SETTLING = 0.99, 0.1, 20.0
"""Share of the first tokens that come sooner than `_TAIL_S`; how fast that follows, and until which arrival faster."""
_NEVER_S = 1e9
_MOST_PREFILL = 0.8  # Of a replica's time: decodes step with the chunks, too.


@inlined
def _tail_s(memory: Any, of_fleet: int) -> float:
    """When the slowest hundredth of the first tokens would come; 0 before the first one was predicted."""
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


@inlined
def _missed(seconds: float, limit_s: float) -> float:
    """How likely a time that was predicted so is over its limit: a half where they are equal."""
    ratio = (seconds / limit_s) ** 4
    return ratio / (1.0 + ratio)


@inlined
def weigh(fleet: Fleet, request_id: int, weights: Any, base: int) -> int:
    """Note what a request costs on every candidate in the memory that begins at `base`; returns the candidate of the
    least. To be called once for every arrival."""
    memory, replicas, request = fleet.memory, fleet.cluster.replicas, fleet.cluster.requests[request_id]
    of_fleet = base + _PER_REPLICA * replicas.size
    now, prompt = request.arrival_s, request.prompt_tokens
    memory[of_fleet + _COUNT] += 1.0
    known.look(fleet, now)
    mean = mean_output(fleet)
    output = max(1.0, expected_output(fleet, request_id, mean))
    tail_s = _tail_s(memory, of_fleet)
    ahead_of_all, speeds, most_found, answer_s = 0.0, 0.0, 0.0, 0.0
    slo = fleet.cluster.classes[request.user_class]
    least = math.inf
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        state, mine, new = replicas[r], base + _PER_REPLICA * r, known.new_tokens(fleet, r, request_id)
        waiting = state.num_waiting + state.num_coming
        prefill = state.prefill_left + state.num_coming * memory[of_fleet + _MEAN_NEW]
        most_found = max(most_found, 1.0 - new / prompt)
        n = state.num_outstanding - state.num_waiting  # Those that have had a token, or are about to.
        kv = known.kv_used_each(fleet, r, n)
        step = known.iteration_s(fleet, r, 0.0, n, kv) if n > 0 else 0.0
        joined = known.iteration_s(fleet, r, 0.0, n + 1, (kv * n + prompt) / (n + 1))
        room = float(min(known.prefill_room(state, min(n, known.prefill_room(state, 0) // 2)), state.max_chunk_tokens))
        chunk = min(float(new), room)
        mixed = known.iteration_s(fleet, r, chunk, n, kv)
        own = new / chunk * mixed
        ahead = 0.0
        if prefill > 0.0:
            chunk_ahead = min(prefill, room)
            ahead = prefill / chunk_ahead * known.iteration_s(fleet, r, chunk_ahead, n, kv)
        rounds = max(0.0, (n + waiting + 1.0) / state.max_running - 1.0)
        lacking = state.waiting_tokens + prompt + output - known.free_blocks(fleet, r) * state.block_size
        rounds += max(0.0, lacking) / (state.num_blocks * state.block_size)
        wait = known.batch_ends_in_s(fleet, r, now, n, kv) + ahead + rounds * mean * joined
        window = _LIVES * mean * joined
        memory[mine + _SENT_S] *= math.exp(-(now - memory[mine + _SENT_AT_S]) / window)
        memory[mine + _SENT_AT_S] = now
        cost = wait + own + output * joined + weights[0] * (wait + own)
        held_up = weights[1] * new / chunk * max(0.0, mixed - step) * n
        cost += held_up + weights[2] * max(0.0, joined - step) * n * output
        step_s = joined / (1.0 - min(_MOST_PREFILL, memory[mine + _SENT_S] / window))  # With what comes beside it.
        cost += weights[3] * (step_s - joined) * output + weights[4] * own * waiting
        slow, late = _missed(step_s, slo[TPOT_S]), _missed(wait + own, slo[TTFT_S])
        misses = late + slow - late * slow + n * (_missed(step_s + own / mean, slo[TPOT_S]) - slow)
        cost += weights[9] * misses * memory[of_fleet + _ANSWER_S]
        if state.tokens_computed > state.num_blocks * state.block_size:  # The cache is full.
            cost += weights[5] * memory[of_fleet + _FOUND] * own * (1.0 + waiting)
        answer_s += mean * joined
        ahead_of_all += (wait + own) * new / own
        speeds += new / own
        if new + n > state.longest_prompt or known.is_silent(fleet, r, now, weights[7], prefill):
            cost += _NEVER_S
        least = min(least, cost)
        memory[mine + _COST], memory[mine + _LATENESS] = cost, 0.0
        if tail_s > 0.0:
            squared = ((wait + own) / tail_s) ** 2
            memory[mine + _LATENESS] = weights[6] * squared * tail_s * new / prompt
            if slo[TTFT_S] == math.inf:
                memory[mine + _LATENESS] *= squared
    chosen, best = fleet.candidates[0], math.inf
    for i in range(fleet.candidates.size):
        mine = base + _PER_REPLICA * fleet.candidates[i]
        in_all = memory[mine + _COST] + memory[mine + _LATENESS]
        if memory[mine + _COST] <= (1.0 + weights[8]) * least and in_all < best:
            chosen, best = fleet.candidates[i], in_all
    _learn_tail(memory, of_fleet, ahead_of_all / speeds, prompt * fleet.candidates.size / speeds)
    weight = max(0.01, 1.0 / memory[of_fleet + _COUNT])
    memory[of_fleet + _FOUND] += weight * (most_found - memory[of_fleet + _FOUND])
    memory[of_fleet + _ANSWER_S] += weight * (answer_s / fleet.candidates.size - memory[of_fleet + _ANSWER_S])
    memory[of_fleet + _LEAST] = least
    return int(chosen)


@inlined
def remember(fleet: Fleet, chosen: int, new: int, base: int) -> None:
    """Note which replica got the request, of which it must compute `new` prompt tokens."""
    memory, state = fleet.memory, fleet.cluster.replicas[chosen]
    of_fleet = base + _PER_REPLICA * fleet.cluster.replicas.size
    weight = max(0.01, 1.0 / max(1.0, memory[of_fleet + _COUNT]))
    memory[of_fleet + _MEAN_NEW] += weight * (new - memory[of_fleet + _MEAN_NEW])
    chunk = min(float(new), float(min(known.prefill_room(state, 0), state.max_chunk_tokens)))
    memory[base + _PER_REPLICA * chosen + _SENT_S] += new / chunk * known.iteration_s(fleet, chosen, chunk, 0, 0.0)


@inlined
def cost_vs_best(fleet: Fleet, r: int, best: int, base: int) -> float:
    """The logarithm of what a request would cost on candidate `r` over what it would on the best one; 0 only there."""
    memory, mine = fleet.memory, base + _PER_REPLICA * r
    least = memory[base + _PER_REPLICA * fleet.cluster.replicas.size + _LEAST]
    the_best = memory[base + _PER_REPLICA * best + _COST] + memory[base + _PER_REPLICA * best + _LATENESS]
    more = max(0.0, math.log((memory[mine + _COST] + memory[mine + _LATENESS]) / the_best))
    if memory[mine + _COST] > (1.0 + USUAL[_WITHIN]) * least:
        more += math.log(memory[mine + _COST] / least)
    return min(MOST, more)


@router(
    "gateway", options=OPTIONS, memory=_PER_REPLICA, predicts=True, observes=True, cost_feature="gateway_vs_best",
)  # fmt: skip
def gateway(fleet: Fleet, request_id: int) -> int:
    """Least added latency among the replicas that answer, and among the others where none does; ties to the lowest
    id."""
    chosen = weigh(fleet, request_id, fleet.parameters, 0)
    remember(fleet, chosen, known.new_tokens(fleet, chosen, request_id), 0)
    return chosen
