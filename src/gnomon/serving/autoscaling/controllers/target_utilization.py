"""Keep the replicas' mean utilization at a target, as Kubernetes' horizontal pod autoscaler does.

Its rule: desired = ceil(current x utilization / target), nothing within a tolerance of 10 %, and on the way down the
highest answer of the last five minutes (the defaults of autoscaling/v2).
"""

from __future__ import annotations

import math

from gnomon.serving.autoscaling.controllers import View, controller


@controller("target_utilization", options={"target": 0.7, "tolerance": 0.1, "stabilization_s": 300.0})
def target_utilization(view: View) -> int:
    """Proportional to the utilization; up at once, down only when it has been low for a while."""
    ratio = view.utilization / view.options["target"]
    current = view.ready + view.starting
    wanted = current if abs(ratio - 1.0) <= view.options["tolerance"] else math.ceil(max(view.ready, 1) * ratio)
    recent = [(at_s, count) for at_s, count in view.memory.get("recent", [])
              if at_s > view.now_s - view.options["stabilization_s"]]  # fmt: skip
    view.memory["recent"] = recent = [*recent, (view.now_s, wanted)]
    return max(wanted, min(current, max(count for _, count in recent)))
