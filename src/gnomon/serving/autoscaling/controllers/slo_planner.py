"""Enough replicas for the load that is forecast, as NVIDIA Dynamo's SLA planner does.

What one replica serves within the SLO is measured beforehand, on a replica alone. The load at the time when a replica
started now would be ready is forecast from the last intervals (a straight line through them), and what was measured is
corrected by how the SLO was met of late.
"""

import math

import numpy as np

from gnomon.serving.autoscaling.controllers import View, controller

OPTIONS = {"history": 20.0, "margin": 0.1, "correction": 0.05, "goal": 0.99, "down_s": 300.0}


@controller("slo_planner", options=OPTIONS, profiles=True)
def slo_planner(view: View) -> int:
    """Forecast load over what a replica serves, with a margin; down only when it was wanted for a while."""
    memory, options = view.memory, view.options
    seen = [*memory.get("seen", []), (view.now_s, view.arrival_rate)][-int(options["history"]) :]
    memory["seen"] = seen
    times, rates = np.array(seen).T
    forecast = float(rates.mean())
    if len(seen) > 2:
        slope, _ = np.polyfit(times - times.mean(), rates, 1)
        forecast += float(slope) * (view.now_s + view.cold_start_s - times.mean())
    correction = memory.get("correction", 1.0)
    if view.slo_met is not None:
        missed = view.slo_met < options["goal"] and view.waiting > view.ready
        correction *= 1.0 - options["correction"] if missed else 1.0 + options["correction"] / 4
    memory["correction"] = correction = min(1.0, max(0.3, correction))
    wanted = math.ceil(max(forecast, 0.0) * (1.0 + options["margin"]) / (view.replica_rate * correction))
    recent = [(at_s, count) for at_s, count in memory.get("wanted", []) if at_s > view.now_s - options["down_s"]]
    memory["wanted"] = recent = [*recent, (view.now_s, wanted)]
    return max(count for _, count in recent)
