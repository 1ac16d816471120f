"""Whole runs: several steps of one policy, on lengths that do not depend on the policy."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gnomon import catalog
from gnomon.core.errors import ConfigError
from gnomon.core.user_files import load_user_file
from gnomon.posttrain.costs import Costs, check_actor_memory, reward_copies
from gnomon.posttrain.policies import POLICIES, Policy, make_policy
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.posttrain.scenario.lengths import draw
from gnomon.posttrain.scenario.placement import Placement, check_movable, placement_of
from gnomon.posttrain.simulator.record import RunRecord, StepRecord
from gnomon.posttrain.simulator.rollout import Prompts, check_memory
from gnomon.posttrain.simulator.step import Step

OVER_SUBMISSION = 3.0  # Prompts drawn per step, over those needed: room for policies that submit more.


def policy_of(config: Posttrain, placement: Placement) -> Policy:
    """The configured policy; by auto_scheduler and the placement where none is named."""
    if config.policy.file:
        load_user_file(config.policy.file)
    name = config.policy.name
    if name is None and config.cluster.auto_scheduler:
        given = config.cluster.model_fields_set
        name = next((one for one in POLICIES if given & set(POLICIES[one].cluster_flags)), "payback")
    elif name is None:
        name = "colocated" if placement.is_shared else "disaggregated"
    policy = make_policy(name, cluster_options(config, name) | config.policy.options)
    if placement.is_shared and not policy.spec.takes_turns:
        what = f"policy {name} needs components side by side, but they share GPUs."
        fix = "Use policy colocated, or give each component GPUs of its own."
        raise ConfigError(what, where="cluster.component_placement", fix=fix)
    return policy


def cluster_options(config: Posttrain, name: str) -> dict[str, Any]:
    """The options of a policy that the cluster's flags give."""
    return {flag: getattr(config.cluster, flag) for flag in POLICIES[name].cluster_flags}


def run(
    config: Posttrain, policy: Policy | None = None, *, keep_decisions: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> RunRecord:  # fmt: skip
    """Check the configuration, then simulate all its steps."""
    placement = placement_of(config)
    check_memory(config)
    check_actor_memory(config, len(placement.actor))
    policy = policy or policy_of(config, placement)
    if policy.spec.needs_order:
        check_movable(config, placement, "actor" in policy.lent, "inference" in policy.lent)
    costs = Costs(config, len(placement.actor))
    steps: list[StepRecord] = []
    left = None
    for number in range(config.num_steps):
        on_progress(number, config.num_steps)
        prompts = _prompts(config, number, left)
        before = steps[-1] if steps else None
        step = Step(config, placement, costs, policy, prompts, number, before=before, keep_decisions=keep_decisions)
        steps.append(step.run())
        left = step.left_over
    device = catalog.device(config.device)
    price = device.price_per_hour if config.price_per_gpu_hour is None else config.price_per_gpu_hour
    judges = config.environment.reward_gpus if reward_copies(config) else 0
    gpus = config.cluster.num_gpus
    return RunRecord(policy.name, gpus, steps, peak_flops=costs.peak_flops, price_per_hour=price, num_judges=judges)


def _prompts(config: Posttrain, number: int, left: Prompts | None) -> Prompts:
    """Those left over, then this step's own draw."""
    needed, size = config.algorithm.rollout_batch_size, config.algorithm.group_size
    allowed = config.algorithm.allowed(number) - (left.num_carried if left else 0)
    wanted = max(0, allowed) if config.algorithm.carries else int(needed * OVER_SUBMISSION)
    new = draw(config.lengths, wanted, size, config.seed, number)
    zeros = np.zeros_like(new.prompt)
    lag = number % config.algorithm.sync_every
    if left is None:
        return Prompts(new.prompt, new.response, zeros, zeros[:, 0])
    return Prompts(
        np.concatenate([left.prompt, new.prompt]),
        np.concatenate([left.response, new.response]),
        np.concatenate([left.generated, zeros]),
        np.concatenate([np.where(left.generated.sum(axis=1) > 0, left.age, lag), zeros[:, 0] + lag]),
        left.num_carried,
    )
