"""What an explanation holds: where requests' time went, what the slowest suffer from, what would help, what limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, Unpack

from gnomon.api.pipeline import pipeline
from gnomon.api.posttrain import posttrain
from gnomon.api.result import Progress, Result
from gnomon.api.serving import Scenario, Simulation, scenario, simulate
from gnomon.core.errors import ConfigError
from gnomon.core.files import folder_written_whole, write_frame, write_text
from gnomon.report.serving.explanation import sentences
from gnomon.serving.results.counterfactual import Outcome, limits, outcomes
from gnomon.serving.results.counterfactual import advice as changes
from gnomon.serving.results.explain import Slow, slowest
from gnomon.serving.results.latency_breakdown import METRICS, Accounts, Metric, accounts
from gnomon.serving.results.percentiles import STATISTICS

__all__ = ["Asked", "Explanation", "explain", "explain_simulation"]


class Asked(TypedDict, total=False):
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


def explain_simulation(
    simulation: Simulation,
    *,
    request: int | None = None,
    percentile: float = 99.0,
    metric: Metric = "e2e",
    advice: bool = True,
    on_progress: Progress | None = None,
) -> Explanation:
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
    simulation: Simulation = field(repr=False)
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

    def with_note(self, note: str) -> Explanation:
        """This explanation with a remark."""
        return replace(self, note=note)

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


Explainable = Result | Scenario | Mapping[str, Any] | str | Path


def explain(given: Explainable, **asked: Unpack[Asked]) -> Result:
    """Explain a result, the folder of a run (of `gnomon simulate`, `pipeline` or `posttrain`), or a scenario.

        gnomon.explain("runs/demo")
        gnomon.explain("runs/demo", request=812)
        gnomon.simulate(...).explain(percentile=95, metric="ttft")

    A folder's scenario is simulated again, which gives the same run to the last bit. `request` tells the story of one
    request; else it is told what the requests from `percentile` (99) of `metric` (e2e, ttft, tpot) on suffer from.
    `advice` (True) simulates changes and bottlenecks, each as long as the run itself. A step of training has no
    requests: there `request`, `percentile` and `metric` are refused.
    """
    if isinstance(given, Simulation):
        return given.explain(**asked)
    if isinstance(given, Result):
        _refuse(asked)
        return given.explain()
    if isinstance(given, str | Path):
        path = Path(given)
        if path.is_dir() and not (path / "scenario.yaml").exists():
            _refuse(asked)
            return _other_folder(path)
        if path.is_dir():
            # The run of a folder, simulated again and compared with what was written down.
            again = simulate(scenario(path / "scenario.yaml"), explained=True, on_progress=asked.get("on_progress"))
            note = ""
            try:
                was = json.loads((path / "summary.json").read_text(encoding="utf-8"))["latency"]["e2e_s"]["p99"]
                now = again.summary.latency.e2e_s.p99
                if was is not None and now is not None and abs(was - now) > 1e-9 * max(abs(was), abs(now)):
                    note = (
                        f"The folder's P99 of E2E is {was:.6g} s, and {now:.6g} s now: it was made by another version."
                    )
            except (OSError, ValueError, KeyError, TypeError):
                note = "The folder has no summary to compare with."
            found = again.explain(**asked)
            return found.with_note(note) if note else found
    return simulate(scenario(given), explained=True, on_progress=asked.get("on_progress")).explain(**asked)


def _refuse(asked: Asked) -> None:
    """Say that what asks about requests has no meaning here."""
    for name in ("request", "percentile", "metric"):
        if name in asked:
            raise ConfigError("only a simulation of serving has requests.", where=name, fix="Leave it out.")


def _other_folder(folder: Path) -> Result:
    """A training step or post-training run, made again from its configuration."""
    if (folder / "step.json").exists():
        try:
            config = json.loads((folder / "step.json").read_text(encoding="utf-8"))["config"]
        except (ValueError, KeyError, TypeError):
            raise ConfigError("does not hold a configuration.", where=str(folder / "step.json")) from None
        return pipeline(config).explain()
    if (folder / "config.yaml").exists():
        return posttrain(folder / "config.yaml").explain()
    what = "is not the folder of a run: it has no scenario.yaml, step.json or config.yaml."
    raise ConfigError(what, where=str(folder), fix="Make one with `gnomon simulate --out DIR`.")
