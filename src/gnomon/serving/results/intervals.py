"""Prediction intervals: a few runs in which everything that is not known for sure is moved at once.

Each perturbed run draws a factor on the GPU's times (the source's error, or what a calibration leaves), a calibration's
constants within their covariance, a factor on the host's (its drift from one recording to the next), when the host is
slow, and another sequence of requests. The spread of a figure over these runs, on a
logarithmic scale, gives its 90 % interval around the run itself; near capacity, where figures leap from run to run, the
least and the largest of them do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.streams import stream
from gnomon.serving.results.metrics import Headline, headline
from gnomon.serving.run.simulate import Run, run
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.calibration import Calibration, read_calibration
from gnomon.serving.scenario.engine_presets import filled_in, nested
from gnomon.timing.host import HostConfig
from gnomon.timing.iteration import IterationTables, scaled
from gnomon.workload import generate

NUM_RUNS = 8
MOST_REQUESTS = 20_000
"""Runs with more requests get intervals only where they are asked for: they would take as long again eight times."""
T_95 = {4: 2.35, 8: 1.89, 16: 1.75, 32: 1.70}  # Student's t at 95 % by the number of runs.
STATISTICS = ("mean", "p50", "p90", "p99")
LATENCIES = ("ttft_s", "tbt_s", "tpot_s", "e2e_s")
LEAP = math.log(10.0)
"""A spread by more than this factor is no spread around the run itself: some runs were beyond their capacity."""
SHARES = ("slo.attainment",)  # Between 0 and 1: their spread adds up rather than multiplies.


@dataclass(frozen=True)
class Interval:
    """A figure of a run, and where that of a real server lies with 90 % probability."""

    value: float
    low: float
    high: float


Turn = Callable[[], AbstractContextManager[None]]
Intervals = dict[str, Interval]
"""By the figure's place in the summary: latency.ttft_s.p99, throughput.requests_per_s, ..."""


def figures_of(summary: Headline) -> dict[str, float]:
    """The figures that one looks at first."""
    spreads = {name: getattr(summary.latency, name) for name in LATENCIES}
    found = {f"latency.{name}.{one}": getattr(spreads[name], one) for name in LATENCIES for one in STATISTICS}
    found["throughput.requests_per_s"] = summary.throughput.requests_per_s
    found["throughput.output_tokens_per_s"] = summary.throughput.output_tokens_per_s
    found["cost.per_million_output_tokens"] = summary.cost.per_million_output_tokens
    if summary.slo is not None:
        found["slo.attainment"] = summary.slo.attainment
        found["slo.goodput_requests_per_s"] = summary.slo.goodput_requests_per_s
    return {name: float(value) for name, value in found.items() if value is not None}


def intervals(
    done: Run, summary: Headline, *, redraw: bool = True, count: int = NUM_RUNS, turn: Turn = nullcontext
) -> Intervals:
    """90 % intervals of a run's first figures; `redraw`: the requests are one sequence of many that might come. Each
    run is made within a `turn`."""
    perturbed_runs = perturbed(done, redraw=redraw, count=count)
    runs = []
    for _ in range(count):
        with turn():
            runs.append(figures_of(headline(next(perturbed_runs))))
    quantile = T_95.get(count, 1.89)
    beside = _first_token_errors(done, summary)
    found = {}
    for name, value in figures_of(summary).items():
        others = np.array([one[name] for one in runs if name in one])
        if name in SHARES:
            half = quantile * float(np.sqrt(np.mean((others - value) ** 2)))
            found[name] = Interval(value, max(0.0, value - half), min(1.0, value + half))
        elif value > 0 and len(others) == len(runs) and (others > 0).all():
            found[name] = _around(value, others, quantile, beside.get(name, 0.0))
    return found


def _around(value: float, others: Floats, quantile: float, beside: float) -> Interval:
    """The interval of a figure that came out as `others` in the perturbed runs, with an error of its own `beside`."""
    half = quantile * math.hypot(float(np.sqrt(np.mean(np.log(others / value) ** 2))), beside)
    if half <= LEAP:
        return Interval(value, value * math.exp(-half), value * math.exp(half))
    own = math.exp(quantile * beside)
    return Interval(value, min(value, float(others.min())) / own, max(value, float(others.max())) * own)


def _first_token_errors(done: Run, summary: Headline) -> dict[str, float]:
    """What latencies are off by beside iterations: all of it in a time to the first token, its share in an end to end.
    A calibration has seen them."""
    ttft, e2e = summary.latency.ttft_s.mean, summary.latency.e2e_s.mean
    if done.scenario.calibration is not None or not ttft or not e2e:
        return {}
    error = done.first_token_spread
    parts = {"ttft_s": error, "e2e_s": error * min(1.0, ttft / e2e)}
    return {f"latency.{name}.{statistic}": part for name, part in parts.items() for statistic in STATISTICS}


def iteration_spread(done: Run) -> float:
    """Standard deviation to expect of a server's iterations: what its calibration leaves, else the timing source's."""
    path = done.scenario.calibration
    return read_calibration(path).error if path else done.spread


def perturbed(done: Run, *, redraw: bool = True, count: int = NUM_RUNS) -> Iterator[Run]:
    """A run's scenario `count` times, each time with everything uncertain moved."""
    scenario = done.scenario
    known = read_calibration(scenario.calibration) if scenario.calibration else None
    for number, moved in enumerate(draws(scenario, known, iteration_spread(done), count)):
        seed = scenario.seed + 1 + number
        requests = generate(scenario.workload, seed) if redraw else done.requests
        yield run(moved.chosen(seed), requests=requests, adjust=moved)


def draws(scenario: Scenario, known: Calibration | None, spread: float, count: int = NUM_RUNS) -> Iterator[Moved]:
    """Servers that the scenario may as well mean, given a calibration of it, or the error of its timing source."""
    rng = stream(scenario.seed, "intervals")
    hosts = _normals(count)[np.argsort(stream(scenario.seed, "host drift").random(count))]
    for gpu, slow in zip(rng.permutation(_normals(count)), hosts, strict=True):
        constants = known.drawn(rng.standard_normal(32)) if known else {}
        host = float(np.exp(known.drift * slow)) if known else 1.0
        yield Moved(scenario, known, constants, float(np.exp(spread * gpu)), host)


@dataclass(frozen=True)
class Moved:
    """Moves the seconds of iterations: the GPU's by a factor, the host's by a factor and as the constants are drawn."""

    scenario: Scenario
    known: Calibration | None
    constants: dict[str, float]
    gpu: float
    host: float = 1.0

    def chosen(self, seed: int) -> Scenario:
        """The scenario to run: with the front end drawn, and the host slow at the times of a seed."""
        drawn = {name.partition(".")[2]: one for name, one in self.constants.items() if name.startswith("front_end.")}
        front_end = {"front_end": self.scenario.front_end.model_copy(update=drawn)} if drawn else {}
        return self.scenario.model_copy(update={**front_end, "seed": seed})

    def __call__(self, tables: IterationTables) -> IterationTables:
        """The tables of the server drawn."""
        moved = scaled(tables, self.gpu)
        drawn = {name: value for name, value in self.constants.items() if name.startswith("timing.host.")}
        host_s = tables.host_s.copy()
        if self.known is not None and drawn:
            nominal = {name: self.known.constants[name].value for name in drawn}
            host_s = np.maximum(0.0, host_s + _host_s(self.scenario, drawn) - _host_s(self.scenario, nominal))
        host_s[:, :, :7] *= self.host * (1.0 if self.known is None else self.gpu)  # Its error is of whole iterations.
        return moved._replace(host_s=host_s)


def _host_s(scenario: Scenario, constants: dict[str, float]) -> Floats:
    """Of every stage of every pool, one below the other."""
    from gnomon import catalog

    own = (scenario.timing.host or HostConfig()).model_dump(exclude_unset=True)
    host = HostConfig.model_validate(filled_in(nested(constants)["timing"]["host"], own))
    model, rows = catalog.model(scenario.model), []
    for pool in scenario.all_pools():
        cut = pool.replica.parallelism
        layers = [len(cut.layers_of_stage(model, stage)) for stage in range(cut.pipeline_parallel)]
        rows.append(host.of_stages(layers, [0] * len(layers)))
    return np.concatenate(rows)


def _normals(count: int) -> Floats:
    """Standard normal numbers spread as evenly as can be, of standard deviation one."""
    at = np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])
    return at / np.sqrt(np.mean(at**2))
