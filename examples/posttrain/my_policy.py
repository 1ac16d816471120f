"""A policy of one's own: give idle rollout instances to the actor, but only in the second half of the step.

gnomon posttrain run examples/posttrain/small.yaml --policy.name late --policy.file examples/posttrain/my_policy.py
"""

from gnomon.posttrain.policies import Policy, scheduling_policy
from gnomon.posttrain.policies.elastic import end_of_step
from gnomon.posttrain.policies.payback import proposal
from gnomon.posttrain.policies.snapshot import Actions, Snapshot
from gnomon.posttrain.policies.static import side_by_side


@scheduling_policy("late")
class Late(Policy):
    from_share: float = 0.5

    def decide(self, snapshot: Snapshot) -> Actions:
        if snapshot.point == "start":
            return side_by_side(snapshot)
        if snapshot.point != "boundary":
            return []
        if snapshot.minibatch == snapshot.num_minibatches - 1:
            return end_of_step(snapshot)
        is_late = snapshot.minibatch + 1 >= self.from_share * snapshot.num_minibatches
        return proposal(snapshot) if is_late else []
