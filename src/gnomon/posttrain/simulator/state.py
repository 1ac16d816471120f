"""What a step knows at any moment: its settings, and how far submission, generation and training are."""

import math
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.posttrain.costs import Costs
from gnomon.posttrain.policies import Policy
from gnomon.posttrain.policies.snapshot import Instance, Point, Rates, Snapshot
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.posttrain.scenario.placement import Placement, valid_actor_sizes
from gnomon.posttrain.simulator.allocation import Allocation
from gnomon.posttrain.simulator.record import StepRecord, Work
from gnomon.posttrain.simulator.rollout import Prompts, Rollouts


@dataclass(eq=False)
class StepState:
    """One step of a policy, as it stands."""

    config: Posttrain
    placement: Placement
    costs: Costs
    policy: Policy
    prompts: Prompts
    number: InitVar[int]
    before: StepRecord | None = None
    keep_decisions: bool = False

    def __post_init__(self, number: int) -> None:
        config, prompts = self.config, self.prompts
        self.tokens, self.record = prompts.prompt + prompts.response, StepRecord(number)
        self.settings = settings_of(config, self.placement)
        self.record.valid_actor_sizes = self.settings["valid_actor_sizes"]
        algorithm = config.algorithm
        self.group_size, self.needed = algorithm.group_size, algorithm.rollout_batch_size
        self.num_minibatches = algorithm.num_fetches
        self.per_minibatch = self.needed // self.num_minibatches
        self.has_inference = algorithm.recompute_logprobs
        self.allocation = Allocation(config, self.costs, self.policy, self.record)
        self.now = 0.0
        # Submission.
        self.carries, self.is_async = algorithm.carries, algorithm.is_async
        allowed = max(algorithm.allowed(number), prompts.num_carried) if self.carries else self.needed
        self.submitted, self.balance = min(allowed, len(prompts.age)), False
        self.max_age = algorithm.max_lag if self.is_async and algorithm.stale == "wait" else None
        self.started_s = self.generated_s = 0.0
        self.is_generated = np.zeros(0, bool)
        self.num_collected = -1
        self.kv_recent: list[tuple[float, ...]] = [()] * config.cluster.num_gpus
        # Training.
        self.ready: list[tuple[float, int]] = []
        self.trained: list[Ints] = []
        self.minibatches: list[Work] = []
        self.actor_free_s = 0.0
        self.actor_end_s = math.inf
        self.waiting_for: str | None = None
        self.is_over = False

    @property
    def num_trained(self) -> int:
        return self.per_minibatch * len(self.trained)

    @property
    def rollouts(self) -> Rollouts:
        """Generation, which is there once prompts are submitted."""
        assert self.allocation.rollouts is not None
        return self.allocation.rollouts


def settings_of(config: Posttrain, placement: Placement) -> dict[str, Any]:
    """What a snapshot says that does not change."""
    a = config.algorithm
    return {
        "num_minibatches": a.num_fetches, "group_size": a.group_size, "num_gpus": config.cluster.num_gpus,
        "rollout_gpus": config.rollout.num_gpus,
        "inference_gpus": config.inference.num_gpus if a.recompute_logprobs else 0,
        "max_running": config.rollout.max_running, "valid_actor_sizes": tuple(valid_actor_sizes(config)),
        "initial": placement.by_name(), "groups_needed": a.rollout_batch_size,
        "migration_s": config.transitions.migration_s,
    }  # fmt: skip


def snapshot_of(step: StepState, point: Point) -> Snapshot:
    """The step as it is now; nothing that a live system could not know."""
    allocation = step.allocation
    owners = allocation.owners
    held, rollouts = allocation.instances, allocation.rollouts
    if rollouts is None:
        instances = tuple(Instance(id=one, gpus=held[one], unfinished=0, kv_use=0.0) for one in sorted(held))
        stalest = step.prompts.age[: step.prompts.num_carried].max(initial=-1)
    else:
        unfinished, use, recent = rollouts.unfinished.tolist(), rollouts.kv_use.tolist(), step.kv_recent
        instances = tuple(
            Instance(id=one, gpus=held[one], unfinished=unfinished[one], kv_use=use[one], kv_recent=recent[one])
            for one in sorted(held)
        )
        stalest = step.prompts.age[: step.submitted][~step.is_generated].max(initial=-1)
    generated = int(step.is_generated.sum())
    return Snapshot.model_construct(  # Many are made, and right as they are.
        **step.settings, point=point, time_s=step.now, step=step.record.number, minibatch=len(step.trained) - 1,
        actor=owners.of("actor"), inference=owners.of("inference"), free=owners.of("free"), instances=instances,
        groups_submitted=step.submitted if rollouts else 0, groups_generated=generated,
        groups_ready=step.num_trained + sum(at <= step.now for at, _ in step.ready),
        sequences_unfinished=sum(one.unfinished for one in instances) + allocation.num_waiting,
        sequences_waiting=allocation.prompts.num_sequences if allocation.prompts else 0,
        groups_complete=step.prompts.num_complete, carried=step.prompts.num_carried, stalest=int(stalest),
        rates=_rates(step, generated), actor_waited_s=step.before.actor_waited_s if step.before else (),
        reshard_s=step.costs.reshard_s,
    )  # fmt: skip


def _rates(step: StepState, generated: int) -> Rates:
    trained = [one for one in step.minibatches if one.end_s <= step.now]
    gpu_s = sum(one.busy_s * len(one.gpus) for one in trained)
    passed = step.now - step.started_s if step.allocation.rollouts else 0.0
    new = generated - step.prompts.num_complete
    before = step.before.groups_s if step.before and not step.allocation.rollouts else 0.0
    return Rates(
        rollout_groups_s=new / passed if passed > 0 else before,
        inference_groups_s=step.allocation.inference.groups_s,
        train_groups_s_per_gpu=step.per_minibatch * len(trained) / gpu_s if gpu_s > 0 else 0.0,
    )
