"""Change only if it pays: the transition costs at most a share of what the larger actor saves."""

from __future__ import annotations

from pydantic import PositiveFloat

from gnomon.posttrain.policies import Policy, scheduling_policy
from gnomon.posttrain.policies.elastic import end_of_step, gpus_of, grown_actor, instances_to_release
from gnomon.posttrain.policies.static import side_by_side
from gnomon.posttrain.snapshot import Actions, Finish, Migrate, Scale, Snapshot


def proposal(snapshot: Snapshot) -> Actions:
    """What the elastic rules would do at this boundary, inference included."""
    released = instances_to_release(snapshot, snapshot.max_running)
    actions: Actions = [Migrate(leave=released)] if released else []
    freed = gpus_of(snapshot, released)
    if snapshot.inference and not snapshot.inference_pending:
        actions.append(Finish(component="inference"))
        freed += snapshot.inference
    growth = grown_actor(snapshot, freed)
    return [*actions, *growth] if growth else []


def actor_size_after(snapshot: Snapshot, actions: Actions) -> int:
    """GPUs of the actor once these actions are done."""
    sizes = [len(a.gpus) for a in actions if isinstance(a, Scale) and a.component == "actor"]
    return sizes[-1] if sizes else len(snapshot.actor)


@scheduling_policy("payback")
class Payback(Policy):
    """Starts side by side; at boundaries commits the elastic rules' change if it pays back."""

    gamma: PositiveFloat = 0.5
    """Largest share of the remaining benefit that the transition may cost."""

    def decide(self, snapshot: Snapshot) -> Actions:
        """Benefit: what is left to train, at the rate so far, on the present actor less on the larger one."""
        if snapshot.point == "start":
            return side_by_side(snapshot)
        if snapshot.point != "boundary":
            return []
        if snapshot.minibatch == snapshot.num_minibatches - 1:
            return end_of_step(snapshot)
        change = proposal(snapshot)
        if not change:
            return []
        is_migration = any(isinstance(action, Migrate) for action in change) and snapshot.sequences_unfinished > 0
        cost_s = 2 * snapshot.reshard_s + (snapshot.migration_s if is_migration else 0.0)
        left = snapshot.groups_needed * (1 - (snapshot.minibatch + 1) / snapshot.num_minibatches)
        rate = snapshot.rates.train_groups_s_per_gpu
        before, after = len(snapshot.actor), actor_size_after(snapshot, change)
        benefit_s = left / rate * (1 / before - 1 / after) if rate > 0 else 0.0
        return change if cost_s <= self.gamma * benefit_s else []
