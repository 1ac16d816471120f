"""The router trained inside the simulator (`gnomon route`), run by compiled code without torch."""

import math
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError
from gnomon.jit import inlined
from gnomon.serving.routers import KNOWN, Fleet, observation, router
from gnomon.serving.routers.policy_file import CLIP, SHARPNESS, load_policy, packed, shipped_policy
from gnomon.serving.scenario.config import RouterConfig

NUM_OPTIONS = 2 + len(KNOWN)  # Entries of `fleet.parameters` before the packed policy.


def policy_numbers(config: RouterConfig) -> Floats:
    """The packed policy that a scenario asks for: its checkpoint, or the one that comes with Gnomon."""
    if config.checkpoint is None:
        return packed(shipped_policy(config.lengths))
    policy = load_policy(config.checkpoint)
    if policy.lengths != config.lengths:
        what = f"the policy was trained with lengths {policy.lengths!r}, the router has {config.lengths!r}."
        raise ConfigError(what, where="router.lengths", fix=f"Use --router.lengths {policy.lengths}.")
    return packed(policy)


@inlined
def _layer(numbers: Floats, first: int, x: Any, num_in: int, out: Any, num_out: int) -> None:
    """out += W x, for weights stored [in, out] at `first`."""
    for i in range(num_in):
        value, row = x[i], first + i * num_out
        if value != 0.0:
            for j in range(num_out):
                out[j] += value * numbers[row + j]


@inlined
def _begin_with(numbers: Floats, first: int, out: Any, count: int) -> None:
    for j in range(count):
        out[j] = numbers[first + j]


@inlined
def _relu(x: Any, count: int) -> None:
    for j in range(count):
        x[j] = max(0.0, x[j])


@inlined
def _normalise(numbers: Floats, first: int, row: Any) -> None:
    for i in range(observation.NUM_FEATURES):
        value = (row[i] - numbers[first + i]) / numbers[first + observation.NUM_FEATURES + i]
        row[i] = min(CLIP, max(-CLIP, value))


@inlined
def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


@inlined
def _remember(numbers: Floats, first: int, mean: Any, highest: Any, held: Any, hidden: int) -> None:
    """Let the GRU packed at `first` take in what all replicas have in common; its memory goes into `held`."""
    from_memory = first + (2 * hidden + 1) * 3 * hidden
    memory = from_memory + (hidden + 1) * 3 * hidden
    new, old = np.empty(3 * hidden), np.empty(3 * hidden)
    _begin_with(numbers, from_memory - 3 * hidden, new, 3 * hidden)
    _layer(numbers, first, mean, hidden, new, 3 * hidden)
    _layer(numbers, first + 3 * hidden * hidden, highest, hidden, new, 3 * hidden)
    _begin_with(numbers, memory - 3 * hidden, old, 3 * hidden)
    _begin_with(numbers, memory, held, hidden)
    _layer(numbers, from_memory, held, hidden, old, 3 * hidden)
    for j in range(hidden):
        reset = _sigmoid(new[j] + old[j])
        kept = _sigmoid(new[hidden + j] + old[hidden + j])
        candidate = math.tanh(new[2 * hidden + j] + reset * old[2 * hidden + j])
        held[j] = (1.0 - kept) * candidate + kept * held[j]
        numbers[memory + j] = held[j]


@inlined
def score(numbers: Floats, first: int, rows: Any, count: int, scores: Any) -> None:
    """The scores of `count` replicas from their features, by the policy packed at `first`. `rows` are used up."""
    hidden, is_recurrent = int(numbers[first]), numbers[first + 2] > 0.0
    normaliser = first + 3
    phi0 = normaliser + 2 * observation.NUM_FEATURES
    phi1 = phi0 + observation.NUM_FEATURES * hidden + hidden
    rho0 = phi1 + hidden * hidden + hidden
    rho1 = rho0 + (4 if is_recurrent else 3) * hidden * hidden + hidden
    h, between = np.empty((count, hidden)), np.empty(hidden)
    mean, highest, context = np.zeros(hidden), np.zeros(hidden), np.empty(hidden)
    for r in range(count):
        scores[r] = numbers[rho1 + hidden] - SHARPNESS * rows[r, observation.GATEWAY_VS]
        _normalise(numbers, normaliser, rows[r])
        _begin_with(numbers, phi1 - hidden, between, hidden)
        _layer(numbers, phi0, rows[r], observation.NUM_FEATURES, between, hidden)
        _relu(between, hidden)
        _begin_with(numbers, rho0 - hidden, h[r], hidden)
        _layer(numbers, phi1, between, hidden, h[r], hidden)
        _relu(h[r], hidden)
        for j in range(hidden):
            mean[j] += h[r, j] / count
            highest[j] = max(highest[j], h[r, j])
    # What all replicas have in common is computed once.
    _begin_with(numbers, rho1 - hidden, context, hidden)
    _layer(numbers, rho0 + hidden * hidden, mean, hidden, context, hidden)
    _layer(numbers, rho0 + 2 * hidden * hidden, highest, hidden, context, hidden)
    if is_recurrent:
        held = np.empty(hidden)
        _remember(numbers, rho1 + hidden + 1, mean, highest, held, hidden)
        _layer(numbers, rho0 + 3 * hidden * hidden, held, hidden, context, hidden)
    for r in range(count):
        for j in range(hidden):
            between[j] = context[j]
        _layer(numbers, rho0, h[r], hidden, between, hidden)
        _relu(between, hidden)
        for j in range(hidden):
            scores[r] += between[j] * numbers[rho1 + j]


@inlined
def choose(scores: Any, count: int, temperature: float, draw: float) -> int:
    """The highest score (ties to the lowest id); with a temperature, a draw from their softmax."""
    best = 0
    for r in range(1, count):
        if scores[r] > scores[best]:
            best = r
    if temperature <= 0.0:
        return best
    total = 0.0
    for r in range(count):
        total += math.exp((scores[r] - scores[best]) / temperature)
    left = draw * total
    for r in range(count):
        left -= math.exp((scores[r] - scores[best]) / temperature)
        if left < 0.0:
            return r
    return best


@inlined
def _rule_out_others(fleet: Fleet, scores: Any) -> None:
    """Replicas that take no requests are seen, but not chosen."""
    if fleet.candidates.size == fleet.cluster.replicas.size:
        return
    kept = np.full(fleet.cluster.replicas.size, -np.inf)
    for i in range(fleet.candidates.size):
        kept[fleet.candidates[i]] = scores[fleet.candidates[i]]
    for r in range(kept.size):
        scores[r] = kept[r]


@inlined
def _temperature(fleet: Fleet) -> float:
    busy, idle = fleet.parameters[0], fleet.parameters[1]
    if idle <= busy:
        return busy
    running, places = 0.0, 1.0
    for r in range(fleet.cluster.replicas.size):
        running += fleet.cluster.replicas[r].num_outstanding
        places += fleet.cluster.replicas[r].max_running
    return idle + (busy - idle) * min(1.0, running / places)


@router(
    "learned", options={"temperature": 0.0, "idle_temperature": 0.0},
    memory=observation.MEMORY_PER_REPLICA, predicts=True, observes=True, numbers=policy_numbers,
)  # fmt: skip
def learned(fleet: Fleet, request_id: int) -> int:
    """The replica with the highest score; with a `temperature`, sampled from the softmax of the scores. It goes from
    `idle_temperature`, if that is higher, to `temperature` with the share of places that are taken."""
    count = fleet.cluster.replicas.size
    rows, scores = np.empty((count, observation.NUM_FEATURES)), np.empty(count)
    observation.observe(fleet, request_id, rows, int(fleet.parameters[NUM_OPTIONS + 1]))
    score(fleet.parameters, NUM_OPTIONS, rows, count, scores)
    _rule_out_others(fleet, scores)
    chosen = choose(scores, count, _temperature(fleet), fleet.draws[request_id, 0])
    observation.remember_choice(fleet, request_id, chosen)
    return chosen
