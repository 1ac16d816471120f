"""The capacity of one configuration: the highest load that meets the SLO without a growing queue.

One fixed sequence of requests is sent faster or slower (common random numbers), so that one more request per second
changes nothing but the arrival times. Short runs find the neighbourhood, runs of twice the length refine it, until
doubling the length no longer changes the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gnomon.core.errors import ConfigError
from gnomon.search.config import EffortConfig, SloTargets
from gnomon.search.slo import Verdict, judge
from gnomon.serving.scenario import Scenario
from gnomon.serving.simulate import run
from gnomon.workload import Requests, with_rate

COARSE = 1.1
"""Width of the bracket that short runs find."""
LOWEST = 1e-3
"""Share of the bound below which a configuration counts as unable to meet the SLO at any load."""
HOPELESS = 1.5
"""A limit exceeded this much by the first quarter of the requests will not be met by all of them."""
TURNOVERS = 50
"""A run is long against what it simulates when arrivals last this many times the median request. Shorter ones flatter:
the first requests find an empty machine (measured: 3 % too high at 25, within 2 % from 50 on)."""
MIN_QUARTER = 1000
"""Requests that a quarter must have to say something."""


@dataclass(frozen=True)
class Capacity:
    """What a configuration can take."""

    per_s: float
    """Requests per second; 0 if the SLO is not met at any load."""
    num_requests: int
    """Length of the longest runs."""
    converged: bool
    """Whether twice the requests no longer changed it."""
    verdict: Verdict
    """The run at that load (at the lowest load tried, if the capacity is 0)."""
    binding: str
    """What is not met at a load just above."""


@dataclass
class Prober:
    """Simulates one scenario at chosen loads, and counts what that takes."""

    scenario: Scenario
    requests: Requests
    """As many as the longest run may need."""
    targets: SloTargets
    runs: int = 0
    simulated: int = 0
    _known: dict[tuple[float, int], Verdict] = field(default_factory=dict)

    def __call__(self, rate: float, count: int) -> Verdict:
        """The verdict on the first `count` requests at `rate`; given up after a quarter of them where hopeless."""
        key = (rate, count)
        if key not in self._known:
            self._known[key] = self._attempt(rate, count)
        return self._known[key]

    def _attempt(self, rate: float, count: int) -> Verdict:
        if count // 4 >= MIN_QUARTER:
            early = self._simulate(rate, count // 4)
            if early.excess > HOPELESS:
                return early
        return self._simulate(rate, count)

    def _simulate(self, rate: float, count: int) -> Verdict:
        self.runs += 1
        self.simulated += count
        chosen = self.requests if count == len(self.requests) else self.requests.take(np.arange(count))
        return judge(run(self.scenario, requests=with_rate(chosen, rate)), self.targets)


def find_capacity(prober: Prober, bound: float, effort: EffortConfig, num_ranks: int) -> Capacity:
    """Bracket and bisect, from short runs to long ones. `bound` is a load that cannot be sustained."""
    count = min(effort.min_requests * num_ranks, len(prober.requests))
    longest = min(effort.max_requests * num_ranks, len(prober.requests))
    bracket = _first_bracket(lambda rate: prober(rate, count).met, bound)
    if bracket is None:
        lowest = prober(bound * LOWEST, count)
        return Capacity(0.0, count, True, lowest, lowest.worst)
    low, high = _bisected(lambda rate: prober(rate, count).met, *bracket, COARSE)
    before = None
    while count < longest:
        count = min(2 * count, longest)
        halfway = _turnovers(prober, low, count) >= TURNOVERS / 2
        low, high = refine(prober, low, count, effort.precision if halfway else COARSE / 2 - 0.5)
        if low == 0.0:
            lowest = prober(high, count)
            return Capacity(0.0, count, True, lowest, lowest.worst)
        settled = before is not None and abs(low - before) <= effort.convergence * low
        if settled and _turnovers(prober, low, count) >= TURNOVERS:
            return Capacity(low, count, True, prober(low, count), prober(high, count).worst)
        before = low if halfway else None
    low, high = refine(prober, low, count, effort.precision)
    return Capacity(low, count, False, prober(low, count), prober(high, count).worst)


def _turnovers(prober: Prober, rate: float, count: int) -> float:
    """How many median requests, one after the other, arrivals last."""
    median_s = prober(rate, count).figures["e2e_s p50"]
    return count / rate / median_s if median_s else 0.0


def refine(prober: Prober, guess: float, count: int, precision: float) -> tuple[float, float]:
    """The capacity near `guess` as (highest load met, lowest load not met); (0, load) where none is met."""

    def met(rate: float) -> bool:
        return prober(rate, count).met

    step = 1.0 + 2.0 * precision
    low = high = guess
    if met(guess):
        while met(high := low * step):
            low, step = high, step * step
    else:
        while not met(low := high / step):
            high, step = low, step * step
            if high < guess * LOWEST:
                return 0.0, high
    return _bisected(met, low, high, 1.0 + precision)


def _first_bracket(met: Callable[[float], bool], bound: float) -> tuple[float, float] | None:
    """A load that is met and one that is not; None where not even the lowest is met."""
    high = bound
    while high > bound * LOWEST:
        low = high / 2.0
        if met(low):
            return low, high
        high = low
    return None


def _bisected(met: Callable[[float], bool], low: float, high: float, width: float) -> tuple[float, float]:
    """Narrow (met, not met) until high <= low x width."""
    while high > low * width:
        middle = float(np.sqrt(low * high))
        if met(middle):
            low = middle
        else:
            high = middle
    return low, high


def check_rated(requests: Requests) -> None:
    """Only arrivals with a rate can be sent faster."""
    if requests.shape is None:
        raise ConfigError(
            "a capacity search changes the arrival rate, and these arrivals have none.",
            where="workload.arrivals",
            fix="Use poisson, gamma, fixed_interval, piecewise or diurnal, or a trace with arrival times.",
        )
