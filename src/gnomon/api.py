"""The Python face: the words of the command line as functions.

import gnomon

result = gnomon.simulate(model="llama-3-8b", device="h100", **{"workload.rate": 20})
result.summary.latency.ttft_s.p99
result.requests            # a polars data frame
result.figures["ttft"]     # a plotly figure
result.save("runs/mine")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.core.config import load
from gnomon.core.errors import UnknownNameError
from gnomon.serving.scenario import Scenario

if TYPE_CHECKING:
    import polars as pl

    from gnomon.serving.metrics import Summary
    from gnomon.serving.simulate import Run

ScenarioLike = Scenario | Mapping[str, Any] | str | Path | None
Progress = Callable[[int, int], None]

DEFAULT_RATE = 27.0
"""Requests per second of the default scenario: about 80 % of what Llama-3-8B on one H100 takes up of chat-1m
(33.5 per second under vllm_v1: `gnomon simulate --workload.rate 40` says so)."""


def scenario(given: ScenarioLike = None, **overrides: Any) -> Scenario:
    """A scenario from a YAML file, a mapping or nothing, with overrides on top.

    An override is named by the field's dotted path (`**{"replica.tensor_parallel": 2}`), with `__` for the dot where
    a keyword needs it (`replica__tensor_parallel=2`), or is a whole section (`workload={"rate": 3}`).
    """
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    if isinstance(given, Scenario):
        given = given.model_dump(mode="json")
    if given is None and _may_set_rate(dotted):
        dotted.setdefault("workload.rate", DEFAULT_RATE)
    if given is None or isinstance(given, str | Path):
        return load(Scenario, given, dotted)
    return load(Scenario, None, {**given, **dotted})


def _may_set_rate(overrides: Mapping[str, Any]) -> bool:
    """Whether nothing was said about arrivals."""
    said = ("workload.rate", "workload.arrivals", "workload.trace")
    return "workload" not in overrides and not any(key.startswith(said) for key in overrides)


def simulate(given: ScenarioLike = None, *, on_progress: Progress | None = None, **overrides: Any) -> Result:
    """Simulate a scenario: a YAML file, a mapping, a `Scenario`, or the default one, with overrides on top."""
    from gnomon.serving.simulate import run

    return Result(run(scenario(given, **overrides), on_progress=on_progress))


@dataclass(frozen=True, eq=False)
class Result:
    """What a simulation gives: the summary at once, tables and figures when they are asked for."""

    run: Run = field(repr=False)
    """The engine's records."""

    @property
    def scenario(self) -> Scenario:
        """What was simulated, with every default filled in."""
        return self.run.scenario

    @cached_property
    def summary(self) -> Summary:
        """Every figure, as plain data."""
        from gnomon.serving.metrics import summarize

        return summarize(self.run)

    @cached_property
    def requests(self) -> pl.DataFrame:
        """One row per request."""
        from gnomon.report.serving_frames import request_frame

        return request_frame(self.run)

    @cached_property
    def iterations(self) -> pl.DataFrame:
        """One row per iteration and pipeline stage."""
        from gnomon.report.serving_frames import iteration_frame

        return iteration_frame(self.run)

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Plotly figures by name: ttft, tbt, tpot, e2e, queue, rates, tokens, kv, batch_size, batch_tokens."""
        from plotly.graph_objects import Figure

        from gnomon.report.serving_figures import figures

        return {name: Figure(drawn) for name, drawn in figures(self.run, self.summary).items()}

    def save(self, folder: str | Path, extras: tuple[str, ...] = ()) -> Path:
        """Write the scenario, the summary, the tables, the trace and the report into `folder`.

        `extras`: "csv" (tables as CSV too), "events" (every request's events as JSON), "operators" (operator times).
        """
        from gnomon.report.serving_files import EXTRAS, write_run

        for extra in extras:
            if extra not in EXTRAS:
                raise UnknownNameError("extra", extra, EXTRAS)
        return write_run(self.run, self.summary, folder, extras)
