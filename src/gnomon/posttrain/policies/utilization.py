"""Donate when the generation engines run empty and the slowest stage gains by it."""

import math

from pydantic import PositiveInt

from gnomon.posttrain.policies import Share, scheduling_policy
from gnomon.posttrain.policies.payback import AtBoundaries, actor_size_after, proposal
from gnomon.posttrain.policies.snapshot import Actions, Migrate, Snapshot


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
        low = [one for one in snapshot.instances if self._is_low(one.kv_recent)]
        if len(low) <= self.theta * len(snapshot.instances) and snapshot.sequences_unfinished:
            return []
        change = proposal(snapshot)
        return change if change and self._slowest(snapshot, change) > self._slowest(snapshot, []) else []

    def _is_low(self, recent: tuple[float, ...]) -> bool:
        return len(recent) >= self.window and max(recent[-self.window :]) < self.u_low

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
