"""What the learned router sees: one row of numbers per replica.

Counts enter as log1p and times as logarithms of ratios, so that neither the size of the fleet nor the speed of the
hardware shifts the scale. Seconds are measured in the time that the request would take alone on the best replica.

Moving averages live in `fleet.memory`: `observe` brings them up to the arrival, `remember_choice` notes the decision.
"""

import hashlib
import math
from typing import Any, NamedTuple

import numpy as np

from gnomon.jit import inlined
from gnomon.serving.engine.context import Fleet
from gnomon.serving.routers import gateway, known, prediction
from gnomon.serving.routers.known import iteration_s, new_tokens
from gnomon.serving.routers.prediction import ADDED_WEIGHTS, Prediction, added_s, chunk_of, kv_each
from gnomon.serving.scenario.config import QUEUE_DEPTH

FEATURES = (
    # The replica.
    "outstanding",  # log1p of requests waiting and running
    "waiting",
    "running_share",  # of the batch cap
    "prefill_left",  # log1p of prompt tokens not computed yet
    "kv_used_share",
    "kv_demand_share",  # waiting prompts counted as if they were in
    "decode_left",  # log1p of output tokens expected yet
    "outstanding_vs_mean",
    "prefill_left_vs_mean",
    "decode_left_vs_mean",
    "decode_speed",  # log of the best replica's lone decode step over this one's
    "prefill_speed",
    "batch_cap",
    "mean_kv",  # log1p of KV tokens per running request
    "batch_ends_in",  # log1p of the time until its batch ends, in decode steps
    "recent_arrivals",  # its share of the last arrivals, 1 if even
    "recent_prompt_tokens",
    "recent_completions",
    "trend",  # requests now against their moving average
    "queue_head_tokens",
    "queue_head_longest",
    "queue_head_age",
    # The request on the replica.
    "prefix_hit_share",
    "new_tokens",  # log1p of prompt tokens that are not cached
    "first_token",  # log of the predicted time to the first token over that alone
    "first_token_vs_best",
    "finish",  # log of the predicted time to finish over that alone
    "finish_vs_best",
    "step_vs_best",  # decode step once it has joined
    "stall",  # how long its prefill holds up those who decode there, all together
    "crowding",  # how much it slows their decodes, all together
    "stalls_to_come",  # how long prefills will hold it up there, if they come as of late
    "added_vs_best",  # log of the latency that it adds in all (`added_s`) over the least
    "gateway_vs_best",  # log of what the rule `gateway` counts (`gateway.weigh`) over the least
    # The request and the fleet.
    "prompt",
    "prompt_vs_mean",
    "expected_output",
    "num_replicas",
    "rate_vs_mean",  # log of the arrival rate of late over its long average
    "burstiness",  # log of mean squared gap over squared mean gap
    "backlog",  # log1p of outstanding requests per replica
    "kv_used_in_all",
)
NUM_FEATURES = len(FEATURES)
SCHEMA_HASH = hashlib.sha256(",".join((*FEATURES, str(QUEUE_DEPTH))).encode()).hexdigest()[:16]

(
    OUTSTANDING, WAITING, RUNNING_SHARE, PREFILL_LEFT, KV_USED, KV_DEMAND, DECODE_LEFT, OUTSTANDING_VS, PREFILL_VS,
    DECODE_VS, DECODE_SPEED, PREFILL_SPEED, BATCH_CAP, MEAN_KV, BATCH_ENDS, ARRIVALS, ARRIVED_TOKENS, COMPLETIONS,
    TREND, HEAD_TOKENS, HEAD_LONGEST, HEAD_AGE, PREFIX_HIT, NEW_TOKENS, FIRST_TOKEN, FIRST_TOKEN_VS, FINISH, FINISH_VS,
    STEP_VS, STALL, CROWDING, STALLS_TO_COME, ADDED_VS, GATEWAY_VS, PROMPT, PROMPT_VS, EXPECTED_OUTPUT, NUM_REPLICAS,
    RATE_VS, BURSTINESS, BACKLOG, KV_IN_ALL,
) = range(NUM_FEATURES)  # fmt: skip

# Memory: of each replica ...
_ARRIVALS, _ARRIVED, _COMPLETIONS, _FINISHED, _OUTSTANDING, _PREFILL_S = range(6)
_PER_REPLICA = 6
MEMORY_PER_REPLICA = _PER_REPLICA + gateway.MEMORY  # Behind all of it the memory of the rule begins.
# ... and, behind all of them, of the fleet.
_LAST_S, _GAP, _SLOW_GAP, _SQUARED_GAP, _PROMPT, _COUNT, _WINDOW_S, _SQUARED_FIRST = range(8)
_OF_FLEET = 8
_QUICK, _SLOW, _SLOWEST = 0.05, 0.005, 1e-4  # Weights of the newest arrival in the moving averages.
_LIVES = 4.0  # Length of the window of recent prefills, in lives of a mean request.


class Arrival(NamedTuple):
    """The arriving request, as far as it is known."""

    id: int
    now: float
    prompt: int
    output: float
    mean_output: float


_FIRST_TOKEN, _STALL, _CROWDING, _STALLS_TO_COME = ADDED_WEIGHTS.values()
PATIENCE = 2.5  # Usual `patience` (see `longest_wait_s`).


@inlined
def _update_averages(fleet: Fleet, at: Arrival) -> None:
    """Bring the moving averages up to this arrival."""
    replicas, memory = fleet.cluster.replicas, fleet.memory
    base = _PER_REPLICA * replicas.size
    count = memory[base + _COUNT]
    gap = at.now - memory[base + _LAST_S] if count > 0.0 else 0.0
    quick, slow = max(_QUICK, 1.0 / (count + 1.0)), max(_SLOW, 1.0 / (count + 1.0))
    if count > 0.0:  # The first gap is no gap: averages begin with the second arrival.
        quick_gap, slow_gap = max(_QUICK, 1.0 / count), max(_SLOW, 1.0 / count)
        memory[base + _GAP] += quick_gap * (gap - memory[base + _GAP])
        memory[base + _SLOW_GAP] += slow_gap * (gap - memory[base + _SLOW_GAP])
        memory[base + _SQUARED_GAP] += slow_gap * (gap * gap - memory[base + _SQUARED_GAP])
    memory[base + _PROMPT] += slow * (at.prompt - memory[base + _PROMPT])
    memory[base + _LAST_S] = at.now
    memory[base + _COUNT] = count + 1.0
    fading = math.exp(-gap / memory[base + _WINDOW_S]) if memory[base + _WINDOW_S] > 0.0 else 1.0
    for r in range(replicas.size):
        mine = _PER_REPLICA * r
        memory[mine + _PREFILL_S] *= fading
        ended = replicas[r].num_finished - memory[mine + _FINISHED]
        memory[mine + _FINISHED] = replicas[r].num_finished
        memory[mine + _COMPLETIONS] += quick * (ended * replicas.size - memory[mine + _COMPLETIONS])
        memory[mine + _OUTSTANDING] += quick * (replicas[r].num_outstanding - memory[mine + _OUTSTANDING])


@inlined
def remember_choice(fleet: Fleet, request_id: int, chosen: int) -> None:
    """Note which replica got the request. Call once for every arrival."""
    replicas, memory = fleet.cluster.replicas, fleet.memory
    count = replicas.size
    mean_prompt = max(1.0, memory[_PER_REPLICA * count + _PROMPT])
    relative = fleet.cluster.requests[request_id].prompt_tokens / mean_prompt
    for r in range(count):
        mine, hit = _PER_REPLICA * r, float(count) if r == chosen else 0.0
        memory[mine + _ARRIVALS] += _QUICK * (hit - memory[mine + _ARRIVALS])
        memory[mine + _ARRIVED] += _QUICK * (hit * relative - memory[mine + _ARRIVED])
    new = new_tokens(fleet, chosen, request_id)
    memory[_PER_REPLICA * chosen + _PREFILL_S] += _prefill_alone_s(fleet, chosen, new)
    gateway.remember(fleet, chosen, new, _PER_REPLICA * count + _OF_FLEET)


@inlined
def _prefill_alone_s(fleet: Fleet, r: int, new: int) -> float:
    """Seconds of a prefill that has replica `r` for itself."""
    state = fleet.cluster.replicas[r]
    chunk = max(1, min(new, known.prefill_room(state, 0), state.max_chunk_tokens))
    return new / chunk * iteration_s(fleet, r, chunk, 0, 0.0)


@inlined
def _decode_left(fleet: Fleet, r: int, mean: float) -> float:
    """Output tokens that the requests of replica `r` are expected to produce yet."""
    count = fleet.cluster.replicas[r].num_outstanding
    if fleet.predicted_output.size == 0:
        return mean * count
    ids, total = np.empty(count, np.int64), 0.0
    for i in range(prediction.outstanding(fleet.cluster, r, ids)):
        total += prediction.output_left(fleet, r, ids[i], mean)
    return total


@inlined
def predict(fleet: Fleet, r: int, new: int, at: Arrival) -> Prediction:
    """The times behind the features of the request on replica `r`, of which it must compute `new` prompt tokens."""
    state = fleet.cluster.replicas[r]
    held, kv = state.num_holding, kv_each(fleet, r)
    step = iteration_s(fleet, r, 0, held, kv) if held > 0 else 0.0
    joined_kv = (kv * held + at.prompt) / (held + 1)
    joined_step = iteration_s(fleet, r, 0, held + 1, joined_kv)
    chunk = chunk_of(fleet, r, new)
    mixed = iteration_s(fleet, r, chunk, held, kv)
    own_prefill = new / chunk * mixed
    ahead = 0.0
    if state.prefill_left > 0:
        ahead_chunk = chunk_of(fleet, r, state.prefill_left)
        ahead = state.prefill_left / ahead_chunk * iteration_s(fleet, r, ahead_chunk, held, kv)
    queued = (prediction.rounds_of(fleet, r, at.prompt, at.output) - 1.0) * at.mean_output * joined_step
    first_token = known.batch_ends_in_s(fleet, r, at.now, held, kv) + ahead + queued + own_prefill
    window = fleet.memory[_PER_REPLICA * fleet.cluster.replicas.size + _WINDOW_S]
    prefilling = fleet.memory[_PER_REPLICA * r + _PREFILL_S] / window if window > 0.0 else 0.0
    return Prediction(
        step, joined_step, first_token, first_token + at.output * joined_step,
        new / chunk * max(0.0, mixed - step) * held,
        max(0.0, joined_step - step) * held * at.output if held > 0 else 0.0, prefilling * at.output * joined_step,
        _prefill_alone_s(fleet, r, new), iteration_s(fleet, r, 0, 1, float(at.prompt)),
    )  # fmt: skip


@inlined
def _observe_replica(fleet: Fleet, r: int, at: Arrival, out: Any, queue_depth: int) -> Prediction:
    """Write what needs no look at the other replicas into row `r`."""
    cluster, memory = fleet.cluster, fleet.memory
    state, row, mine = cluster.replicas[r], out[r], _PER_REPLICA * r
    used = state.num_blocks - known.free_blocks(fleet, r)
    blocks = max(1.0, float(state.num_blocks))
    decode_left = _decode_left(fleet, r, at.mean_output)
    new = new_tokens(fleet, r, at.id)
    times = predict(fleet, r, new, at)
    row[OUTSTANDING] = math.log1p(state.num_outstanding)
    row[WAITING] = math.log1p(state.num_waiting)
    row[RUNNING_SHARE] = state.num_holding / state.max_running
    row[PREFILL_LEFT] = math.log1p(state.prefill_left)
    row[KV_USED] = used / blocks
    row[KV_DEMAND] = min(4.0, (used + state.waiting_tokens / state.block_size) / blocks)
    row[DECODE_LEFT] = math.log1p(decode_left)
    row[OUTSTANDING_VS] = state.num_outstanding
    row[PREFILL_VS] = state.prefill_left
    row[DECODE_VS] = decode_left
    row[BATCH_CAP] = math.log1p(state.max_running)
    kv = kv_each(fleet, r)
    row[MEAN_KV] = math.log1p(kv)
    ends_in_s = known.batch_ends_in_s(fleet, r, at.now, state.num_holding, kv)
    row[BATCH_ENDS] = math.log1p(ends_in_s / times.joined_step)
    row[ARRIVALS] = memory[mine + _ARRIVALS]
    row[ARRIVED_TOKENS] = memory[mine + _ARRIVED]
    row[COMPLETIONS] = memory[mine + _COMPLETIONS]
    row[TREND] = row[OUTSTANDING] - math.log1p(memory[mine + _OUTSTANDING])
    _observe_queue(fleet, r, at.now, row, queue_depth)
    row[PREFIX_HIT] = 1.0 - new / at.prompt
    row[NEW_TOKENS] = math.log1p(new)
    return times


@inlined
def _observe_queue(fleet: Fleet, r: int, now: float, row: Any, queue_depth: int) -> None:
    """Look at the head of the queue of replica `r`."""
    state, requests = fleet.cluster.replicas[r], fleet.cluster.requests
    total, longest, request_id = 0, 0, state.first_waiting
    for _ in range(min(queue_depth, state.num_waiting)):
        tokens = requests[request_id].prefill_tokens
        total += tokens
        longest = max(longest, tokens)
        request_id = requests[request_id].next_waiting
    row[HEAD_TOKENS] = math.log1p(total)
    row[HEAD_LONGEST] = math.log1p(longest)
    row[HEAD_AGE] = now - requests[state.first_waiting].arrival_s if state.num_waiting > 0 else 0.0


@inlined
def _observe_all(fleet: Fleet, at: Arrival, out: Any) -> None:
    """Set the rows in relation to each other, and add what they have in common."""
    replicas, memory = fleet.cluster.replicas, fleet.memory
    count = replicas.size
    base = _PER_REPLICA * count
    outstanding_, prefill, decode, used = 0.0, 0.0, 0.0, 0.0
    for r in range(count):
        outstanding_ += out[r, OUTSTANDING_VS] / count
        prefill += out[r, PREFILL_VS] / count
        decode += out[r, DECODE_VS] / count
        used += out[r, KV_USED] / count
    gap = max(1e-12, memory[base + _GAP])
    slow_gap = max(1e-12, memory[base + _SLOW_GAP])
    rate = math.log(min(1e3, max(1e-3, slow_gap / gap)))
    bursts = math.log(min(1e3, max(1e-3, memory[base + _SQUARED_GAP] / (slow_gap * slow_gap))))
    relative = math.log(at.prompt / max(1.0, memory[base + _PROMPT]))
    for r in range(count):
        row = out[r]
        row[OUTSTANDING_VS] /= outstanding_ + 1.0
        row[PREFILL_VS] /= prefill + at.prompt
        row[DECODE_VS] /= decode + at.output
        row[PROMPT] = math.log1p(at.prompt)
        row[PROMPT_VS] = relative
        row[EXPECTED_OUTPUT] = math.log1p(at.output)
        row[NUM_REPLICAS] = math.log(count)
        row[RATE_VS] = rate
        row[BURSTINESS] = bursts
        row[BACKLOG] = math.log1p(outstanding_)
        row[KV_IN_ALL] = used


@inlined
def arrival_of(fleet: Fleet, request_id: int) -> Arrival:
    """The arriving request; brings the moving averages up to it. To be called once for every arrival."""
    request, mean = fleet.cluster.requests[request_id], prediction.mean_output(fleet)
    known.look(fleet, request.arrival_s)
    output = max(1.0, prediction.expected_output(fleet, request_id, mean))
    at = Arrival(request_id, request.arrival_s, request.prompt_tokens, output, mean)
    _update_averages(fleet, at)
    return at


@inlined
def remember_pace(fleet: Fleet, at: Arrival, mean_step: float, squared_first: float) -> None:
    """Note how long a mean request lives (recent prefills are those of a few such lives), and the mean square of its
    time to the first token over the replicas."""
    memory, base = fleet.memory, _PER_REPLICA * fleet.cluster.replicas.size
    memory[base + _WINDOW_S] = _LIVES * at.mean_output * mean_step
    weight = max(_SLOWEST, 1.0 / memory[base + _COUNT])
    memory[base + _SQUARED_FIRST] += weight * (squared_first - memory[base + _SQUARED_FIRST])


@inlined
def longest_wait_s(fleet: Fleet, patience: float) -> float:
    """How long a request may wait before its own prefill: `patience` times the root mean square of what times to
    first tokens were so far, over all replicas. No limit where patience is 0, or before the first arrival."""
    squared = fleet.memory[_PER_REPLICA * fleet.cluster.replicas.size + _SQUARED_FIRST]
    return patience * math.sqrt(squared) if patience > 0.0 and squared > 0.0 else math.inf


@inlined
def observe(fleet: Fleet, request_id: int, out: Any, queue_depth: int) -> None:
    """Write one row of FEATURES per replica into `out` [replica, feature], for an arriving request. Of every queue the
    first `queue_depth` requests are looked at.

    To be called once for every arrival, with all replicas brought up to it.
    """
    count, at = fleet.cluster.replicas.size, arrival_of(fleet, request_id)
    best_first, best_finish, best_step, best_added = math.inf, math.inf, math.inf, math.inf
    best_prefill, best_alone, best_lone_step = math.inf, math.inf, math.inf
    mean_step, squared_first = 0.0, 0.0
    for r in range(count):
        times = _observe_replica(fleet, r, at, out, queue_depth)
        row = out[r]
        # These columns hold seconds until the best replica is known: the second loop turns them into log ratios to it.
        row[FIRST_TOKEN], row[FINISH], row[STEP_VS] = times.first_token, times.finish, times.joined_step
        row[STALL], row[CROWDING], row[STALLS_TO_COME] = times.stall, times.crowding, times.stalls_to_come
        row[ADDED_VS] = added_s(times, _FIRST_TOKEN, _STALL, _CROWDING, _STALLS_TO_COME)
        row[PREFILL_SPEED], row[DECODE_SPEED] = times.alone_first_token, times.alone_step
        best_first = min(best_first, times.first_token)
        best_finish = min(best_finish, times.finish)
        best_step = min(best_step, times.joined_step)
        best_added = min(best_added, row[ADDED_VS])
        best_prefill = min(best_prefill, times.alone_first_token)
        best_lone_step = min(best_lone_step, times.alone_step)
        mean_step += times.joined_step / count
        squared_first += times.first_token * times.first_token / count
        best_alone = min(best_alone, times.alone_first_token + at.output * times.alone_step)
    for r in range(count):
        row = out[r]
        row[FIRST_TOKEN_VS] = math.log(row[FIRST_TOKEN] / best_first)
        row[FIRST_TOKEN] = math.log(row[FIRST_TOKEN] / best_prefill)
        row[FINISH_VS] = math.log(row[FINISH] / best_finish)
        row[FINISH] = math.log(row[FINISH] / best_alone)
        row[STEP_VS] = math.log(row[STEP_VS] / best_step)
        row[STALL] = math.log1p(row[STALL] / best_alone)
        row[CROWDING] = math.log1p(row[CROWDING] / best_alone)
        row[STALLS_TO_COME] = math.log1p(row[STALLS_TO_COME] / best_alone)
        row[ADDED_VS] = math.log(row[ADDED_VS] / best_added)
        row[PREFILL_SPEED] = math.log(best_prefill / row[PREFILL_SPEED])
        row[DECODE_SPEED] = math.log(best_lone_step / row[DECODE_SPEED])
        row[HEAD_AGE] = math.log1p(row[HEAD_AGE] / best_alone)
    remember_pace(fleet, at, mean_step, squared_first)
    _observe_all(fleet, at, out)
    best = gateway.weigh(fleet, request_id, gateway.USUAL, _PER_REPLICA * count + _OF_FLEET)
    for r in range(count):
        out[r, GATEWAY_VS] = gateway.MOST
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        out[r, GATEWAY_VS] = gateway.cost_vs_best(fleet, r, best, _PER_REPLICA * count + _OF_FLEET)
