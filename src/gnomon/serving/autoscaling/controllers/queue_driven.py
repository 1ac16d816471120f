"""As many replicas as the work in the queues and in memory asks for, as KEDA's scalers do.

Each trigger asks for ceil(metric / threshold) replicas and the largest wins; KEDA hands that to a horizontal pod
autoscaler, whose pace holds (`target_utilization.paced`). Only from one replica to none does KEDA's own cooldown pass
(its defaults: 300 s for both).
"""

import math

from gnomon.serving.autoscaling.controllers import View, controller
from gnomon.serving.autoscaling.controllers.target_utilization import PACE, paced

OPTIONS = {"waiting": 5.0, "running": 64.0, "kv_use": 0.8, "cooldown_s": 300.0}


@controller("queue_driven", options={**OPTIONS, **PACE})
def queue_driven(view: View) -> int:
    """The largest of: requests that wait, those that run, and memory in use, each over its threshold per replica."""
    by_queue = math.ceil(view.waiting / view.options["waiting"])
    by_running = math.ceil(view.running / view.options["running"])
    by_memory = math.ceil(view.ready * view.kv_use / view.options["kv_use"])
    wanted = max(by_queue, by_running, by_memory)
    if wanted > 0:
        view.memory["active_s"] = view.now_s
    idle_s = view.now_s - view.memory.setdefault("active_s", view.now_s)
    return paced(view, wanted if idle_s >= view.options["cooldown_s"] else max(1, wanted))
