"""Keep the replicas' mean utilization at a target, as Kubernetes' horizontal pod autoscaler does.

Its rule: desired = ceil(current x utilization / target), nothing within a tolerance of 10 %. Its pace (the defaults of
autoscaling/v2): up at once, but in 15 s at most to twice as many or four more; down to the highest answer of the last
five minutes.
"""

import math

from gnomon.serving.autoscaling.controllers import View, controller

PACE = {"stabilization_s": 300.0, "up_s": 0.0, "period_s": 15.0}
"""How long the highest answer holds on the way down, and the lowest on the way up; how often it may double."""


def paced(view: View, wanted: int) -> int:
    """What is wanted, at the pace of a horizontal pod autoscaler. At first it takes what is there for wanted."""
    options, current = view.options, view.ready + view.starting
    before = view.memory.get("recent", [(view.now_s, current)])
    view.memory["recent"] = recent = [
        (at_s, count) for at_s, count in before if at_s > view.now_s - max(options["stabilization_s"], options["up_s"])
    ] + [(view.now_s, wanted)]
    highest = max([wanted, *(count for at_s, count in recent if at_s > view.now_s - options["stabilization_s"])])
    lowest = min([wanted, *(count for at_s, count in recent if at_s > view.now_s - options["up_s"])])
    most = current
    for _ in range(max(1, round(view.interval_s / options["period_s"]))):
        most = min(view.max_replicas, max(2 * most, most + 4))
    return max(min(lowest, most), min(current, highest))


@controller("target_utilization", options={"target": 0.7, "tolerance": 0.1, **PACE})
def target_utilization(view: View) -> int:
    """Proportional to the utilization, at the pace of the autoscaler."""
    ratio = view.utilization / view.options["target"]
    current = view.ready + view.starting
    wanted = current if abs(ratio - 1.0) <= view.options["tolerance"] else math.ceil(max(view.ready, 1) * ratio)
    return paced(view, wanted)
