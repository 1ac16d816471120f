"""Fit the weights of the rule `unselfish` to a fleet and its load, in about a minute: an evolution strategy over their
logarithms, in which all candidates meet the same requests."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat

from gnomon.core.arrays import Floats
from gnomon.core.config import Config
from gnomon.core.parallel import Map, shared_workers
from gnomon.core.sizes import Requests, Seed, Seeds, Steps
from gnomon.core.streams import stream
from gnomon.routing.compare import find_scenario, one_row
from gnomon.routing.traffic import training_requests
from gnomon.serving.routers import KNOWN, ROUTERS
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import LengthsKnown, RouterConfig

RULE = "unselfish"
BASELINE = "least_outstanding"  # Whose P99 of TTFT the tuned rule should not exceed.
USUAL_REQUESTS = 4000
LEAST = 0.01  # Where a weight of 0 starts from: its logarithm must be finite.


class TuneConfig(Config):
    """How long to search, on what, and for what."""

    generations: Steps = 10
    """Rounds of the search."""
    population: Annotated[Steps, Field(ge=4)] = 12
    """Candidates in each."""
    spread: PositiveFloat = 0.8
    """Standard deviation of the logarithms of the weights, at first."""
    narrowing: Annotated[float, Field(gt=0, le=1)] = 0.85
    """The spread is multiplied by this after every generation."""
    num_seeds: Seeds = 5
    """Traces of each scenario on which all candidates are simulated."""
    num_requests: Requests | None = None
    """Requests per trace; if not given, as many as the scenario has (of a recorded trace without a number, 4,000). A
    trace must be long enough to hold what makes the tail, such as a spike."""
    tail_weight: NonNegativeFloat = 1.0
    """Cost of a P99 of TTFT above that of least_outstanding: with 1, a percent of it weighs as much as one of the mean
    E2E."""
    source: str | None = None
    """Where iteration times come from (`timing.source`), instead of what the scenarios say."""
    lengths: LengthsKnown = "none"
    """What the rule knows of output lengths."""
    held_out_seeds: Annotated[Seeds, Field(ge=2)] = 5
    """Traces of each scenario on which the result is compared with the other routers: none that it was tuned on."""
    seed: Seed = 0
    """Every random draw follows from it. Traces come from other streams than those of comparisons."""


@dataclass(frozen=True)
class Tuned:
    """Weights, and how they did on the traces that they were tuned on."""

    options: dict[str, float]
    cost: float
    """Mean E2E over that of the rule as it comes, plus what the tail costs."""
    history: tuple[float, ...]
    """The least cost so far, after every generation."""


@dataclass(frozen=True)
class _Trial:
    scenario: str
    source: str | None
    count: int | None
    seed: int
    router: RouterConfig


def tune(
    config: TuneConfig, scenarios: list[str], *, jobs: int | None = None, ray: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tuned:  # fmt: skip
    """The best weights found. The rule as it comes is a candidate too: the result is never worse on these traces."""
    usual = {name: one for name, one in ROUTERS[RULE].options.items() if name not in KNOWN}
    names, start = list(usual), np.log(np.maximum(list(usual.values()), LEAST))
    random = stream(config.seed, "tuning")
    with shared_workers(jobs=jobs, ray=ray) as workers:
        costs = _Costs(config, scenarios, names, workers)
        best, least, centre, history = start, costs([start])[0], start, []
        for generation in range(config.generations):
            spread = config.spread * config.narrowing**generation
            drawn = [centre, *(centre + spread * random.standard_normal((config.population - 1, start.size)))]
            found = costs(drawn)
            order = np.argsort(found)
            if found[order[0]] < least:
                best, least = drawn[order[0]], found[order[0]]
            centre = np.mean([drawn[i] for i in order[: max(2, config.population // 4)]], axis=0)
            history.append(float(least))
            if on_progress:
                on_progress(generation + 1, config.generations)
    if best is start:
        return Tuned(usual, float(least), tuple(history))
    return Tuned(_options(names, best), float(least), tuple(history))


def _options(names: list[str], logs: Floats) -> dict[str, float]:
    return {name: float(f"{np.exp(log):.4g}") for name, log in zip(names, logs, strict=True)}


class _Costs:
    """What candidates cost, relative to the rule as it comes and to the tail of the baseline."""

    def __init__(self, config: TuneConfig, scenarios: list[str], names: list[str], workers: Map) -> None:
        self.config, self.names, self.workers = config, names, workers
        seeds = stream(config.seed, "traces to tune on").integers(2**31, size=config.num_seeds)
        self.traces = [(scenario, int(seed)) for scenario in scenarios for seed in seeds]
        self.usual = self._measured([RouterConfig(name=RULE, lengths=config.lengths)])[0]
        self.tail = self._measured([RouterConfig(name=BASELINE)])[0]

    def __call__(self, candidates: list[Floats]) -> Floats:
        routers = [
            RouterConfig(name=RULE, options=_options(self.names, one), lengths=self.config.lengths)
            for one in candidates
        ]
        measured = self._measured(routers)
        mean = (measured[:, :, 0] / self.usual[:, 0]).mean(1)
        beyond = (measured[:, :, 1] / self.tail[:, 1]).reshape(len(routers), -1, self.config.num_seeds).mean(2) - 1
        return mean + self.config.tail_weight * np.maximum(0.0, beyond).mean(1)

    def _measured(self, routers: list[RouterConfig]) -> Any:
        """[router, trace, (mean E2E, P99 TTFT)]"""
        trials = [
            _Trial(scenario, self.config.source, self.config.num_requests, seed, one)
            for one in routers
            for scenario, seed in self.traces
        ]
        found = [outcome.unwrap() for outcome in self.workers(_measure, trials)]
        return np.array(found).reshape(len(routers), len(self.traces), 2)


def _measure(trial: _Trial) -> tuple[float, float]:
    scenario = _scenario(trial.scenario, trial.source)
    requests = _requests(trial.scenario, trial.source, trial.count, trial.seed)
    scenario = scenario.model_copy(update={"seed": trial.seed, "router": trial.router})
    row = one_row(trial.scenario, scenario, "tuned", requests)
    return row.e2e_mean_s, row.ttft_p99_s


@lru_cache(maxsize=64)
def _scenario(name: str, source: str | None) -> Scenario:
    return find_scenario(name, source)


@lru_cache(maxsize=64)
def _requests(name: str, source: str | None, count: int | None, seed: int) -> Any:
    workload = _scenario(name, source).workload
    return training_requests(workload, count or workload.num_requests or USUAL_REQUESTS, seed)


def as_scenario(name: str, tuned: Tuned, config: TuneConfig) -> Scenario:
    router = RouterConfig(name=RULE, options=tuned.options, lengths=config.lengths)
    return find_scenario(name, config.source).model_copy(update={"router": router})
