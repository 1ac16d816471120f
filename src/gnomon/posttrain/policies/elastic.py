"""The elastic policy: shrink rollout as its tail thins out, grow the actor with what it frees."""

import math

from pydantic import PositiveFloat

from gnomon.posttrain.policies import Policy, scheduling_policy
from gnomon.posttrain.policies.snapshot import Actions, Finish, Migrate, Scale, Snapshot, Submit, Wait
from gnomon.posttrain.policies.static import side_by_side


def instances_to_release(snapshot: Snapshot, per_instance: float) -> tuple[int, ...]:
    """Beyond those that the running sequences need, as many as let the actor grow to the largest valid size.

    The lowest ids leave, so that the actor grows contiguously. One stays while there is work.
    """
    ids = [one.id for one in snapshot.instances]
    if snapshot.sequences_unfinished == 0:
        return tuple(ids)
    keep = max(1, math.ceil(snapshot.sequences_unfinished / per_instance))
    at_hand = len(snapshot.actor) + len(snapshot.free)
    most = max(0, len(ids) - keep)
    target = snapshot.largest_actor(at_hand + most * snapshot.rollout_gpus)
    if target <= max(len(snapshot.actor), snapshot.largest_actor(at_hand)):
        return ()
    return tuple(ids[: math.ceil((target - at_hand) / snapshot.rollout_gpus)])


def releases(snapshot: Snapshot, per_instance: float) -> tuple[Actions, tuple[int, ...]]:
    """What lets instances and inference go that are not needed, and their GPUs."""
    released = instances_to_release(snapshot, per_instance)
    actions: Actions = [Migrate(leave=released)] if released else []
    freed = tuple(gpu for one in snapshot.instances if one.id in released for gpu in one.gpus)
    if snapshot.inference and not snapshot.inference_pending:
        return [*actions, Finish(component="inference")], freed + snapshot.inference
    return actions, freed


def grown_actor(snapshot: Snapshot, released: tuple[int, ...]) -> Actions:
    """The actor on its own GPUs and the lowest of those that are free; never smaller than before."""
    free = sorted({*snapshot.free, *released})
    size = snapshot.largest_actor(len(snapshot.actor) + len(free))
    if size <= len(snapshot.actor):
        return []
    return [Scale(component="actor", gpus=(*snapshot.actor, *free[: size - len(snapshot.actor)]))]


def end_of_step(snapshot: Snapshot) -> Actions:
    """Everything finishes; the actor returns to its initial GPUs."""
    actions: Actions = [Finish(component="rollout")]
    if snapshot.inference:
        actions.append(Finish(component="inference"))
    if snapshot.actor != snapshot.initial["actor"]:
        actions.append(Scale(component="actor", gpus=snapshot.initial["actor"]))
    return actions


@scheduling_policy(
    "elastic", checks="before_training", needs_order=True,
    cluster_flags=("use_pre_process_policy", "use_wait_before_last_iter_policy", "lend_inference"),
)  # fmt: skip
class Elastic(Policy):
    """Decides at mini-batch boundaries, in the order rollout, inference, actor; the actor blocks meanwhile."""

    use_pre_process_policy: bool = True
    """Rollout also starts on the actor's GPUs."""
    use_wait_before_last_iter_policy: bool = False
    """Before the last mini-batch, wait for rollout and inference, and train on all GPUs."""
    lend_inference: bool = False
    """Rollout also starts on the inference GPUs (with the pre-process policy)."""
    start_share: PositiveFloat = 0.5
    """The actor's GPUs are given back when at most this share of the sequences still runs."""
    packing: PositiveFloat = 1.0
    """Sequences per kept instance, over max_running_requests."""
    balance: bool = False
    """Deal by true lengths (for the clairvoyant bound)."""

    @property
    def lent(self) -> tuple[str, ...]:
        flags = {"actor": self.use_pre_process_policy, "inference": self.lend_inference}
        return tuple(component for component, is_lent in flags.items() if is_lent)

    def decide(self, snapshot: Snapshot) -> Actions:
        match snapshot.point:
            case "start":
                return [Submit(groups=snapshot.groups_needed, balance=self.balance), *self._start(snapshot)]
            case "check" | "stalled":
                return self._give_back_if_half_is_done(snapshot)
            case _:
                return self._boundary(snapshot)

    def _start(self, snapshot: Snapshot) -> Actions:
        if not self.use_pre_process_policy:
            return side_by_side(snapshot)
        initial = snapshot.initial
        gpus = initial["actor"] + initial["rollout"]
        if self.lend_inference or not snapshot.inference_gpus:
            return [Scale(component="rollout", gpus=gpus + initial["inference"])]
        return [Scale(component="rollout", gpus=gpus), Scale(component="inference", gpus=initial["inference"])]

    def _give_back_if_half_is_done(self, snapshot: Snapshot) -> Actions:
        """The end of the pre-process phase: instances on the actor's GPUs move their work out, the actor starts."""
        if snapshot.actor:
            return []
        submitted = snapshot.groups_submitted * snapshot.group_size
        is_half_done = snapshot.sequences_unfinished <= self.start_share * submitted
        is_early = snapshot.sequences_waiting > 0 or not is_half_done
        if is_early and snapshot.point == "check":
            return []
        initial = snapshot.initial
        lent = initial["actor"] + (initial["inference"] if self.lend_inference else ())
        leave = tuple(one.id for one in snapshot.instances if set(one.gpus) & set(lent))
        actions: Actions = [Migrate(leave=leave)]
        if self.lend_inference and snapshot.inference_gpus:
            actions.append(Scale(component="inference", gpus=initial["inference"]))
        return [*actions, Scale(component="actor", gpus=initial["actor"])]

    def _boundary(self, snapshot: Snapshot) -> Actions:
        if snapshot.minibatch == snapshot.num_minibatches - 1:
            return end_of_step(snapshot)
        is_before_last = snapshot.minibatch == snapshot.num_minibatches - 2
        must_wait = self.use_wait_before_last_iter_policy and is_before_last
        if must_wait and snapshot.sequences_unfinished:
            return [Wait(component="rollout")]
        actions, freed = releases(snapshot, self.packing * snapshot.max_running)
        is_last_user = not snapshot.sequences_unfinished and self.use_wait_before_last_iter_policy
        if snapshot.inference and snapshot.inference_pending and (must_wait or is_last_user):
            return [*actions, Wait(component="inference")]
        return [*actions, *grown_actor(snapshot, freed)]
