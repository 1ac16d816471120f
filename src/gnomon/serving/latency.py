"""Latencies of every request, and how many of them met their targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.serving.simulate import Run
from gnomon.serving.state import FINISHED, REJECTED, SHED
from gnomon.workload.slo import SloConfig


@dataclass(frozen=True)
class Slo:
    """How many of the requests that arrived met the scenario's latency targets."""

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    attainment: float
    """Share of the requests that met every target; rejected, shed and unfinished ones did not."""
    ttft_attainment: float | None
    tpot_attainment: float | None
    e2e_attainment: float | None
    goodput_requests_per_s: float
    """Requests per second that met every target."""


@dataclass(frozen=True)
class RequestTimes:
    """Latencies of every request, NaN where there is none."""

    scheduling_delay_s: Floats
    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    normalized_s: Floats


def request_times(run: Run) -> RequestTimes:
    """Latencies from the requests' stamps; TTFT of unfinished requests counts, the rest needs their end."""
    q = run.cluster.requests
    done = q.status == FINISHED
    served = (q.status != REJECTED) & (q.status != SHED)

    def since_arrival(stamp_s: Floats, known: Any) -> Floats:
        return np.subtract(stamp_s, q.arrival_s, out=np.full(q.size, np.nan), where=known)

    e2e = since_arrival(q.finished_s, done)
    after_first = np.where(done & (q.output_tokens > 1), q.finished_s - q.first_token_s, np.nan)
    return RequestTimes(
        scheduling_delay_s=since_arrival(q.scheduled_s, served & (q.scheduled_s >= 0)),
        ttft_s=since_arrival(q.first_token_s, served & (q.first_token_s >= 0)),
        tpot_s=after_first / np.maximum(q.output_tokens - 1, 1),
        e2e_s=e2e,
        normalized_s=e2e / q.output_tokens,
    )


def slo_met(slo: SloConfig, times: RequestTimes, done: Any, arrived: int, duration_s: float) -> Slo | None:
    """None where no target is set. One output token has no TPOT, hence meets it."""
    limits = {"ttft": slo.ttft_s, "tpot": slo.tpot_s, "e2e": slo.e2e_s}
    if all(limit is None for limit in limits.values()):
        return None
    seconds = {"ttft": times.ttft_s, "tpot": np.nan_to_num(times.tpot_s, nan=0.0), "e2e": times.e2e_s}
    met = {name: done & (seconds[name] <= limit) for name, limit in limits.items() if limit is not None}
    good = np.logical_and.reduce(list(met.values()))
    shares = {name: float(m.sum()) / max(arrived, 1) for name, m in met.items()}
    return Slo(
        **{f"{name}_s": limit for name, limit in limits.items()},
        attainment=float(good.sum()) / max(arrived, 1),
        ttft_attainment=shares.get("ttft"),
        tpot_attainment=shares.get("tpot"),
        e2e_attainment=shares.get("e2e"),
        goodput_requests_per_s=float(good.sum()) / max(duration_s, 1e-12),
    )
