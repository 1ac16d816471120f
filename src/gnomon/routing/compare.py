"""Routers on the same held-out traces, seed by seed, and what a policy must reach on the built-in scenarios."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from gnomon.core.config import load
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.core.parallel import map_ordered
from gnomon.routing.config import CompareConfig
from gnomon.routing.suite import cells, tuned_routers
from gnomon.routing.traffic import held_out_requests
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.routers import ROUTERS
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import LengthsKnown, RouterConfig
from gnomon.timing import SOURCES

BOUND = "lookahead, oracle lengths"
TEACHER = "gateway"  # The rule that policies add to: a router made by hand.
OWN_RULES = ("unselfish", TEACHER)  # Made by hand here: shown and judged on the suite, but no baselines.
BASELINES = tuple(name for name in ROUTERS if name not in ("learned", *OWN_RULES))
"""Every other router that comes with Gnomon."""


@dataclass(frozen=True)
class Contender:
    """A router under a name of its own."""

    name: str
    router: RouterConfig
    role: Literal["policy", "teacher", "heuristic", "bound"]
    """A bound knows what no router can know. It is shown, as the teacher is, but not raced against."""


@dataclass(frozen=True)
class Row:
    """One router on one trace."""

    scenario: str
    seed: int
    router: str
    e2e_mean_s: float
    e2e_p50_s: float
    e2e_p99_s: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    requests_per_s: float
    """This and the goodput are over the time in which requests come by themselves: when the last one ends is luck."""
    imbalance: float
    """Tokens computed by the busiest replica over the mean, less 1: a diagnostic, not a goal."""
    finished: int
    goodput_per_s: float | None = None
    """Requests per second that met their class's SLO, or the scenario's; None where there is none."""
    fairness: float = 1.0
    """Jain's index of the requests' seconds per output token: 1 where all are treated alike."""


@dataclass(frozen=True)
class Paired:
    """A relative difference over the seeds, with its 95 % interval (Student's t over the paired differences)."""

    mean: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class RouteComparison:
    """All rows, and who the contenders were."""

    rows: tuple[Row, ...]
    contenders: tuple[Contender, ...]
    scenarios: dict[str, Scenario]

    def values(self, scenario: str, router: str, figure: str) -> list[float]:
        return [getattr(row, figure) for row in self.rows if (row.scenario, row.router) == (scenario, router)]

    def mean(self, scenario: str, router: str, figure: str) -> float:
        return fmean(self.values(scenario, router, figure))

    def against(self, scenario: str, router: str, baseline: str, figure: str = "e2e_mean_s") -> Paired:
        """How much more `router` has of a figure than `baseline`, as a share of the latter."""
        ours, theirs = (np.array(self.values(scenario, name, figure)) for name in (router, baseline))
        return paired(ours / theirs - 1)

    def best_heuristic(self, scenario: str, figure: str = "e2e_mean_s", most: bool = False) -> str:
        """The heuristic with the smallest mean E2E latency, or with the least or the most of another figure."""
        names = [one.name for one in self.contenders if one.role == "heuristic"]
        if not names:
            raise ConfigError("there is no heuristic to compare with.", where="compare.routers")
        return (max if most else min)(names, key=lambda name: self.mean(scenario, name, figure))

    @property
    def policies(self) -> list[str]:
        return [one.name for one in self.contenders if one.role == "policy"]

    def to_dict(self) -> dict[str, Any]:
        return {
            "contenders": [
                {"name": one.name, "role": one.role, "router": one.router.model_dump(mode="json")}
                for one in self.contenders
            ],
            "scenarios": {name: one.model_dump(mode="json") for name, one in self.scenarios.items()},
            "rows": [asdict(row) for row in self.rows],
        }


# Student's t at 97.5 % for 1, 2, ... 30 degrees of freedom.
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def paired(differences: np.ndarray[Any, np.dtype[np.float64]]) -> Paired:
    """Mean and 95 % interval of differences that are independent of each other (one per seed)."""
    mean, freedom = float(differences.mean()), len(differences) - 1
    margin = _T_975[min(freedom, len(_T_975)) - 1] * float(differences.std(ddof=1)) / len(differences) ** 0.5
    return Paired(mean, mean - margin, mean + margin)


def interval(difference: Paired) -> str:
    return f"{difference.mean:+z.1%} ± {difference.high - difference.mean:.1%}"


def contenders(config: CompareConfig, policies: dict[str, Path | None], lengths: LengthsKnown) -> list[Contender]:
    """The policies (None: the one that comes with Gnomon), the baselines, and the bound; on the suite instead of that
    other routers with tuned weights."""
    unknown = set(config.routers) - set(ROUTERS)
    if unknown:
        raise UnknownNameError("router", unknown.pop(), ROUTERS, where="compare.routers")
    files = {name: str(path) if path else None for name, path in policies.items()}
    found = [Contender(name, _router("learned", lengths, file), "policy") for name, file in files.items()]
    found += [Contender(name, _router(name, lengths), "heuristic") for name in config.routers or BASELINES]
    if not config.routers:
        found += [Contender(name, _router(name, lengths), "teacher") for name in OWN_RULES]
    if not config.routers and config.suite:
        found += [Contender(name, one, "heuristic") for name, one in tuned_routers(lengths).items()]
    elif not config.routers and lengths != "oracle":
        found.append(Contender(BOUND, _router("lookahead", "oracle"), "bound"))
    return found


def _router(name: str, lengths: LengthsKnown, checkpoint: str | None = None) -> RouterConfig:
    return RouterConfig(name=name, lengths=lengths, checkpoint=checkpoint)


def built_in_scenarios() -> list[str]:
    """Names of the scenarios that come with Gnomon."""
    folder = resources.files("gnomon.routing").joinpath("scenarios")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def find_scenario(name: str, source: str | None = None) -> Scenario:
    """A built-in scenario by its name, or one from a file; with iteration times from `source` if given."""
    if name in cells():
        found = cells()[name]
    elif name in built_in_scenarios():
        folder = resources.files("gnomon.routing").joinpath("scenarios")
        with resources.as_file(folder.joinpath(f"{name}.yaml")) as path:
            found = load(Scenario, path)
    elif not Path(name).suffix:
        raise UnknownNameError("scenario", name, (*built_in_scenarios(), *cells()))
    else:
        found = load(Scenario, name)
    if source is None:
        return found
    if source not in SOURCES:
        raise UnknownNameError("timing source", source, SOURCES, where="source")
    of = {"source": source}
    pools = tuple(
        one.model_copy(update={"timing": one.timing.model_copy(update=of)}) if one.timing else one
        for one in found.pools
    )
    return found.model_copy(update={"timing": found.timing.model_copy(update=of), "pools": pools})


def compare(
    config: CompareConfig, against: list[Contender], *, jobs: int | None = None, ray: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> RouteComparison:  # fmt: skip
    """Run every contender on every scenario and seed."""
    names = config.scenarios or (cells() if config.suite else built_in_scenarios())
    scenarios = {Path(name).stem: find_scenario(name, config.source) for name in names}
    seeds = range(config.first_seed, config.first_seed + config.num_seeds)
    sized = scenarios
    if config.num_requests is not None:
        size = {"num_requests": config.num_requests}
        resized = {name: one.workload.model_copy(update=size) for name, one in scenarios.items()}
        sized = {name: one.model_copy(update={"workload": resized[name]}) for name, one in scenarios.items()}
    items = [(name, one, seed) for name, one in sized.items() for seed in seeds]
    rows: list[Row] = []
    for done, outcome in enumerate(map_ordered(partial(_one_trace, tuple(against)), items, jobs=jobs, ray=ray), 1):
        rows += outcome.unwrap()
        if on_progress:
            on_progress(done, len(items))
    return RouteComparison(tuple(rows), tuple(against), scenarios)


def _one_trace(against: tuple[Contender, ...], item: tuple[str, Scenario, int]) -> list[Row]:
    """All contenders on the requests of one seed."""
    name, scenario, seed = item
    requests = held_out_requests(scenario.workload, seed)
    scenarios = [scenario.model_copy(update={"seed": seed, "router": one.router}) for one in against]
    return [one_row(name, own, one.name, requests) for own, one in zip(scenarios, against, strict=True)]


def one_row(name: str, scenario: Scenario, router: str, requests: Any) -> Row:
    """The figures of one run."""
    from gnomon.serving.results.latency import request_times
    from gnomon.serving.run.simulate import run

    done = run(scenario, requests=requests)
    times = request_times(done)
    e2e, ttft = times.e2e_s[~np.isnan(times.e2e_s)], times.ttft_s[~np.isnan(times.ttft_s)]
    table, tokens = done.cluster.requests, done.cluster.replicas.tokens_computed
    known = requests.arrival_s[np.isfinite(requests.arrival_s) & (requests.concurrency == 0)]
    duration_s = float(np.ptp(known) if np.unique(known).size > 1 else table.finished_s.max() - table.arrival_s.min())
    seconds = times.normalized_s[~np.isnan(times.normalized_s)]
    return Row(
        scenario=name, seed=scenario.seed, router=router, e2e_mean_s=float(e2e.mean()),
        e2e_p50_s=float(np.percentile(e2e, 50)), e2e_p99_s=float(np.percentile(e2e, 99)),
        ttft_mean_s=float(ttft.mean()), ttft_p50_s=float(np.percentile(ttft, 50)),
        ttft_p99_s=float(np.percentile(ttft, 99)), requests_per_s=e2e.size / duration_s,
        imbalance=float(tokens.max() / tokens.mean() - 1), finished=int(e2e.size),
        goodput_per_s=_goodput(done, times, duration_s),
        fairness=float(seconds.sum() ** 2 / (seconds.size * (seconds**2).sum())),
    )  # fmt: skip


def _goodput(done: Any, times: Any, duration_s: float) -> float | None:
    """Requests per second that met the SLO of their class, or the scenario's; None where no SLO is given."""
    from gnomon.serving.results.latency import slo_met

    q, slos, good = done.cluster.requests, [one.slo for one in done.requests.classes] or [None], 0.0
    for number, slo in enumerate(slos):
        given = slo if slo is not None and slo.is_given else done.scenario.slo
        mine = (times.status == FINISHED) & (q.user_class == number)
        found = slo_met(given, times, mine, 1, duration_s)
        if found is None:
            return None
        good += found.goodput_requests_per_s
    return good


BEST = "the best heuristic"
LEAST_OUTSTANDING = "least_outstanding"
CLONE = "clone"  # A policy of this name is held against its teacher, not against the heuristics.


@dataclass(frozen=True)
class Goal:
    """At most `limit` more of a figure than a baseline has, as a share; below 0 it must have less."""

    scenario: str
    figure: str
    baseline: str
    limit: float

    @property
    def words(self) -> str:
        names = {"e2e_mean_s": "mean E2E", "ttft_p99_s": "P99 TTFT"}
        size = f"at least {-self.limit:.0%} below" if self.limit < 0 else f"at most {self.limit:.0%} above"
        return f"{names[self.figure]} {size} {self.baseline}"


_OWN = (
    Goal("uniform", "e2e_mean_s", BEST, 0.02), Goal("chat", "e2e_mean_s", BEST, 0.02),
    Goal("mixed_bursty", "e2e_mean_s", LEAST_OUTSTANDING, -0.10), Goal("mixed_bursty", "e2e_mean_s", BEST, -0.05),
    Goal("mixed_bursty", "ttft_p99_s", LEAST_OUTSTANDING, 0.0), Goal("unequal", "e2e_mean_s", LEAST_OUTSTANDING, -0.15),
    Goal("sixteen", "e2e_mean_s", BEST, 0.03),
)  # fmt: skip
_HAVE_P99 = [goal.scenario for goal in _OWN if goal.figure == "ttft_p99_s"]
GOALS = (
    *_OWN,
    *(Goal(name, "ttft_p99_s", LEAST_OUTSTANDING, 0.05) for name in built_in_scenarios() if name not in _HAVE_P99),
)
"""P99 TTFT at most 5 % above least_outstanding on every scenario that has no limit of its own."""


@dataclass(frozen=True)
class Verdict:
    """A goal, what was measured, and against whom."""

    goal: Goal
    policy: str
    baseline: str
    measured: Paired

    @property
    def is_met(self) -> bool:
        """Whether the whole 95 % interval over the seeds reaches the goal."""
        return self.measured.high <= self.goal.limit

    @property
    def word(self) -> str:
        """`yes`; `NO` where the whole interval misses the goal; `open` where the limit lies inside it."""
        return "yes" if self.is_met else "NO" if self.measured.low > self.goal.limit else "open"


def judge(comparison: RouteComparison, policy: str) -> list[Verdict]:
    """The verdict on every goal whose scenario and baseline were compared."""
    known = {one.name for one in comparison.contenders if one.role in ("heuristic", "teacher")}
    if not known - set(OWN_RULES):
        return []
    goals = [Goal(name, "e2e_mean_s", TEACHER, 0.02) for name in comparison.scenarios] if policy == CLONE else GOALS
    found = []
    for goal in goals:
        if goal.scenario not in comparison.scenarios:
            continue
        baseline = comparison.best_heuristic(goal.scenario) if goal.baseline == BEST else goal.baseline
        if baseline in known:
            measured = comparison.against(goal.scenario, policy, baseline, goal.figure)
            found.append(Verdict(goal, policy, baseline, measured))
    return found
