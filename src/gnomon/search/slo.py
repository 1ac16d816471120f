"""Whether a run meets the SLO, and by how much it misses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats, Ints
from gnomon.search.config import LATENCIES, GoodputConfig, Objective, SloTargets
from gnomon.serving.engine.state import FINISHED, SHED
from gnomon.serving.results.latency import RequestTimes, request_times
from gnomon.serving.run.simulate import Run
from gnomon.serving.scenario import Scenario


@dataclass(frozen=True)
class Price:
    """What a configuration takes."""

    num_gpus: int
    per_hour: float
    """US dollars."""


def price(scenario: Scenario) -> Price:
    """GPUs and dollars per hour, from the catalog's prices unless the scenario gives one."""
    gpus, dollars = 0, 0.0
    for pool in scenario.all_pools():
        given = scenario.price_per_gpu_hour
        gpus += pool.num_gpus
        dollars += pool.num_gpus * (given if given is not None else pool.device.price_per_hour)
    return Price(gpus, dollars)


def score(objective: Objective, rate: float, good_share: float, price: Price) -> float:
    """The worth of serving `rate` requests per second, `good_share` of them in time, at this price."""
    if objective == "goodput_per_gpu":
        return rate * good_share / price.num_gpus
    if objective == "cost":
        return -price.per_hour
    return rate / max(price.per_hour, 1e-9)


def rate_for(objective: Objective, worth: float, price: Price) -> float:
    """The load at which a configuration of this price would be worth as much (or more, were all requests good)."""
    assert objective != "cost", "the load is given"
    return worth * (price.num_gpus if objective == "goodput_per_gpu" else max(price.per_hour, 1e-9))


def shown(objective: Objective, worth: float) -> float:
    return -worth if objective == "cost" else worth


Bools = NDArray[np.bool_]

GROWING = "growing queue"
UNSERVED = "no request is served"
TURNED_AWAY = "requests turned away"  # By admission control, so that the queue does not grow.
MIN_TURNED_AWAY = 0.02  # Share of the requests.

_SHOWN = (("ttft_s", "p50"), ("ttft_s", "p90"), ("ttft_s", "p99"), ("tbt_s", "p50"), ("tbt_s", "p99"), ("e2e_s", "p50"))
"""Latencies that are reported whatever the SLO says."""

WORDS = {"ttft_s": "TTFT", "tbt_s": "TBT", "tpot_s": "TPOT", "e2e_s": "E2E", "scheduling_delay_s": "scheduling delay"}


def latency_name(figure: str) -> str:
    """`ttft_s p90` as people write it; what is no latency as it is."""
    metric, _, statistic = figure.partition(" ")
    shown = statistic.upper() if statistic.startswith("p") else statistic
    return f"{WORDS[metric]} {shown}" if metric in WORDS else figure


@dataclass(frozen=True)
class Verdict:
    """A run held against the SLO."""

    excess: float
    """The worst figure over its limit: at most 1 if all are met; infinite if the queue grows."""
    worst: str
    """Which figure that is."""
    figures: dict[str, float | None]
    """Latencies by name, e.g. `ttft_s p90`; None where there is none."""
    good_share: float
    """Share of the requests that met the goodput limits; 1 where there are none."""
    unserved: float
    """Share of the requests that were refused or not finished."""
    turned_away: float = 0.0
    """Share of the requests that admission control refused: fewer of them at a lower load."""
    given_up: bool = False
    """Whether the run did not go to its end: then excess and figures are the least that they can be."""

    @property
    def miss(self) -> str:
        if np.isfinite(self.excess):
            return f"{latency_name(self.worst)} is {self.excess:.3g} times its limit"
        return f"{self.unserved:.1%} of the requests are refused" if self.unserved else self.worst

    @property
    def met(self) -> bool:
        """Whether every limit is met and the queue does not grow."""
        return self.excess <= 1.0


def judge(run: Run, targets: SloTargets) -> Verdict:
    """Hold a run against the targets. A request that was refused or not finished waited for ever."""
    times = request_times(run)
    limits = {(metric, stat): limit for metric in LATENCIES for stat, limit in getattr(targets, metric).items()}
    done = run.cluster.requests.status == FINISHED
    gaps = Gaps(run.log.gap_s[: run.log.used[2]], run.log.gap_count[: run.log.used[2]])
    figures = {pair: _figure(run, times, gaps, done, *pair) for pair in (*limits, *_SHOWN)}
    excesses = {f"{metric} {stat}": figures[metric, stat] / limit for (metric, stat), limit in limits.items()}
    good_share = 1.0
    if targets.goodput is not None:
        good_share = _good_share(targets.goodput, times, done)
        excesses["goodput"] = targets.goodput.share / max(good_share, 1e-9)
    if not done.any():
        excesses[UNSERVED] = np.inf
    turned_away = float((run.cluster.requests.status == SHED).mean())
    if turned_away > MIN_TURNED_AWAY and targets.goodput is None:  # That says itself how many may be lost.
        excesses[TURNED_AWAY] = np.inf
    worst = max(excesses, key=lambda name: excesses[name], default="")
    named = {f"{metric} {stat}": value for (metric, stat), value in figures.items()}
    finite = {name: float(value) if np.isfinite(value) else None for name, value in named.items()}
    return Verdict(float(excesses.get(worst, 0.0)), worst, finite, good_share, float(1.0 - done.mean()), turned_away)


def least_excess(requests: Any, targets: SloTargets, beyond: float = 0.0) -> Verdict:
    """The verdict, as far as it is certain, on one replica's run that has not ended: nobody who still waits will have
    waited less long, and those to come may not wait at all. Of figures that are not `beyond` so many times their limit
    nothing is said."""
    arrival_s = np.ascontiguousarray(requests.arrival_s)
    waited_s = np.maximum(requests.last_token_s.max() - arrival_s, 0.0)
    ends = {"ttft_s": requests.first_token_s, "e2e_s": requests.finished_s}
    least = {name: np.where(end_s >= 0.0, end_s - arrival_s, waited_s) for name, end_s in ends.items()}
    excesses = {
        f"{metric} {statistic}": _statistic(seconds, statistic) / limit
        for metric, seconds in least.items()
        for statistic, limit in getattr(targets, metric).items()
        if may_exceed(seconds, statistic, beyond * limit)
    }
    worst = max(excesses, key=lambda name: excesses[name], default="")
    figures: dict[str, float | None] = {"e2e_s p50": _statistic(least["e2e_s"], "p50") if excesses else None}
    return Verdict(excesses.get(worst, 0.0), worst, figures, 1.0, 0.0, given_up=True)


def may_exceed(values: Floats, statistic: str, limit: float) -> bool:
    """Whether a percentile may be above `limit`: by counting, which is quicker than finding it."""
    if not statistic.startswith("p"):
        return True
    above = np.count_nonzero(values > limit)
    return bool(above >= (1.0 - float(statistic[1:]) / 100) * (values.size - 1))


def _figure(run: Run, times: RequestTimes, gaps: Gaps, done: Bools, metric: str, statistic: str) -> float:
    if metric == "tbt_s":
        return gaps.statistic(statistic)
    seconds = getattr(times, metric)
    known = np.where(done, seconds, np.inf)
    if metric == "tpot_s":
        known = known[~done | (run.cluster.requests.output_tokens > 1)]
    return _statistic(known, statistic) if known.size else 0.0


def _statistic(values: Floats, statistic: str) -> float:
    if statistic == "mean":
        return float(values.mean())
    if statistic == "max":
        return float(values.max())
    if np.isinf(values).any():  # Between a number and infinity, interpolation gives NaN.
        return float(np.percentile(values, float(statistic[1:]), method="higher"))
    return float(np.percentile(values, float(statistic[1:])))


class Gaps:
    """Gaps between tokens, where `seconds[i]` stands for `counts[i]` equal ones; sorted once for all statistics."""

    def __init__(self, seconds: Floats, counts: Ints) -> None:
        order = np.argsort(seconds)
        self.seconds, self.counts = seconds[order], counts[order]
        self.accumulated = np.cumsum(self.counts)

    def statistic(self, name: str) -> float:
        """Mean, max or a percentile: the smallest gap that reaches the share, as in a run's summary."""
        if not self.seconds.size:
            return 0.0
        if name == "mean":
            return float(np.dot(self.seconds, self.counts) / self.accumulated[-1])
        if name == "max":
            return float(self.seconds[-1])
        rank = np.ceil(float(name[1:]) / 100 * self.accumulated[-1])
        return float(self.seconds[np.searchsorted(self.accumulated, rank)])


def _good_share(goodput: GoodputConfig, times: RequestTimes, done: Bools) -> float:
    """One output token has no TPOT, hence meets it."""
    good = done.copy()
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        limit = getattr(goodput, name)
        if limit is not None:
            good &= np.nan_to_num(getattr(times, name), nan=0.0) <= limit
    return float(good.mean())
