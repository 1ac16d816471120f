"""Latencies of every request, and how many of them met their targets."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.serving.engine.state import ABANDONED, FINISHED, REJECTED, SHED
from gnomon.serving.run.simulate import Run
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


@dataclass(frozen=True, eq=False)
class RequestTimes:
    """Latencies of every request, NaN where there is none: computed from the requests' stamps whenever they are asked
    for, because of many requests each is large. TTFT of unfinished requests counts, the rest needs their end."""

    records: Any

    @cached_property
    def status(self) -> Any:
        """What became of every request, side by side."""
        return np.ascontiguousarray(self.records.status)

    def _since_arrival(self, stamp: str, known: Any) -> Floats:
        q = self.records
        return np.subtract(q[stamp], q.arrival_s, out=np.full(q.size, np.nan), where=known)

    def _reached(self, stamp: str) -> Any:
        return ~np.isin(self.status, (REJECTED, SHED, ABANDONED)) & (self.records[stamp] >= 0)

    @property
    def scheduling_delay_s(self) -> Floats:
        return self._since_arrival("scheduled_s", self._reached("scheduled_s"))

    @property
    def ttft_s(self) -> Floats:
        return self._since_arrival("first_token_s", self._reached("first_token_s"))

    @property
    def tpot_s(self) -> Floats:
        """Time per output token after the first."""
        q = self.records
        known = (self.status == FINISHED) & (q.output_tokens > 1)
        after_first = np.subtract(q.finished_s, q.first_token_s, out=np.full(q.size, np.nan), where=known)
        after_first /= np.maximum(q.output_tokens - 1, 1)
        return after_first

    @property
    def e2e_s(self) -> Floats:
        return self._since_arrival("finished_s", self.status == FINISHED)

    @property
    def normalized_s(self) -> Floats:
        """From the arrival to the end, per output token."""
        seconds = self.e2e_s
        seconds /= self.records.output_tokens
        return seconds


def request_times(run: Run) -> RequestTimes:
    return RequestTimes(run.cluster.requests)


def slo_met(slo: SloConfig, times: RequestTimes, done: Any, arrived: int, duration_s: float) -> Slo | None:
    """None where no target is set. One output token has no TPOT, hence meets it."""
    limits = {"ttft": slo.ttft_s, "tpot": slo.tpot_s, "e2e": slo.e2e_s}
    if all(limit is None for limit in limits.values()):
        return None
    met = {}
    for name, limit in limits.items():
        if limit is not None:
            seconds = getattr(times, f"{name}_s")
            met[name] = done & ((seconds <= limit) | np.isnan(seconds) if name == "tpot" else seconds <= limit)
    good = np.logical_and.reduce(list(met.values()))
    shares = {name: float(m.sum()) / max(arrived, 1) for name, m in met.items()}
    return Slo(
        **{f"{name}_s": limit for name, limit in limits.items()}, attainment=float(good.sum()) / max(arrived, 1),
        ttft_attainment=shares.get("ttft"), tpot_attainment=shares.get("tpot"), e2e_attainment=shares.get("e2e"),
        goodput_requests_per_s=float(good.sum()) / max(duration_s, 1e-12),
    )  # fmt: skip
