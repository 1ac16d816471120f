"""Serving: one scenario, or several on the same requests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.api.result import Drawing, Progress, Result, read
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.core.files import folder_written_whole, write_text
from gnomon.serving.scenario import Scenario
from gnomon.workload.config import DEFAULT_RATE
from gnomon.workload.slo import SloConfig

if TYPE_CHECKING:
    import polars as pl

    from gnomon.core.arrays import Floats
    from gnomon.report.blocks import Block
    from gnomon.search.headroom import Headroom
    from gnomon.serving.check import Finding
    from gnomon.serving.intervals import Intervals as Intervals
    from gnomon.serving.metrics import Summary as Summary
    from gnomon.serving.paired import Difference
    from gnomon.serving.parts import Metric
    from gnomon.serving.simulate import Run
    from gnomon.workload import Requests

__all__ = [
    "DEFAULT_RATE",
    "Comparison",
    "Scenario",
    "Simulation",
    "check_policy",
    "compare",
    "controller_names",
    "decider_names",
    "policy_names",
    "router_names",
    "scenario",
    "simulate",
    "without_slo",
]

_MOST_TO_REPEAT = 50_000
"""Requests of a run that is simulated again for the section of its report that says why."""

ScenarioLike = Scenario | Mapping[str, Any] | str | Path | None


def _explaining() -> Any:
    """`gnomon.api.explain`, which builds on this module and is therefore looked up when it is asked for."""
    return import_module("gnomon.api.explain")


def scenario(given: ScenarioLike = None, **overrides: Any) -> Scenario:
    """A scenario from a YAML file, a mapping or nothing, with overrides on top.

    An override is named by the field's dotted path (`**{"replica.tensor_parallel": 2}`), with `__` for the dot where
    a keyword needs it (`replica__tensor_parallel=2`), by its short name on the command line (`tp=2`, `gpu="h100"`),
    or is a whole section (`workload={"rate": 3}`).
    """
    return read(Scenario, given, overrides)


def simulate(
    given: ScenarioLike = None,
    *,
    requests: Requests | int | None = None,
    intervals: bool | None = None,
    explained: bool = False,
    on_progress: Progress | None = None,
    **overrides: Any,
) -> Simulation:
    """Simulate a scenario: a YAML file, a mapping, a `Scenario`, or the default one, with overrides on top.

    `requests` replace those of its workload; a number is how many of them there are. `intervals`: whether the first
    figures get 90 % intervals, from eight more runs, when they are shown; if not given, where there are at most 20,000
    requests. `explained` keeps accounts of every request's time from the start, which
    takes a fifth longer; `explain()` works without, by simulating again.
    """
    from gnomon.serving.simulate import run

    if isinstance(requests, int):
        overrides, requests = overrides | {"requests": requests}, None
    chosen = scenario(given, **overrides)
    done = run(chosen, requests=requests, explained=explained, on_progress=on_progress)
    return Simulation(done, requests, intervals, redraw=requests is None)


def without_slo(given: Scenario) -> Scenario:
    """The same scenario without limits."""
    return given.model_copy(update={"slo": SloConfig()})


def policy_names() -> list[str]:
    """Batching policies that are known."""
    from gnomon.serving.policies import POLICIES

    return list(POLICIES.names())


def check_policy(file: str | Path) -> Iterator[Finding]:
    """Run the contract tests on every batching policy and router that a Python file registers, one after the other."""
    from gnomon.serving.check import check_file

    return check_file(file)


def controller_names() -> list[str]:
    """Controllers of fleets that are known."""
    from gnomon.serving.fleet.controllers import CONTROLLERS

    return list(CONTROLLERS.names())


def decider_names() -> list[str]:
    """Deciders that are known: whether a request is prefilled elsewhere."""
    from gnomon.serving.deciders import DECIDERS

    return list(DECIDERS.names())


def router_names() -> list[str]:
    """Routers that are known."""
    from gnomon.serving.routers import ROUTERS

    return list(ROUTERS.names())


@dataclass(frozen=True, eq=False)
class Simulation(Result):
    """What a simulation gives: the summary at once, tables and figures when they are asked for."""

    run: Run = field(repr=False)
    """The engine's records."""
    given_requests: Requests | None = field(default=None, repr=False)
    """The requests that took the place of the workload's, if any."""
    with_intervals: bool | None = None
    """Whether to compute prediction intervals; None: where that is quick."""
    redraw: bool = True
    """Whether other requests of the same kind might have come."""
    interval_runs: int = 8
    """Runs for intervals."""
    is_judged: bool = True
    """Whether the timing sources are asked about the iterations: previews do without."""

    def __repr__(self) -> str:
        s, latency = self.scenario, self.summary.latency
        p99 = {"TTFT": latency.ttft_s.p99, "TPOT": latency.tpot_s.p99, "E2E": latency.e2e_s.p99}
        known = "".join(f", {name} P99 {value:.3g} s" for name, value in p99.items() if value is not None)
        return f"Simulation({s.model} on {s.device}, {len(self.run.cluster.requests):,} requests{known})"

    @property
    def scenario(self) -> Scenario:
        """What was simulated, with every default filled in."""
        return self.run.scenario

    @cached_property
    def summary(self) -> Summary:
        """Every figure, as plain data, and where another timing source contradicts the one in use."""
        from gnomon.serving.metrics import summarize
        from gnomon.serving.mix import judged

        found = summarize(self.run)
        if not self.is_judged:
            return found
        said = judged(self.run)
        found.warnings.extend(said.warnings)
        found.notes.extend(said.notes)
        return replace(found, timing_error=said.error)

    @cached_property
    def headroom(self) -> Headroom | None:
        """The capacity beside the load, by about twenty short simulations; None where the arrivals have no rate."""
        from gnomon.search.headroom import headroom
        from gnomon.workload import generate

        given = self.given_requests
        return headroom(
            self.scenario, given if given is not None else generate(self.scenario.workload, self.scenario.seed)
        )

    @cached_property
    def intervals(self) -> Intervals:
        """90 % intervals of the first figures, by their place in the summary (`latency.ttft_s.p99`)."""
        return self.intervals_by(nullcontext)

    def intervals_by(self, turn: Callable[[], AbstractContextManager[None]]) -> Intervals:
        """The same, found anew; each of the runs that they take is made within a `turn`."""
        from gnomon.serving.intervals import MOST_REQUESTS, intervals

        wanted = self.with_intervals
        if wanted is None:
            wanted = len(self.run.requests) <= MOST_REQUESTS
        if not wanted:
            return {}
        return intervals(self.run, self.summary, redraw=self.redraw, count=self.interval_runs, turn=turn)

    @property
    def requests(self) -> pl.DataFrame:
        """One row per request."""
        return self.frames["requests"]

    @property
    def iterations(self) -> pl.DataFrame:
        """One row per iteration and pipeline stage."""
        return self.frames["iterations"]

    def _frames(self) -> Mapping[str, Callable[[], pl.DataFrame]]:
        from gnomon.report.serving import frames, operators
        from gnomon.report.serving.fleet import fleet_frame

        changes = {"fleet": partial(fleet_frame, self.run)} if self.run.fleet is not None else {}
        return {
            **changes,
            "requests": partial(frames.request_frame, self.run),
            "iterations": partial(frames.iteration_frame, self.run),
            "operators": partial(operators.operator_frame, self.run),
            "operators_over_time": partial(operators.operators_over_time, self.run),
        }

    def _drawings(self) -> Mapping[str, Callable[[], Drawing]]:
        from gnomon.report.serving.figures import drawers

        return drawers(self.run, self.summary)

    def text(self) -> list[Block]:
        """The summary as tables, then warnings and notes."""
        from gnomon.report.serving.text import summary_blocks

        spread = None if self.scenario.calibration else self.run.spread
        return summary_blocks(self.scenario, self.summary, self.headroom, self.intervals, spread)

    def to_dict(self) -> dict[str, Any]:
        """The summary, its intervals and the scenario as nested plain data."""
        from gnomon.report.serving.intervals import as_data

        known = {
            "capacity": None if self.headroom is None else self.headroom.to_dict(),
            "intervals": as_data(self.intervals),
        }
        return self.summary.to_dict() | known | {"scenario": self.scenario.model_dump(mode="json")}

    def explain(
        self,
        *,
        request: int | None = None,
        percentile: float = 99.0,
        metric: Metric = "e2e",
        advice: bool = True,
        on_progress: Progress | None = None,
    ) -> Any:
        """An `Explanation`: why the requests from a percentile of a latency on are slow, or the story of one request;
        with `advice` what would help and what limits, each really simulated."""
        return _explaining().explain_simulation(
            self, request=request, percentile=percentile, metric=metric, advice=advice, on_progress=on_progress
        )

    def log_to_wandb(self, project: str) -> str:
        """Log the scenario, the figures and the time series to Weights & Biases; returns where."""
        from gnomon.report.serving.wandb import log_run

        return log_run(self.run, self.summary, project)

    def save(self, folder: str | Path, extras: tuple[str, ...] = ()) -> Path:
        """Write the scenario, the summary, the tables, the trace and the report into `folder`.

        `extras`: "csv" (tables as CSV too), "events" (every request's events as JSON), "operators" (operator times).
        """
        from gnomon.report.serving.files import EXTRAS, write_run

        for extra in extras:
            if extra not in EXTRAS:
                raise UnknownNameError("extra", extra, EXTRAS)
        run = self._eventful_run() if "events" in extras else self._explained_run()
        return write_run(run, self.summary, folder, extras, self.headroom, self.intervals)

    def _eventful_run(self) -> Run:
        """The run once more, with the parts that prompts were computed in."""
        from gnomon.report.serving.events import MOST_CHUNKS
        from gnomon.serving.simulate import run

        is_small = self.run.cluster.requests.size <= _MOST_TO_REPEAT
        kept = {"keep_chunks": MOST_CHUNKS, "explained": is_small or self.run.cluster.ledger.size > 0}
        return run(self.scenario, requests=self.given_requests, **kept)

    def _explained_run(self) -> Run:
        """The run with accounts of every request's time, for the report; a large one only if they were kept."""
        small = self.run.cluster.requests.size <= _MOST_TO_REPEAT
        return _explaining().explained(self).run if small else self.run


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """Several variants on the same requests; the first is the baseline."""

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
        from gnomon.serving.latency import request_times
        from gnomon.serving.paired import paired_differences

        first, *others = self.results.values()
        names = list(self.results)[1:]
        before, seed = request_times(first.run), first.scenario.seed
        return {
            name: paired_differences(before, request_times(result.run), seed)
            for name, result in zip(names, others, strict=True)
        }

    def times(self, metric: str) -> dict[str, Floats]:
        """A latency (`ttft_s`, `tpot_s`, `e2e_s`) of every request, by variant."""
        from gnomon.serving.latency import request_times

        return {name: getattr(request_times(result.run), metric) for name, result in self.results.items()}

    def against(self, metric: str, statistic: str) -> dict[str, Difference]:
        """One figure of every other variant against the baseline's."""
        return {
            name: one
            for name, found in self.differences.items()
            for one in found
            if (one.metric, one.statistic) == (metric, statistic)
        }

    def change_drawn(self, title: str, metric: str, statistic: str, order: Sequence[str]) -> Drawing:
        """The change of one figure against the baseline, in an order of one's own."""
        from gnomon.report.routing.figures import differences_figure

        return differences_figure(title, self.baseline, self.against(metric, statistic), order)

    def distributions_drawn(self, title: str, metric: str, order: Sequence[str]) -> Drawing:
        """A latency's distributions over each other on a logarithmic axis, in an order of one's own."""
        from gnomon.report.routing.figures import distributions_figure

        times = self.times(metric)
        return distributions_figure(title, {name: times[name] for name in order})

    def _frames(self) -> Mapping[str, Callable[[], pl.DataFrame]]:
        from gnomon.report.serving.frames import difference_frame

        variants = {name: (lambda one=one: one.requests) for name, one in self.results.items()}
        return {"differences": lambda: difference_frame(self.differences), **variants}

    def _drawings(self) -> Mapping[str, Callable[[], Drawing]]:
        from gnomon.report.serving.compare import drawers

        return drawers({name: one.run for name, one in self.results.items()}, lambda: self.differences)

    def text(self) -> list[Block]:
        """The variants side by side, then every difference to the baseline."""
        from gnomon.report.serving.compare import comparison_blocks

        return comparison_blocks(self.summary, self.differences, self.intervals)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain data: every variant's summary and the differences."""
        rows = {
            name: [asdict(one) | {"difference": one.difference, "relative": one.relative} for one in differences]
            for name, differences in self.differences.items()
        }
        from gnomon.report.serving.compare import regrets
        from gnomon.report.serving.intervals import as_data

        summaries = {
            name: summary.to_dict() | {"intervals": as_data(self.intervals[name])}
            for name, summary in self.summary.items()
        }
        found = {name: asdict(one) for name, one in regrets(self.summary).items()}
        known = {"regret": found} if found else {}
        return {"baseline": self.baseline, "summaries": summaries, "differences": rows} | known

    def save(self, folder: str | Path) -> Path:
        """Write one report of all, comparison.json, and every variant's run into a folder of its own."""
        from gnomon.report.serving.compare import write_comparison_report
        from gnomon.report.serving.files import write_run

        places = {name: f"{i}-{re.sub(r'[^A-Za-z0-9._=-]+', '-', name)[:80]}" for i, name in enumerate(self.results)}
        with folder_written_whole(folder, ("comparison.json", "report.html", "[0-9]*-*")) as temporary:
            for name, result in self.results.items():
                write_run(result.run, result.summary, temporary / places[name])
            write_text(temporary / "comparison.json", json.dumps(self.to_dict(), indent=1))
            scenarios = {name: one.scenario for name, one in self.results.items()}
            write_comparison_report(
                temporary / "report.html", self.summary, self.differences, dict(self.drawings), scenarios, places,
                self.intervals,
            )  # fmt: skip
        return Path(folder)


def compare(
    *given: ScenarioLike,
    vary: Mapping[str, Sequence[Any]] | None = None,
    intervals: bool | None = None,
    on_progress: Progress | None = None,
    **overrides: Any,
) -> Comparison:
    """Simulate several scenarios, or all combinations of `vary` on one, on the same requests.

        gnomon.compare("a.yaml", "b.yaml")
        gnomon.compare(vary={"batching.policy": ["vllm_v1", "sarathi"], "replica.tensor_parallel": [1, 2]})

    The requests must be the same: what varies may be the arrival rate, but not the lengths or the number of requests.
    """
    from gnomon.serving.simulate import run

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
            changed = dict(zip(vary, values, strict=True))
            parts = [label] * (len(given) > 1) + [f"{key.split('.')[-1]}={value}" for key, value in changed.items()]
            name = ", ".join(parts) or label
            if name in found:
                raise ConfigError(f"two variants are called {name!r}.", fix="Give the files different names.")
            found[name] = scenario(one, **{**overrides, **changed})
    return found


def _same_requests(variants: Mapping[str, Scenario]) -> dict[str, Requests]:
    """The requests of every variant, limited to what all of them accept; refused where their lengths differ."""
    from gnomon import catalog
    from gnomon.workload import generate, limit_lengths

    limits = [
        pool.replica.max_request_tokens or catalog.model(one.model).max_context_tokens
        for one in variants.values()
        for pool in one.kinds()
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
            raise ConfigError(
                "its requests differ from those of the first variant, so that they cannot be compared one by one.",
                where=name,
                fix="Give all variants the same workload (the rate may differ) and seed.",
            )
    return made
