"""Published results of RL post-training systems, and the configurations that stand for them.

B, C and D are Qwen2.5 under GRPO on H100s, 512 prompts x 16 samples, context 28,672; A is R1-Distill-Qwen-1.5B (the
shape of Qwen2.5-1.5B) on one node. What one source publishes stands in for the others too: parallelism from D (trainer
TP 2/4/8, rollout TP 1/2/4), `max_running_requests` 128 and 4 mini-batches from E. What none publishes is the
simulator's default: gamma-distributed responses with k = 3.1, correlation 0.5 inside a group, prompts of 256 tokens on
average, 85 % of the memory for rollout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnomon.core.config import build
from gnomon.posttrain.scenario.config import Posttrain

MODELS = {"1.5B": ("qwen2.5-1.5b", 2, 1), "7B": ("qwen2.5-7b", 4, 2), "32B": ("qwen2.5-32b", 8, 4)}
"""Model, trainer's and rollout's tensor parallelism."""
MAX_RUNNING = 128
PROMPT_MEAN = 256


@dataclass(frozen=True)
class Stages:
    """Seconds of the stages of a step."""

    rollout: float
    inference: float
    actor: float


# A: one node, 512 sequences.
A_STAGES = Stages(266.08, 17.78, 61.12)
A_MEAN_RESPONSE = 13_975
A_RECOMPUTED = 20 / 28

# B: components taking turns.
B_TOKENS_S = {
    "1.5B": {64: 217_870, 128: 292_060, 256: 399_460},
    "7B": {64: 118_170, 128: 196_159, 256: 303_929},
    "32B": {64: 23_040, 128: 41_780, 256: 66_060},
}
B_STAGES = {64: Stages(591.3, 102.3, 367.7), 128: Stages(367.5, 55.4, 200.3), 256: Stages(236.3, 30.3, 111.5)}

# C: taking turns against side by side, tokens/s.
C_TOKENS_S = {("7B", 64): (49_040, 59_140), ("32B", 128): (14_650, 17_100)}

# D: side by side without and with moving GPUs, tokens/s.
D_TOKENS_S = {
    ("1.5B", 64): (154_000, 238_000),
    ("1.5B", 128): (221_000, 311_000),
    ("7B", 64): (73_000, 105_000),
    ("7B", 128): (127_000, 192_000),
    ("32B", 64): (16_600, 21_200),
    ("32B", 128): (29_700, 41_600),
}
D_MEAN = 9_100
"""Tokens per sequence: tokens/s x seconds of the 7B time line, 8.8k static and 9.4k dynamic."""
D_OTHERWISE = (("32B", 64),)
"""Of these the system's own example files (RLinf, examples/reasoning/config/math) have another set-up than the others:
actor 32, rollout 24, inference 8 GPUs, and 0.40 of the memory for rollout. Which one was measured is not published."""
D_DECODE_MEDIAN_S = 59.8
"""Median time to the end of a response, 1.5B."""

# E: the placement rule.
E_PLACEMENT = {"actor": 32, "rollout": 80, "inference": 16}


def b_mean_tokens(num_gpus: int) -> float:
    """Tokens per sequence that B's throughput and stage seconds imply; they drift by 8 % between scales."""
    stages = B_STAGES[num_gpus]
    return B_TOKENS_S["7B"][num_gpus] * (stages.rollout + stages.inference + stages.actor) / (512 * 16)


def taking_turns(size: str, num_gpus: int, mean_tokens: float, **more: Any) -> Posttrain:
    """512 x 16 on `num_gpus` H100s that all components share."""
    placement = dict.fromkeys(("actor", "rollout", "inference"), "all")
    return _configuration(size, num_gpus, mean_tokens, {"component_placement": placement}, more)


def side_by_side(size: str, num_gpus: int, mean_tokens: float) -> Posttrain:
    """512 x 16 on `num_gpus` H100s, a quarter of them actor and an eighth inference, as in D's time line and E."""
    ends = (num_gpus // 4, num_gpus - num_gpus // 8)
    placement = {
        "actor": f"0-{ends[0] - 1}",
        "rollout": f"{ends[0]}-{ends[1] - 1}",
        "inference": f"{ends[1]}-{num_gpus - 1}",
    }
    cluster = {"auto_scheduler": True, "component_placement": placement}
    return _configuration(size, num_gpus, mean_tokens, cluster, {})


def _configuration(
    size: str, num_gpus: int, mean_tokens: float, cluster: dict[str, Any], more: dict[str, dict[str, Any]]
) -> Posttrain:
    model, trainer, rollout = MODELS[size]
    data: dict[str, Any] = {
        "cluster": {"num_nodes": num_gpus // 8, **cluster},
        "model": model,
        "algorithm": {"rollout_batch_size": 512, "group_size": 16, "n_minibatches": 4},
        "rollout": {"tensor_parallel": rollout, "max_running_requests": MAX_RUNNING},
        "actor": {"tensor_parallel": trainer},
        "inference": {"tensor_parallel": trainer},
        "lengths": {"mean": mean_tokens - PROMPT_MEAN, "prompt_mean": PROMPT_MEAN},
    }
    for key, value in more.items():
        data[key] = {**data[key], **value}
    return build(Posttrain, data)
