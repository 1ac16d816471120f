"""Trainer GPUs that help to roll out between steps, as verl's switching does."""

from gnomon.posttrain.policies import Policy, Share, scheduling_policy
from gnomon.posttrain.policies.snapshot import Actions, Migrate, Scale, Snapshot
from gnomon.posttrain.policies.static import side_by_side


@scheduling_policy("switching", checks="before_training", needs_order=True)
class Switching(Policy):
    """At the start of a step rollout takes the actor's GPUs, too, if too few groups are ready and it pays; it gives
    them back when enough are."""

    ratio: Share = 0.4
    """Groups that must be ready for the actor to train, as a share of a step's; at least one mini-batch. From here it
    adapts."""
    more: Share = 0.05
    """Added after two steps in a row in which the actor waited for longer than switching takes."""
    less: Share = 0.03
    """Taken away after two in which it did not."""

    @property
    def lent(self) -> tuple[str, ...]:
        return ("actor",)

    def adapted(self, snapshot: Snapshot) -> float:
        """The ratio after the steps so far: it follows from what they waited, so that nothing need be remembered."""
        ratio, idle, calm = self.ratio, 0, 0
        for waited_s in snapshot.actor_waited_s:
            is_idle = waited_s > snapshot.migration_s + snapshot.reshard_s
            idle, calm = (idle + 1, 0) if is_idle else (0, calm + 1)
            if idle == 2:
                ratio, idle = min(1.0, ratio + self.more), 0
            elif calm == 2:
                ratio, calm = max(0.0, ratio - self.less), 0
        return ratio

    def threshold(self, snapshot: Snapshot) -> int:
        minibatch = snapshot.groups_needed // snapshot.num_minibatches
        return max(minibatch, min(round(self.adapted(snapshot) * snapshot.groups_needed), snapshot.groups_needed))

    def decide(self, snapshot: Snapshot) -> Actions:
        initial = snapshot.initial
        if snapshot.point == "start":
            helped = side_by_side(snapshot)[:-1]
            helped[0] = Scale(component="rollout", gpus=initial["actor"] + initial["rollout"])
            return helped if self._pays(snapshot) else side_by_side(snapshot)
        is_ready = snapshot.groups_ready >= self.threshold(snapshot) or snapshot.point == "stalled"
        if snapshot.actor or snapshot.point == "boundary" or not is_ready:
            return []
        leave = tuple(one.id for one in snapshot.instances if set(one.gpus) & set(initial["actor"]))
        return [Migrate(leave=leave), Scale(component="actor", gpus=initial["actor"])]

    def _pays(self, snapshot: Snapshot) -> bool:
        """Whether the missing groups come sooner by more than switching costs, at the rate of the last step."""
        missing = self.threshold(snapshot) - snapshot.groups_complete
        rate = snapshot.rates.rollout_groups_s
        if missing <= 0 or rate <= 0:
            return missing > 0
        own, more = len(snapshot.initial["rollout"]), len(snapshot.initial["actor"])
        return missing / rate * more / (own + more) > snapshot.migration_s + snapshot.reshard_s
