"""Several scenarios on the same requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from gnomon import catalog
from gnomon.api.result import Drawing, Progress, Result
from gnomon.api.serving import ScenarioLike, Simulation, scenario
from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError
from gnomon.report.routing.files import differences_figure, distributions_figure
from gnomon.report.serving.compare import warnings, write
from gnomon.serving.results.intervals import Intervals
from gnomon.serving.results.latency import request_times
from gnomon.serving.results.paired import Difference, paired_differences
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.workload import Requests, generate, limit_lengths

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """Several variants on the same requests; the first is the baseline."""

    view = "serving.compare"
    results: dict[str, Simulation]

    @property
    def baseline(self) -> str:
        """The name of the first variant."""
        return next(iter(self.results))

    @cached_property
    def summary(self) -> dict[str, Summary]:
        """Every variant's figures."""
        return {name: result.summary for name, result in self.results.items()}

    @cached_property
    def intervals(self) -> dict[str, Intervals]:
        """Every variant's 90 % intervals."""
        return {name: result.intervals for name, result in self.results.items()}

    @cached_property
    def differences(self) -> dict[str, list[Difference]]:
        """For every other variant, its paired differences to the baseline."""
        (_, first), *others = self.results.items()
        before, seed = request_times(first.run), first.scenario.seed
        return {name: paired_differences(before, request_times(one.run), seed) for name, one in others}

    def times(self, metric: str) -> dict[str, Floats]:
        """A latency (`ttft_s`, `tpot_s`, `e2e_s`) of every request, by variant."""
        return {name: getattr(request_times(result.run), metric) for name, result in self.results.items()}

    def against(self, metric: str, statistic: str) -> dict[str, Difference]:
        """One figure of every other variant against the baseline's."""
        rows = [(name, one) for name, found in self.differences.items() for one in found]
        return {name: one for name, one in rows if (one.metric, one.statistic) == (metric, statistic)}

    def change_drawn(self, title: str, metric: str, statistic: str, order: Sequence[str]) -> Drawing:
        """The change of one figure against the baseline, in an order of one's own."""
        return differences_figure(title, self.baseline, self.against(metric, statistic), order)

    def distributions_drawn(self, title: str, metric: str, order: Sequence[str]) -> Drawing:
        """A latency's distributions over each other on a logarithmic axis, in an order of one's own."""
        times = self.times(metric)
        return distributions_figure(title, {name: times[name] for name in order})

    @property
    def warnings(self) -> list[str]:
        """What the variants warn of; those who say the same with other numbers have one line together."""
        return warnings(self.summary)

    def save(self, folder: str | Path) -> Path:
        """Write one report of all, comparison.json, and every variant's run into a folder of its own."""
        return write(self, folder)


def compare(
    *given: ScenarioLike, vary: Mapping[str, Sequence[Any]] | None = None, intervals: bool | None = None,
    on_progress: Progress | None = None, **overrides: Any,
) -> Comparison:  # fmt: skip
    """Simulate several scenarios, or all combinations of `vary` on one, on the same requests.

        gnomon.compare("a.yaml", "b.yaml")
        gnomon.compare(vary={"batching.policy": ["vllm_v1", "sarathi"], "replica.tensor_parallel": [1, 2]})
        gnomon.compare(vary={"layout": [{"tp": 4}, {"num_replicas": 4}]})  # each a variant of its own

    The requests must be the same: what varies may be the arrival rate, but not the lengths or the number of requests.
    """
    variants = _variants(given or (None,), vary or {}, overrides)
    if len(variants) < 2:
        raise ConfigError("there is only one variant.", fix="Give two scenarios, or something to vary.")
    requests = _same_requests(variants)
    results = {
        name: Simulation(run(one, requests=requests[name], on_progress=on_progress), with_intervals=intervals)
        for name, one in variants.items()
    }
    return Comparison(results)


def _variants(
    given: Sequence[ScenarioLike], vary: Mapping[str, Sequence[Any]], overrides: Mapping[str, Any]
) -> dict[str, Scenario]:
    """Every scenario x every combination, named by what tells them apart."""
    found: dict[str, Scenario] = {}
    for number, one in enumerate(given):
        label = Path(one).stem if isinstance(one, str | Path) else f"scenario {number + 1}"
        for values in product(*vary.values()):
            changed: dict[str, Any] = {}
            for key, value in zip(vary, values, strict=True):
                changed |= value if isinstance(value, Mapping) else {key: value}
            parts = [label] * (len(given) > 1) + [f"{key.split('.')[-1]}={value}" for key, value in changed.items()]
            name = ", ".join(parts) or label
            if name in found:
                raise ConfigError(f"two variants are called {name!r}.", fix="Give the files different names.")
            found[name] = scenario(one, **{**overrides, **changed})
    return found


def _same_requests(variants: Mapping[str, Scenario]) -> dict[str, Requests]:
    """The requests of every variant, limited to what all of them accept; refused where their lengths differ."""
    limits = [
        pool.replica.max_request_tokens or catalog.model(one.model).max_context_tokens
        for one in variants.values()
        for pool in one.all_pools()
    ]
    made = {
        name: limit_lengths(generate(one.workload, one.seed), min(limits), one.workload.over_long)
        for name, one in variants.items()
    }
    first = next(iter(made.values()))
    for name, other in made.items():
        if not (
            np.array_equal(first.prompt_tokens, other.prompt_tokens)
            and np.array_equal(first.output_tokens, other.output_tokens)
        ):
            what = "its requests differ from those of the first variant, so that they cannot be compared one by one."
            fix = "Give all variants the same workload (the rate may differ) and seed."
            raise ConfigError(what, where=name, fix=fix)
    return made
