"""Serving: one scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from gnomon.api.result import Progress, Result, read
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.core.processes import beside
from gnomon.serving.autoscaling.controllers import CONTROLLERS
from gnomon.serving.deciders import DECIDERS
from gnomon.serving.policies import POLICIES
from gnomon.serving.routers import ROUTERS
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.engine_presets import NO_ENGINE
from gnomon.workload.config import DEFAULT_RATE
from gnomon.workload.slo import SloConfig

if TYPE_CHECKING:
    import polars as pl

    from gnomon.api.explanation import ExplainOptions, Explanation
    from gnomon.search.load_curve import Headroom
    from gnomon.serving.results.intervals import Intervals as Intervals
    from gnomon.serving.results.summary import Summary as Summary
    from gnomon.serving.run.check import Finding
    from gnomon.serving.run.simulate import Run
    from gnomon.workload import Requests


__all__ = [
    "DEFAULT_RATE", "NO_ENGINE", "Scenario", "Simulation", "check_policy", "controller_names", "decider_names",
    "policy_names", "router_names", "scenario", "simulate", "without_slo",
]  # fmt: skip

policy_names, router_names, decider_names = POLICIES.names, ROUTERS.names, DECIDERS.names
"""Of what is known, built in or registered."""

_MOST_TO_REPEAT = 50_000  # Requests of a run that is simulated again for the section of its report that says why.

ScenarioLike = Scenario | Mapping[str, Any] | str | Path | None


def scenario(given: ScenarioLike = None, **overrides: Any) -> Scenario:
    """A scenario from a YAML file, a mapping or nothing, with overrides on top.

    An override is named by the field's dotted path (`**{"replica.tensor_parallel": 2}`), with `__` for the dot where
    a keyword needs it (`replica__tensor_parallel=2`), by its short name on the command line (`tp=2`, `gpu="h100"`),
    or is a whole section (`workload={"rate": 3}`).
    """
    return read(Scenario, given, overrides)


def simulate(
    given: ScenarioLike = None, *, requests: Requests | int | None = None, intervals: bool | None = None,
    explained: bool = False, on_progress: Progress | None = None, **overrides: Any,
) -> Simulation:  # fmt: skip
    """Simulate a scenario: a YAML file, a mapping, a `Scenario`, or the default one, with overrides on top.

    `requests` replace those of its workload; a number is how many of them there are. `intervals`: whether the first
    figures get 90 % intervals, from eight more runs, when they are shown; if not given, where there are at most 20,000
    requests. `explained` keeps accounts of every request's time from the start, which
    takes a fifth longer; `explain()` works without, by simulating again.
    """
    from gnomon.serving.run.simulate import run

    if isinstance(requests, int):
        overrides, requests = overrides | {"requests": requests}, None
    chosen = scenario(given, **overrides)
    done = run(chosen, requests=requests, explained=explained, on_progress=on_progress)
    return Simulation(done, requests, intervals, redraw=requests is None)


def without_slo(given: Scenario) -> Scenario:
    """A scenario without its SLO."""
    return given.model_copy(update={"slo": SloConfig()})


def check_policy(file: str | Path) -> Iterator[Finding]:
    """Run the contract tests on every batching policy and router that a Python file registers, one after the other."""
    from gnomon.serving.run.check import check_file

    return check_file(file)


def controller_names(*, of_one_pool: bool = False) -> list[str]:
    """Controllers of fleets that are known; or those that a pool needs nothing else for."""
    return [
        name
        for name in CONTROLLERS
        if not (of_one_pool and (CONTROLLERS[name].needs_steps or CONTROLLERS[name].shares))
    ]


@dataclass(frozen=True, eq=False)
class Simulation(Result):
    """What a simulation gives: the summary at once, tables and figures when they are asked for."""

    view = "serving.files"
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
        from gnomon.serving.results.intervals import iteration_spread
        from gnomon.serving.results.mean_iteration import judged
        from gnomon.serving.results.metrics import summarize
        from gnomon.timing.breakdown import NINE_OF_TEN

        found = summarize(self.run)
        if not self.is_judged:
            return found
        judgement = judged(self.run)
        found.warnings.extend(judgement.warnings)
        found.notes.extend(judgement.notes)
        return replace(found, timing_error=NINE_OF_TEN * iteration_spread(self.run), timing_sources=judgement.sources)

    @cached_property
    def headroom(self) -> Headroom:
        """The capacity beside the load, by about twenty short simulations, or why there is none to name."""
        from gnomon.search.load_curve import headroom
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
        """The intervals, found anew; each of the runs that they take is made within a `turn`."""
        from gnomon.serving.results.intervals import MOST_REQUESTS, intervals
        from gnomon.serving.results.metrics import headline

        wanted = self.with_intervals
        if wanted is None:
            wanted = len(self.run.requests) <= MOST_REQUESTS
        if not wanted:
            return {}
        return intervals(self.run, headline(self.run), redraw=self.redraw, count=self.interval_runs, turn=turn)

    def estimate(self) -> None:
        """Find all that is shown of it at once: with several cores in about half the time."""
        from gnomon.search import load_curve  # noqa: F401  # Here, and not in each copy.
        from gnomon.serving.results import intervals, mean_iteration  # noqa: F401

        found = {name: beside(partial(getattr, self, name)) for name in ("intervals", "headroom")}
        _ = self.summary, self.shown
        self.__dict__.update({name: value() for name, value in found.items()})

    @property
    def requests(self) -> pl.DataFrame:
        """One row per request."""
        return self.frames["requests"]

    @property
    def iterations(self) -> pl.DataFrame:
        """One row per iteration and pipeline stage."""
        return self.frames["iterations"]

    def explain(self, **asked: Unpack[ExplainOptions]) -> Explanation:
        """Why the requests from a percentile of a latency on are slow, or the story of one request; with `advice` what
        would help and what limits, each really simulated."""
        from gnomon.api.explanation import explain_simulation

        return explain_simulation(self.explained(), **asked)

    def explained(self) -> Simulation:
        """This simulation with accounts of every request's time: simulated again unless they were kept."""
        return self if self.run.cluster.breakdown.size else replace(self, run=self._again(explained=True))

    def _again(self, **kept: Any) -> Run:
        """The run once more, with what is `kept` of it beside the usual."""
        from gnomon.serving.run.simulate import run

        return run(self.scenario, requests=self.given_requests, **kept)

    def log_to_wandb(self, project: str) -> str:
        """Log the scenario, the figures and the time series to Weights & Biases; returns where."""
        from gnomon.report.serving.files import log_run

        return log_run(self.run, self.summary, project)

    def save(self, folder: str | Path, extras: tuple[str, ...] = ()) -> Path:
        """Write the scenario, the summary, the tables, the trace and the report into `folder`.

        `extras`: "csv" (tables as CSV too), "events" (every request's events as JSON), "operators" (operator times).
        """
        from gnomon.report.serving.files import EXTRAS, write_run
        from gnomon.report.serving.trace import MOST_CHUNKS

        for extra in extras:
            if extra not in EXTRAS:
                raise UnknownNameError("extra", extra, EXTRAS)
        # Why requests were slow is part of a report; for a large run only if it is known already.
        is_small = self.run.cluster.requests.size <= _MOST_TO_REPEAT
        if "events" in extras:
            run = self._again(keep_chunks=MOST_CHUNKS, explained=is_small or self.run.cluster.breakdown.size > 0)
        else:
            run = self.explained().run if is_small else self.run
        return write_run(run, self.summary, folder, extras, self.headroom, self.intervals)

    def export(self, name: str, folder: str | Path) -> list[Path]:
        """Write the run in another tool's format (llmd-report, inference-perf, aiperf, vllm-bench, guidellm, vidur), as
        the files that the tool itself writes."""
        from gnomon.core.files import write_text
        from gnomon.report.serving.exports import NEEDS_MEMBERS, exported, num_members

        is_whole = name not in NEEDS_MEMBERS
        run = self.run if is_whole else self._again(keep_members=num_members(self.run), explained=True)
        return [write_text(Path(folder) / file, text) for file, text in exported(run, self.summary, name).items()]


def serve(
    given: ScenarioLike = None, *, host: str = "127.0.0.1", port: int = 8000, port_per_replica: bool = False,
    speed: float = 1.0, model_name: str | None = None, tokenizer: str | Path | None = None, token: str | None = None,
    drain_s: int = 60, on_start: Callable[[list[str], str], None] = lambda urls, model: None, **overrides: Any,
) -> None:  # fmt: skip
    """Answer OpenAI's requests as the scenario's servers would, until the process is told to stop.

    Tokens come when the simulated engine produces them, `speed` times faster than in reality. Addresses other than this
    machine's own need a `token`. `port_per_replica`: every replica has a port of its own, from `port` on, instead of
    the scenario's router. `on_start` gets the URLs and the model's name once requests are answered.
    """
    try:
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        fix = "pip install 'gnomon-sim[serve]'"
        raise ConfigError(f"serving needs the package {error.name}.", where="serve", fix=fix) from None
    from gnomon.live.app import App, check_host, open_sockets, serve_forever
    from gnomon.live.cluster import LiveCluster
    from gnomon.live.protocol import FromFile, Pieces

    chosen = scenario(given, **overrides)
    check_host(host, token)
    if port_per_replica and chosen.has_roles:
        what = "where prefill and decode are apart, requests move between replicas."
        raise ConfigError(what, where="--port-per-replica", fix="Leave it out: the scenario's routers choose.")
    words = FromFile(tokenizer) if tokenizer is not None else Pieces()
    live = LiveCluster(chosen)
    groups = sorted({int(first) for first in live.cluster.replicas.group_first}) if port_per_replica else [0]
    sockets = open_sockets(host, port, len(groups))
    ports = [int(one.getsockname()[1]) for one in sockets]
    name = model_name or chosen.model
    replicas = dict(zip(ports, groups, strict=True)) if port_per_replica else None
    app = App(live, words, model_name=name, speed=speed, token=token, replica_of_port=replicas)
    shown = f"[{host}]" if ":" in host else host
    serve_forever(app, sockets, drain_s, lambda: on_start([f"http://{shown}:{one}" for one in ports], name))
