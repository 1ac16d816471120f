"""As many replicas as the work in the queues and in memory asks for, as KEDA's scalers do.

Each trigger asks for ceil(metric / threshold) replicas, the largest wins, and after the last active trigger a cooldown
passes before the pool shrinks (KEDA's default: 300 s).
"""

from __future__ import annotations

import math

from gnomon.serving.autoscaling.controllers import View, controller


@controller("queue_driven", options={"waiting": 5.0, "running": 64.0, "kv_use": 0.8, "cooldown_s": 300.0})
def queue_driven(view: View) -> int:
    """The largest of: requests that wait, those that run, and memory in use, each over its threshold per replica."""
    by_queue = math.ceil(view.waiting / view.options["waiting"])
    by_running = math.ceil(view.running / view.options["running"])
    by_memory = math.ceil(view.ready * view.kv_use / view.options["kv_use"])
    wanted = max(by_queue, by_running, by_memory)
    current = view.ready + view.starting
    if wanted >= current:
        view.memory["active_s"] = view.now_s
        return wanted
    if view.now_s - view.memory.setdefault("active_s", view.now_s) < view.options["cooldown_s"]:
        return current
    return wanted
