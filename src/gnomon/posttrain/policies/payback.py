"""Policies that do at boundaries what the elastic rules would, if it pays: by its cost, or by how engines are used."""

import math
from abc import abstractmethod

from pydantic import PositiveFloat, PositiveInt

from gnomon.posttrain.policies import Policy, Share, scheduling_policy
from gnomon.posttrain.policies.elastic import end_of_step, grown_actor, releases
from gnomon.posttrain.policies.snapshot import Actions, Migrate, Scale, Snapshot
from gnomon.posttrain.policies.static import side_by_side


def proposal(snapshot: Snapshot) -> Actions:
    """What the elastic rules would do at this boundary, inference included."""
    actions, freed = releases(snapshot, snapshot.max_running)
    growth = grown_actor(snapshot, freed)
    return [*actions, *growth] if growth else []


def actor_size_after(snapshot: Snapshot, actions: Actions) -> int:
    """GPUs of the actor once these actions are done."""
    sizes = [len(a.gpus) for a in actions if isinstance(a, Scale) and a.component == "actor"]
    return sizes[-1] if sizes else len(snapshot.actor)


def step_left_s(snapshot: Snapshot, num_gpus: int, num_instances: int) -> float:
    """Seconds until the step is over with an actor of so many GPUs and so many rollout instances, at the rates so far.

    Generation and training go on side by side: the longer one decides, and the last mini-batch is trained after the
    last group.
    """
    rate = snapshot.rates.train_groups_s_per_gpu * num_gpus
    to_train = snapshot.groups_needed * (1 - (snapshot.minibatch + 1) / snapshot.num_minibatches)
    one_minibatch = snapshot.groups_needed / snapshot.num_minibatches
    return max(to_train / rate, rollout_left_s(snapshot, num_instances) + one_minibatch / rate)


def rollout_left_s(snapshot: Snapshot, num_instances: int) -> float:
    """Seconds until all is generated if the running sequences share so many instances.

    Sequences of a crowded instance slow each other down: by as much as they become more where it is full, by next to
    nothing where it is nearly empty.
    """
    left = snapshot.groups_needed - snapshot.groups_generated
    if snapshot.sequences_unfinished == 0 or left <= 0 or snapshot.rates.rollout_groups_s <= 0:
        return 0.0
    now = snapshot.sequences_unfinished / len(snapshot.instances)
    then = snapshot.sequences_unfinished / max(1, num_instances)
    crowding = min(1.0, then / snapshot.max_running)
    return left / snapshot.rates.rollout_groups_s * (1 + crowding * (then / now - 1))


class AtBoundaries(Policy):
    """Starts side by side, and may change that at the boundaries of mini-batches; at the last one the step ends."""

    def decide(self, snapshot: Snapshot) -> Actions:
        if snapshot.point == "start":
            return side_by_side(snapshot)
        if snapshot.point != "boundary":
            return []
        if snapshot.minibatch == snapshot.num_minibatches - 1:
            return end_of_step(snapshot)
        return self.change(snapshot)

    @abstractmethod
    def change(self, snapshot: Snapshot) -> Actions:
        """What to change at a boundary that is not the last."""


@scheduling_policy("payback")
class Payback(AtBoundaries):
    """Starts side by side; at boundaries commits the elastic rules' change if it pays back."""

    gamma: PositiveFloat = 0.5
    """Largest share of the remaining benefit that the transition may cost."""

    def change(self, snapshot: Snapshot) -> Actions:
        """Benefit: how much sooner the step would be over, by the larger actor and the smaller rollout."""
        change = proposal(snapshot)
        if not change or snapshot.rates.train_groups_s_per_gpu <= 0:
            return []
        released = sum(len(action.leave) for action in change if isinstance(action, Migrate))
        is_migration = released > 0 and snapshot.sequences_unfinished > 0
        cost_s = 2 * snapshot.reshard_s + (snapshot.migration_s if is_migration else 0.0)
        before_s = step_left_s(snapshot, len(snapshot.actor), len(snapshot.instances))
        after_s = step_left_s(snapshot, actor_size_after(snapshot, change), len(snapshot.instances) - released)
        return change if cost_s <= self.gamma * (before_s - after_s) else []


@scheduling_policy("utilization", checks="always")
class Utilization(AtBoundaries):
    """Starts side by side; looks at the KV use of the engines at every check and acts at mini-batch boundaries."""

    theta: Share = 0.5
    """Donate when more than this share of the engines is little used ..."""
    u_low: Share = 0.3
    """... which means KV use below this ..."""
    window: PositiveInt = 10
    """... at so many checks in a row (at most 30)."""

    def change(self, snapshot: Snapshot) -> Actions:
        """Commit only if the predicted throughput of the slowest stage rises."""
        recent = [one.kv_recent[-self.window :] for one in snapshot.instances]
        low = [use for use in recent if len(use) == self.window and max(use) < self.u_low]
        if len(low) <= self.theta * len(snapshot.instances) and snapshot.sequences_unfinished:
            return []
        change = proposal(snapshot)
        return change if change and self._slowest(snapshot, change) > self._slowest(snapshot, []) else []

    def _slowest(self, snapshot: Snapshot, change: Actions) -> float:
        """Groups per second of the slowest stage that still has work."""
        rates, stages = snapshot.rates, []
        stages.append(rates.train_groups_s_per_gpu * actor_size_after(snapshot, change))
        if snapshot.sequences_unfinished:
            left = sum(len(action.leave) for action in change if isinstance(action, Migrate))
            count = len(snapshot.instances)
            needed = max(1, math.ceil(snapshot.sequences_unfinished / snapshot.max_running))
            # Sequences that fit into fewer engines are not slowed in a first approximation: decoding is bound by
            # the weights. Beyond that, throughput goes with the number of engines.
            stages.append(rates.rollout_groups_s * min(1.0, (count - left) / min(count, needed)))
        if snapshot.inference and snapshot.inference_pending and rates.inference_groups_s > 0:
            stages.append(rates.inference_groups_s)
        return min(stages)
