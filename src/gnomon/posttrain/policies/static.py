"""Placements that do not change: components side by side, or taking turns on all GPUs."""

from gnomon.posttrain.policies import Policy, scheduling_policy
from gnomon.posttrain.policies.snapshot import Actions, Finish, Scale, Snapshot, Submit, Wait


def side_by_side(snapshot: Snapshot) -> Actions:
    initial = snapshot.initial
    actions: Actions = [Scale(component="rollout", gpus=initial["rollout"])]
    if snapshot.inference_gpus:
        actions.append(Scale(component="inference", gpus=initial["inference"]))
    return [*actions, Scale(component="actor", gpus=initial["actor"])]


@scheduling_policy("disaggregated", is_static=True)
class Disaggregated(Policy):
    """A static pipeline: groups stream from rollout through inference to the actor."""

    def decide(self, snapshot: Snapshot) -> Actions:
        return side_by_side(snapshot) if snapshot.point == "start" else []


@scheduling_policy("colocated", is_static=True, takes_turns=True)
class Colocated(Policy):
    """All GPUs generate, then all compute log-probabilities, then all train."""

    balance: bool = False
    """Deal by true lengths (for the clairvoyant bound)."""

    def decide(self, snapshot: Snapshot) -> Actions:
        if snapshot.point == "start":
            return [
                Submit(groups=snapshot.groups_needed, balance=self.balance),
                Scale(component="rollout", gpus=tuple(range(snapshot.num_gpus))),
                Wait(component="rollout"),
            ]
        return next_turn(snapshot) if snapshot.point == "waited" else []


def next_turn(snapshot: Snapshot) -> Actions:
    """From rollout to inference, from inference to the actor; colocated components use every GPU they can."""
    all_gpus = tuple(range(snapshot.num_gpus))
    training = Scale(component="actor", gpus=all_gpus[: snapshot.largest_actor(snapshot.num_gpus)])
    if snapshot.inference:
        return [Finish(component="inference"), training]
    actions: Actions = [Finish(component="rollout")]
    if not snapshot.inference_gpus:
        return [*actions, training]
    whole = snapshot.num_gpus // snapshot.inference_gpus * snapshot.inference_gpus
    return [*actions, Scale(component="inference", gpus=all_gpus[:whole]), Wait(component="inference")]
