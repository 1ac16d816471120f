"""Why: where requests' time went, what the slowest suffer from, what would help, and what limits a deployment."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.api.result import Drawing, Progress, Result
from gnomon.api.serving import Scenario, Simulation, scenario, simulate
from gnomon.core.errors import ConfigError
from gnomon.core.files import folder_written_whole, write_text, written_whole

if TYPE_CHECKING:
    import polars as pl

    from gnomon.report.blocks import Block
    from gnomon.serving.counterfactual import Outcome
    from gnomon.serving.explain import Slow
    from gnomon.serving.parts import Accounts, Metric

__all__ = ["Explanation", "explain", "explain_simulation", "explained"]

Explainable = Result | Scenario | Mapping[str, Any] | str | Path


def explain(
    given: Explainable,
    *,
    request: int | None = None,
    percentile: float = 99.0,
    metric: Metric = "e2e",
    advice: bool = True,
    on_progress: Progress | None = None,
) -> Result:
    """Explain a result, the folder of a run (of `gnomon simulate`, `pipeline` or `posttrain`), or a scenario.

        gnomon.explain("runs/demo")
        gnomon.explain("runs/demo", request=812)
        gnomon.simulate(...).explain(percentile=95, metric="ttft")

    A folder's scenario is simulated again, which gives the same run to the last bit. `request` tells the story of one
    request; else it is told what the requests from `percentile` of `metric` (e2e, ttft, tpot) on suffer from. `advice`
    simulates changes and bottlenecks, each as long as the run itself.
    """
    options: dict[str, Any] = {"request": request, "percentile": percentile, "metric": metric, "advice": advice}
    if isinstance(given, Simulation):
        return explain_simulation(given, **options, on_progress=on_progress)
    if isinstance(given, Result):
        return given.explain()
    if isinstance(given, str | Path):
        path = Path(given)
        if path.is_dir() and not (path / "scenario.yaml").exists():
            return _other_folder(path)
        if path.is_dir():
            return _saved(path, options, on_progress)
    run = simulate(scenario(given), explained=True, on_progress=on_progress)
    return explain_simulation(run, **options, on_progress=on_progress)


def explain_simulation(
    simulation: Simulation,
    *,
    request: int | None = None,
    percentile: float = 99.0,
    metric: Metric = "e2e",
    advice: bool = True,
    on_progress: Progress | None = None,
) -> Explanation:
    """Explain a simulation; it is repeated with its accounts kept unless they were from the start."""
    from gnomon.serving.counterfactual import advice as changes
    from gnomon.serving.counterfactual import limits, outcomes
    from gnomon.serving.parts import METRICS, accounts

    if metric not in METRICS:
        raise ConfigError(f"unknown metric {metric!r}.", where="metric", fix=f"Choose from {', '.join(METRICS)}.")
    if not 0.0 < percentile < 100.0:
        raise ConfigError(f"must lie between 0 and 100, not {percentile:g}.", where="percentile", fix="E.g. 99.")
    simulation = explained(simulation)
    found = accounts(simulation.run)
    if not found.ids.size:
        raise ConfigError("no request finished: there is nothing to explain.", where="scenario")
    if request is not None:
        found.row(request)
    report = on_progress or (lambda done, total: None)
    tried: dict[str, list[Outcome]] = {"advice": [], "limits": []}
    if advice and request is None:
        planned = {"advice": changes(simulation.run), "limits": limits(simulation.run)}
        total = sum(len(some) for some in planned.values())
        before = 0
        for name, some in planned.items():
            step = partial(_shifted, report, before, total)
            tried[name] = list(outcomes(simulation.run, some, step))
            before += len(some)
    return Explanation(simulation, found, metric, percentile, request, advice=tried["advice"], limits=tried["limits"])


def explained(simulation: Simulation) -> Simulation:
    """The same simulation with accounts of every request's time."""
    from gnomon.serving.simulate import run

    if simulation.run.cluster.ledger.size:
        return simulation
    return replace(simulation, run=run(simulation.scenario, requests=simulation.given_requests, explained=True))


def _shifted(report: Progress, before: int, total: int, done: int, _: int) -> None:
    report(before + done, total)


def _saved(folder: Path, options: dict[str, Any], on_progress: Progress | None) -> Explanation:
    """The run of a folder, simulated again and compared with what was written down."""
    again = simulate(scenario(folder / "scenario.yaml"), explained=True, on_progress=on_progress)
    note = ""
    try:
        was = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["latency"]["e2e_s"]["p99"]
        now = again.summary.latency.e2e_s.p99
        if was is not None and now is not None and abs(was - now) > 1e-9 * max(abs(was), abs(now)):
            note = f"The folder's P99 of E2E is {was:.6g} s, and {now:.6g} s now: it was made by another version."
    except (OSError, ValueError, KeyError, TypeError):
        note = "The folder has no summary to compare with."
    found = explain_simulation(again, **options, on_progress=on_progress)
    return found.with_note(note) if note else found


def _other_folder(folder: Path) -> Result:
    """A training step or post-training run, made again from its configuration."""
    if (folder / "step.json").exists():
        from gnomon.api.pipeline import pipeline

        try:
            config = json.loads((folder / "step.json").read_text(encoding="utf-8"))["config"]
        except (ValueError, KeyError, TypeError):
            raise ConfigError("does not hold a configuration.", where=str(folder / "step.json")) from None
        return pipeline(config).explain()
    if (folder / "config.yaml").exists():
        from gnomon.api.posttrain import posttrain

        return posttrain(folder / "config.yaml").explain()
    raise ConfigError(
        "is not the folder of a run: it has no scenario.yaml, step.json or config.yaml.",
        where=str(folder),
        fix="Make one with `gnomon simulate --out DIR`.",
    )


@dataclass(frozen=True, eq=False)
class Explanation(Result):
    """Why requests of a simulation were slow."""

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
        """The same with a remark."""
        return replace(self, note=note)

    def __repr__(self) -> str:
        return f"Explanation({' '.join(self.sentences)})"

    @cached_property
    def slow(self) -> Slow:
        """The slow requests against typical ones."""
        from gnomon.serving.explain import slowest

        return slowest(self.accounts, self.metric, self.percentile)

    @property
    def statistic(self) -> str:
        """The percentile of a summary that is nearest: p50, p90, p95 or p99."""
        from gnomon.serving.percentiles import STATISTICS

        known = {float(name[1:]): name for name in STATISTICS if name[0] == "p" and name[1:].isdigit()}
        return known[min(known, key=lambda value: abs(value - self.percentile))]

    @cached_property
    def sentences(self) -> list[str]:
        """The answer in two or three sentences."""
        from gnomon.report.serving import explain_text as words

        if self.request is not None:
            return words.request_sentences(self.accounts, self.request)
        found = words.slow_sentences(self.accounts, self.slow)
        summary = self.simulation.summary
        if self.advice:
            found.append(words.advice_sentence(summary, self.advice, self.metric, self.statistic))
        if self.limits:
            found.append(words.limit_sentence(summary, self.limits))
        return found

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The sentences, causes and figures, as plain data."""
        from gnomon.report.serving.explain_data import explanation_data

        return explanation_data(self)

    def to_dict(self) -> dict[str, Any]:
        """The summary."""
        return self.summary

    def story(self, request: int) -> list[Block]:
        """The story of one request: sentences, its parts, whom it waited behind."""
        from gnomon.report.serving.explain_text import request_blocks

        return request_blocks(self.accounts, request)

    def text(self) -> list[Block]:
        """The answer in sentences, then the tables."""
        from gnomon.report.blocks import Line, Table
        from gnomon.report.serving import explain_text as words

        remarks: list[Block] = [Line(self.note, "warning")] if self.note else []
        if self.request is not None:
            return [*self.story(self.request), *remarks]
        summary = self.simulation.summary
        blocks: list[Block] = [Line(text) for text in self.sentences]
        blocks += words.missed_blocks(self.accounts, summary)
        blocks += [one for one in words.slow_blocks(self.accounts, self.slow) if isinstance(one, Table)]
        if self.advice:
            rows = words.advice_rows(summary, self.advice, self.metric, self.statistic)
            blocks.append(Table(rows, "What would help: each change simulated on the same requests"))
        if self.limits:
            blocks.append(Table(words.limit_rows(summary, self.limits), "What limits it: each resource made free"))
        return blocks + remarks

    def _frames(self) -> Mapping[str, Callable[[], pl.DataFrame]]:
        from gnomon.report.serving.explain_data import part_frame

        return {"parts": partial(part_frame, self.accounts)}

    def _drawings(self) -> Mapping[str, Callable[[], Drawing]]:
        from gnomon.report.serving import explain_figures as figures

        def one() -> Drawing:
            slowest = int(self.accounts.values_s(self.metric)[self.slow.rows].argmax())
            row = self.accounts.row(self.request) if self.request is not None else int(self.slow.rows[slowest])
            return figures.neighbours_figure(self.accounts, row)

        return {
            "causes": lambda: figures.causes_figure(self.accounts, self.metric),
            "slowest": lambda: figures.slowest_figure(self.accounts, self.slow),
            "neighbours": one,
            "roofline": lambda: figures.roofline_figure(self.simulation.run),
        }

    def save(self, folder: str | Path) -> Path:
        """Write explanation.json and parts.parquet: every request's parts in nanoseconds."""
        with folder_written_whole(folder, ("explanation.json", "parts.parquet")) as temporary:
            write_text(temporary / "explanation.json", json.dumps(self.to_dict(), indent=1))
            with written_whole(temporary / "parts.parquet") as path:
                self.frames["parts"].write_parquet(path)
        return Path(folder)
