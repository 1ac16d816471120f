"""Latency at a dozen loads up to beyond the capacity, and the capacity itself."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np

from gnomon.search.capacity import Prober, Turn, coarse_bracket, rate_bound, refine
from gnomon.search.config import SloTargets
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.results.latency import request_times
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.workload import Requests, generate, with_rate
from gnomon.workload.slo import SloConfig

LATENCIES = ("ttft", "tpot", "e2e")
SHARES = (0.05, 0.2, 0.35, 0.5, 0.65, 0.75, 0.83, 0.9, 0.95, 1.0, 1.05, 1.15)
"""Loads as shares of what the replicas take up without a growing queue."""
STATISTICS = {"p50": 50.0, "p99": 99.0}
PRECISION = 0.02  # Relative width to which a capacity is bracketed.
SLO_STATISTIC = "p99"  # A limit counts as met where this share of the requests meets it.


@dataclass(frozen=True)
class LoadCurve:
    """Latencies at several loads."""

    loads: tuple[float, ...]
    seconds: dict[str, dict[str, list[float | None]]]
    """By latency and statistic, one per load; None where nothing finished."""
    num_requests: int
    """Requests of each run."""


def load_curve(scenario: Scenario, requests: Requests, saturation: float, turn: Turn = nullcontext) -> LoadCurve:
    """The curve of a deployment up to beyond its `saturation`, whatever its load and its SLO."""
    loads = tuple(float(f"{share * saturation:.3g}") for share in SHARES) if saturation else ()
    rows = [_latencies(scenario, with_rate(requests, load), turn) for load in loads]
    seconds = {
        name: {statistic: [row[name, statistic] for row in rows] for statistic in STATISTICS} for name in LATENCIES
    }
    return LoadCurve(loads, seconds, len(requests))


def targets_of(slo: SloConfig) -> SloTargets:
    """The limits of a scenario, for 99 % of the requests."""
    limits = {f"{name}_s": getattr(slo, f"{name}_s") for name in LATENCIES}
    return SloTargets(**{name: {SLO_STATISTIC: limit} for name, limit in limits.items() if limit is not None})


def capacity(scenario: Scenario, requests: Requests, turn: Turn = nullcontext) -> float:
    """The highest load at which 99 % of the requests meet each limit and they do not pile up; 0 for none."""
    return highest_load(Prober(scenario, requests, targets_of(scenario.slo), turn))


def highest_load(prober: Prober) -> float:
    """The highest load that meets the targets, on all requests of a prober; 0 for none."""
    most, _ = prober.saturation
    is_bounded, count = bool(np.isfinite(most)), len(prober.requests)
    if is_bounded and prober(most, count).met:
        return most
    low, _ = coarse_bracket(prober, most if is_bounded else rate_bound(prober.scenario, prober.requests), count)
    return refine(prober, low, count, PRECISION)[0] if low else 0.0


def _latencies(scenario: Scenario, requests: Requests, turn: Turn) -> dict[tuple[str, str], float | None]:
    with turn():
        found = run(scenario, requests=requests)
    times, done = request_times(found), found.cluster.requests.status == FINISHED
    row: dict[tuple[str, str], float | None] = {}
    for name in LATENCIES:
        values = getattr(times, f"{name}_s")[done]
        values = values[~np.isnan(values)]
        for statistic, level in STATISTICS.items():
            row[name, statistic] = float(np.percentile(values, level)) if values.size else None
    return row


REQUESTS_PER_RANK = 5000
MAX_REQUESTS = 20_000  # Requests of one run: enough for a P99, few enough to answer in about a second.
SURE_PER_RANK = 1000  # With fewer a P99 says little. Where requests are drawn, twice as many are.
PATIENCE_S = 20.0


@dataclass(frozen=True)
class Headroom:
    """A load beside the capacity."""

    load_per_s: float
    capacity_per_s: float
    """The highest load within the limits of the SLO (99 % of the requests) at which requests do not pile up; 0 for
    none, not a number where `why_unknown` says why."""
    has_limits: bool
    curve: LoadCurve
    """Latencies up to beyond the load at which requests pile up."""
    is_rough: bool = False
    """Found with so few requests that the capacity may be far off."""
    why_unknown: str = ""
    """Why there is no capacity to name; empty where there is."""
    saturation_per_s: float | None = None
    """Beyond it requests pile up, whatever the limits; None where the rest is turned away."""

    @property
    def share(self) -> float | None:
        """How much of the capacity is left; negative above it; None where no load meets the SLO, or none is known."""
        return 1.0 - self.load_per_s / self.capacity_per_s if self.capacity_per_s and not self.why_unknown else None

    def to_dict(self) -> dict[str, float | str | None]:
        if self.why_unknown:
            return {"capacity_per_s": None, "why_unknown": self.why_unknown}
        return {"load_per_s": self.load_per_s, "capacity_per_s": self.capacity_per_s, "headroom": self.share}


def headroom(scenario: Scenario, requests: Requests) -> Headroom:
    """The capacity of a deployment beside its load, or why there is none to name."""
    if scenario.fleet is not None:
        return _unknown("of a fleet whose replicas change there is none: see its hours")
    if len(requests.parents):
        return _unknown("calls that wait for each other have no one capacity")
    if requests.shape is None:
        return _unknown("these arrivals have no rate to raise: gnomon capacity finds the users at once")
    ranks = scenario.num_ranks
    count = min(len(requests), REQUESTS_PER_RANK * ranks, MAX_REQUESTS)
    load = scenario.workload.rate or len(requests) / max(float(requests.arrival_s[-1] - requests.arrival_s[0]), 1e-9)
    is_drawn = scenario.workload.trace is None and len(requests) == scenario.workload.num_requests
    if is_drawn and count < SURE_PER_RANK * ranks:
        more = min(2 * SURE_PER_RANK * ranks, MAX_REQUESTS)
        requests = generate(scenario.workload.model_copy(update={"num_requests": more}), scenario.seed)
        count = len(requests)  # Those that are too long are left out.
    some = requests if count == len(requests) else requests.take(np.arange(count))
    end = time.monotonic() + PATIENCE_S

    @contextmanager
    def turn() -> Iterator[None]:
        if time.monotonic() > end:
            raise _TooLong
        yield

    targets = targets_of(scenario.slo)
    prober = Prober(scenario, some, targets, turn)
    try:
        full, is_sure = prober.saturation
        most = highest_load(prober)
        curve = load_curve(scenario, some, full if np.isfinite(full) else most, turn)
    except _TooLong:
        return _unknown(f"not found within {PATIENCE_S:.0f} seconds: gnomon capacity looks longer")
    is_rough = not is_sure or count < SURE_PER_RANK * min(ranks, MAX_REQUESTS // SURE_PER_RANK)
    known = float(full) if np.isfinite(full) else None
    return Headroom(load, most, targets != SloTargets(), curve, is_rough, saturation_per_s=known)


def _unknown(why: str) -> Headroom:
    return Headroom(np.nan, np.nan, False, LoadCurve((), {}, 0), why_unknown=why)


class _TooLong(Exception):
    """Nobody waits longer."""
