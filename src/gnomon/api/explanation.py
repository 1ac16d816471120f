"""What an explanation holds: where requests' time went, what the slowest suffer from, what would help, what limits."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypedDict

from gnomon.api.result import Progress, Result
from gnomon.core.errors import ConfigError
from gnomon.core.files import folder_written_whole, write_frame, write_text
from gnomon.report.serving.explanation import sentences
from gnomon.serving.results.counterfactual import Outcome, limits, outcomes
from gnomon.serving.results.counterfactual import advice as changes
from gnomon.serving.results.explain import Slow, slowest
from gnomon.serving.results.latency_breakdown import METRICS, Accounts, Metric, accounts
from gnomon.serving.results.percentiles import STATISTICS
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import Run

__all__ = ["ExplainOptions", "Explanation", "explain_simulation"]


class ExplainOptions(TypedDict, total=False):
    """What is to be explained; `explain_simulation` has the defaults."""

    request: int | None
    """The request whose story is told; None: what the slow ones suffer from."""
    percentile: float
    """Slow are the requests from here on."""
    metric: Metric
    """Which latency: e2e, ttft, tpot."""
    advice: bool
    """Simulate changes and bottlenecks, each as long as the run itself."""
    on_progress: Progress | None


class Simulated(Protocol):
    """A simulation, as far as its explanation needs it."""

    @property
    def run(self) -> Run:
        """The engine's records, with accounts of every request's time."""

    @property
    def summary(self) -> Summary:
        """Its figures."""


def explain_simulation(
    simulation: Simulated, *, request: int | None = None, percentile: float = 99.0, metric: Metric = "e2e",
    advice: bool = True, on_progress: Progress | None = None,
) -> Explanation:  # fmt: skip
    """Explain a simulation with accounts of every request's time."""
    if metric not in METRICS:
        raise ConfigError(f"unknown metric {metric!r}.", where="metric", fix=f"Choose from {', '.join(METRICS)}.")
    if not 0.0 < percentile < 100.0:
        raise ConfigError(f"must lie between 0 and 100, not {percentile:g}.", where="percentile", fix="E.g. 99.")
    found = accounts(simulation.run)
    if not found.ids.size:
        raise ConfigError("no request finished: there is nothing to explain.", where="scenario")
    if request is not None:
        found.row(request)
    report = on_progress or (lambda done, total: None)
    wanted = advice and request is None
    helping, free = (changes(simulation.run), limits(simulation.run)) if wanted else ([], [])
    tried = list(outcomes(simulation.run, [*helping, *free], report))
    helped, freed = ([one for one in tried if one.change in some] for some in (helping, free))
    return Explanation(simulation, found, metric, percentile, request, advice=helped, limits=freed)


@dataclass(frozen=True, eq=False)
class Explanation(Result):
    """Why requests of a simulation were slow."""

    view = "serving.explanation"
    simulation: Simulated = field(repr=False)
    accounts: Accounts = field(repr=False)
    """Every request's time in parts, nanoseconds that add up exactly."""
    metric: Metric = "e2e"
    percentile: float = 99.0
    request: int | None = None
    """The request whose story is told; None: that of the slow ones."""
    advice: list[Outcome] = field(default_factory=list, repr=False)
    """Changes that were simulated."""
    limits: list[Outcome] = field(default_factory=list, repr=False)
    """Resources made free, one at a time."""
    note: str = ""

    def __repr__(self) -> str:
        return f"Explanation({' '.join(self.sentences)})"

    @cached_property
    def slow(self) -> Slow:
        """The slow requests against typical ones."""
        return slowest(self.accounts, self.metric, self.percentile)

    @property
    def statistic(self) -> str:
        """The percentile of a summary that is nearest: p50, p90, p95 or p99."""
        known = {float(name[1:]): name for name in STATISTICS if name[0] == "p" and name[1:].isdigit()}
        return known[min(known, key=lambda value: abs(value - self.percentile))]

    @cached_property
    def sentences(self) -> list[str]:
        """The answer in two or three sentences."""
        return sentences(self)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The sentences, causes and figures, as plain data."""
        return self.shown.data()

    def save(self, folder: str | Path) -> Path:
        """Write explanation.json and parts.parquet: every request's parts in nanoseconds."""
        with folder_written_whole(folder, ("explanation.json", "parts.parquet")) as temporary:
            write_text(temporary / "explanation.json", json.dumps(self.to_dict(), indent=1))
            write_frame(temporary / "parts.parquet", self.frames["parts"])
        return Path(folder)
