"""What a step knows at any moment: its settings, and how far submission, generation and training are."""

from __future__ import annotations

import math

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.posttrain.allocation import Allocation
from gnomon.posttrain.config import Posttrain
from gnomon.posttrain.costs import Costs
from gnomon.posttrain.placement import Placement, valid_actor_sizes
from gnomon.posttrain.policies import Policy
from gnomon.posttrain.prompts import Prompts
from gnomon.posttrain.record import StepRecord, Work
from gnomon.posttrain.rollout import Rollouts


class StepState:
    """One step of a policy, as it stands."""

    def __init__(
        self,
        config: Posttrain,
        placement: Placement,
        costs: Costs,
        policy: Policy,
        prompts: Prompts,
        number: int,
        *,
        before: StepRecord | None = None,
        keep_decisions: bool = False,
    ) -> None:
        self.before = before
        self.config, self.placement, self.costs, self.policy = config, placement, costs, policy
        self.prompts, self.tokens = prompts, prompts.prompt + prompts.response
        self.record, self.keep_decisions = StepRecord(number), keep_decisions
        self.record.valid_actor_sizes = tuple(valid_actor_sizes(config))
        algorithm = config.algorithm
        self.group_size, self.needed = algorithm.group_size, algorithm.rollout_batch_size
        self.num_minibatches = algorithm.num_fetches
        self.per_minibatch = self.needed // self.num_minibatches
        self.has_inference = algorithm.recompute_logprobs
        self.allocation = Allocation(config, costs, policy, self.record)
        self.now = 0.0
        # Submission.
        self.carries, self.is_async = algorithm.carries, algorithm.is_async
        allowed = max(algorithm.allowed(number), prompts.num_carried) if self.carries else self.needed
        self.submitted, self.balance = min(allowed, len(prompts.age)), False
        self.max_age = algorithm.max_lag if self.is_async and algorithm.stale == "wait" else None
        self.started_s = self.generated_s = 0.0
        self.is_generated = np.zeros(0, bool)
        self.num_collected = -1
        self.kv_recent: list[list[float]] = [[] for _ in range(config.cluster.num_gpus)]
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
        """Groups in the mini-batches so far."""
        return self.per_minibatch * len(self.trained)

    @property
    def rollouts(self) -> Rollouts:
        """Generation, which is there once prompts are submitted."""
        assert self.allocation.rollouts is not None
        return self.allocation.rollouts
