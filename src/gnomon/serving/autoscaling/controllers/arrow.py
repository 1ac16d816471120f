"""Replicas between prefill and decode by Arrow's rule (arXiv 2505.11916; xLLM's instance manager).

What a role misses of its limit decides, if the other role would keep its own with a replica less. A decode replica is
wanted first: what is too slow there holds requests for long.
"""

from gnomon.core.errors import ConfigError
from gnomon.serving.autoscaling.controllers import View, controller


@controller("arrow", shares=True)
def arrow(prefill: View, decode: View) -> int:
    """One replica at a time, and none while one is on its way."""
    ttft_s, tpot_s = prefill.slo.ttft_s, prefill.slo.tpot_s
    if ttft_s is None or tpot_s is None:
        raise ConfigError("arrow holds both roles against limits.", where="slo", fix="Give slo.ttft_s and slo.tpot_s.")
    n, m = prefill.ready, decode.ready
    wait_s, token_s = wait(prefill), decode.running / max(decode.output_rate, 1e-9)
    if min(n, m) < 1 or any(view.starting or view.draining for view in (prefill, decode)):
        return prefill.desired
    if token_s > tpot_s and (wait_s < ttft_s * (n - 1) / n or m < n):
        return prefill.desired - 1
    if wait_s > ttft_s and token_s < tpot_s * (m - 1) / m:
        return prefill.desired + 1
    return prefill.desired


def wait(prefill: View) -> float:
    """Seconds that a request which arrives now takes to its first token: those before it, at the rate of late."""
    before = prefill.waiting + prefill.running
    left = prefill.arrival_rate - (before - prefill.memory.get("before", 0)) / prefill.interval_s
    prefill.memory["before"] = before
    return before / max(left, 1e-9)
