"""Between the controls of the Post-training page and a configuration, and the page's examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnomon.api.posttrain import Posttrain
from gnomon.core.config import load
from gnomon.ui.controls import ControlError
from gnomon.ui.foreign import check_is_data

KEYS = {
    "model": "model", "device": "device", "nodes": "cluster.num_nodes", "gpus": "cluster.gpus_per_node",
    "actor": "cluster.component_placement.actor", "rollout": "cluster.component_placement.rollout",
    "inference": "cluster.component_placement.inference", "policy": "policy.name",
    "pre": "cluster.use_pre_process_policy", "wait": "cluster.use_wait_before_last_iter_policy",
    "lend": "cluster.lend_inference", "prompts": "algorithm.rollout_batch_size", "samples": "algorithm.group_size",
    "minibatches": "algorithm.n_minibatches", "logprobs": "algorithm.recompute_logprobs",
    "lengths": "lengths.distribution", "mean": "lengths.mean", "shape": "lengths.shape",
    "correlation": "lengths.group_correlation", "longest": "lengths.max_response",
    "rollout_tp": "rollout.tensor_parallel", "running": "rollout.max_running_requests",
    "actor_tp": "actor.tensor_parallel", "actor_share": "actor.efficiency",
    "inference_tp": "inference.tensor_parallel", "inference_share": "inference.efficiency",
    "migration": "transitions.migration_s", "switch": "transitions.switch_s", "steps": "num_steps", "seed": "seed",
}  # fmt: skip
"""The field behind each control."""
MAX_SEQUENCES = 65_536
"""Sequences of all steps that a page waits for: a second or two."""

EXAMPLES: dict[str, dict[str, Any]] = {
    "8 GPUs, 1.5B": {"steps": 2},
    "8 GPUs, equal lengths": {
        "prompts": 256, "minibatches": 8, "running": 32, "lengths": "fixed", "mean": 3000,
    },
    "64 GPUs, 7B, long tail": {
        "model": "qwen2.5-7b", "nodes": 8, "actor": "0-15", "rollout": "16-55", "inference": "56-63", "prompts": 512,
        "samples": 16, "mean": 9000, "longest": 27_648, "rollout_tp": 2, "running": 128, "actor_tp": 4,
        "inference_tp": 2,
    },
}  # fmt: skip
"""What differs from the page's defaults; the same as examples/posttrain/{small,flat,elastic}.yaml."""


def config_of(values: Mapping[str, Any]) -> Posttrain:
    """The configuration that the controls describe."""
    flat = {key: values[name] for name, key in KEYS.items() if values[name] not in (None, "")}
    check_is_data(flat)
    config = load(Posttrain, None, flat)
    if config.algorithm.num_sequences * config.num_steps > MAX_SEQUENCES:
        most = MAX_SEQUENCES // (config.algorithm.group_size * config.num_steps)
        raise ControlError("prompts", f"A page simulates at most {most:,} prompts of this many samples and steps.")
    return config
