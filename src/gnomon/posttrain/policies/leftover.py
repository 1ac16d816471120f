"""Policies that do not wait for the longest responses: they submit more prompts than a step needs and stop early."""

import math

from pydantic import NonNegativeFloat, NonNegativeInt

from gnomon.posttrain.policies import Policy, scheduling_policy
from gnomon.posttrain.policies.snapshot import Actions, Finish, Snapshot, Submit
from gnomon.posttrain.policies.static import side_by_side


@scheduling_policy("tail_batching", checks="always")
class TailBatching(Policy):
    """Most steps take the prompts that finish first; the long ones start again together in a long step.

    Synchronous: whatever is left over starts again from its prompt with the new weights.
    """

    extra: NonNegativeFloat = 0.25
    """Prompts submitted beyond those needed, as a share."""

    def decide(self, snapshot: Snapshot) -> Actions:
        """A long step once enough prompts are left over; else a short one with more prompts than needed."""
        if snapshot.point == "start":
            needed = snapshot.groups_needed
            is_long = snapshot.carried >= needed
            groups = needed if is_long else math.ceil(needed * (1 + self.extra)) + snapshot.carried
            return [Submit(groups=groups), *side_by_side(snapshot)]
        if snapshot.instances and snapshot.groups_generated >= snapshot.groups_needed:
            return [Finish(component="rollout")]
        return []


@scheduling_policy("partial_rollout", checks="always")
class PartialRollout(Policy):
    """Stops generating once enough groups are complete; the others go on in the next step where they stopped.

    Their first tokens are older than the weights that train on them, by at most `staleness` updates.
    """

    staleness: NonNegativeInt = 1
    """Most weight updates between a group's first token and its training; 0 is synchronous."""
    extra: NonNegativeFloat = 0.25
    """Prompts submitted beyond those needed, as a share."""

    def decide(self, snapshot: Snapshot) -> Actions:
        """Finish when enough groups are complete and none that is left would become too old."""
        if snapshot.point == "start":
            extra = self.extra if self.staleness else 0.0
            groups = max(math.ceil(snapshot.groups_needed * (1 + extra)), snapshot.carried)
            return [Submit(groups=groups, max_age=self.staleness), *side_by_side(snapshot)]
        is_enough = snapshot.groups_generated >= snapshot.groups_needed and snapshot.stalest < self.staleness
        if snapshot.instances and is_enough:
            return [Finish(component="rollout", keep_tokens=True)]
        return []
