"""The fewest replicas that the arrivals to come need: what a controller would do that knew the trace.

It knows the arrivals, not the queues: against it the regret of the others is counted.
"""

import math

from gnomon.serving.autoscaling.controllers import View, controller


@controller("oracle", options={"window_s": 60.0, "margin": 0.0}, profiles=True, sees_future=True)
def oracle(view: View) -> int:
    """The busiest window between now and when a replica started at the next decision would be ready."""
    assert view.future is not None
    window_s = view.options["window_s"]
    end_s = view.now_s + view.cold_start_s + view.interval_s
    busiest, start_s = 0.0, view.now_s
    while start_s < end_s:
        busiest = max(busiest, view.future(start_s, start_s + window_s) / window_s)
        start_s += window_s / 2
    return math.ceil(busiest * (1.0 + view.options["margin"]) / view.replica_rate)
