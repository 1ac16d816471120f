"""Replicas between prefill and decode as Dynamo's load-based planner moves them (components/planner.py of its 0.3).

Prefill is judged by the requests in its queue, decode by the share of its KV memory in use, each against two bounds.
The planner has a budget of GPUs; where all are in use, one role can only get a replica that the other gives up.
"""

from gnomon.serving.autoscaling.controllers import View, controller

WAITING_KV = 0.02  # Share of the KV memory that a request that waits is taken to need.
PERIODS = 3
"""Decisions after a new decode replica in which none is taken away; and of the trend by which a queue is predicted."""


@controller(
    "load_planner", shares=True, options={"queue_up": 5.0, "queue_down": 0.2, "kv_up": 0.9, "kv_down": 0.5}
)  # fmt: skip
def load_planner(prefill: View, decode: View) -> int:
    """One replica at a time, and none while one is on its way."""
    options, memory = prefill.options, prefill.memory
    queue, kv = prefill.waiting, decode.kv_use + WAITING_KV * decode.waiting / max(decode.ready, 1)
    predicted = queue + PERIODS * (queue - memory.get("queue", queue))
    grace = memory.get("grace", 0)
    memory.update(queue=queue, grace=max(grace - 1, 0))
    if any(view.starting or view.draining for view in (prefill, decode)):
        return prefill.desired
    if min(queue, predicted) > options["queue_up"] and kv < options["kv_down"] and not grace:
        return prefill.desired + 1
    if kv > options["kv_up"] and queue < options["queue_down"]:
        memory["grace"] = PERIODS
        return prefill.desired - 1
    return prefill.desired
