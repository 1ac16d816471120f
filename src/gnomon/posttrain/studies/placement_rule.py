"""The placement advisor: the published rule for automatic placement, and the same question asked of the simulator.

The rule knows three costs, measured with all components taking turns on all N GPUs, and scales them by the GPUs that
each would have. Per-group cost c = cost / R. The actor and inference on g < N GPUs, s = N / g: c s / (1 + min(0.9,
max(s / 10, 0.1))), since smaller groups of GPUs are better used. Rollout: c while the instances hold all sequences at
once, else c s. A pipelined step is the sum of the three plus R - 1 times the longest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gnomon.core.errors import ConfigError
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.posttrain.scenario.placement import valid_actor_sizes

LARGE_BATCH = 128
LARGE_BATCH_FILL = 0.9
"""From this max_running_requests on, an instance counts as full at this share of it."""


@dataclass(frozen=True)
class StageCosts:
    """Seconds of each stage with all components taking turns on all GPUs."""

    actor: float
    rollout: float
    inference: float

    @property
    def colocated_s(self) -> float:
        """The step when components take turns."""
        return self.actor + self.rollout + self.inference


@dataclass(frozen=True)
class Advice:
    """GPUs of each component, and the rule's estimate of the step."""

    actor: int
    rollout: int
    inference: int
    step_s: float
    is_colocated: bool = False


def advise(config: Posttrain, costs: StageCosts) -> Advice:
    """The placement with the shortest step by the rule; ties go to the larger rollout."""
    total = config.cluster.num_gpus
    best = Advice(total, total, total if config.algorithm.recompute_logprobs else 0, costs.colocated_s, True)
    for candidate in candidates(config):
        step_s = _pipelined_s(config, costs, *candidate)
        if step_s < best.step_s - 1e-9:
            best = Advice(*candidate, step_s)
    return best


def candidates(config: Posttrain) -> list[tuple[int, int, int]]:
    """Every valid (actor, rollout, inference) that covers the cluster side by side, the larger rollouts first."""
    total = config.cluster.num_gpus
    inference_sizes = [0]
    if config.algorithm.recompute_logprobs:
        copy = config.inference.num_gpus
        groups = config.algorithm.rollout_batch_size
        inference_sizes = [d * copy for d in range(1, total // copy + 1) if groups % d == 0]
    found = [
        (actor, total - actor - inference, inference)
        for actor in valid_actor_sizes(config)
        for inference in inference_sizes
        if total - actor - inference > 0 and (total - actor - inference) % config.rollout.num_gpus == 0
    ]
    if not found:
        raise ConfigError(
            f"no placement side by side fits {total} GPUs.", where="cluster", fix="Add nodes, or share all GPUs."
        )
    return sorted(found, key=lambda one: (-one[1], one[0]))


def _pipelined_s(config: Posttrain, costs: StageCosts, actor: int, rollout: int, inference: int) -> float:
    total, groups = config.cluster.num_gpus, config.algorithm.rollout_batch_size
    stages = [_batched_s(costs.actor / groups, total / actor), _rollout_s(config, costs.rollout / groups, rollout)]
    if inference:
        stages.append(_batched_s(costs.inference / groups, total / inference))
    return sum(stages) + (groups - 1) * max(stages)


def _batched_s(cost: float, scale: float) -> float:
    return cost * scale / (1.0 + min(0.9, max(scale / 10.0, 0.1)))


def _rollout_s(config: Posttrain, cost: float, gpus: int) -> float:
    cap = config.rollout.max_running_requests
    full = math.ceil(LARGE_BATCH_FILL * cap) if cap >= LARGE_BATCH else cap
    if gpus // config.rollout.num_gpus * full >= config.algorithm.num_sequences:
        return cost
    return cost * config.cluster.num_gpus / gpus
