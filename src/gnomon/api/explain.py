"""Why is it slow: an explanation of a result, a scenario, or the folder of a run."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from gnomon.api.explanation import ExplainOptions, Explanation
from gnomon.api.pipeline import pipeline
from gnomon.api.posttrain import posttrain
from gnomon.api.result import Result
from gnomon.api.serving import Scenario, Simulation, scenario, simulate
from gnomon.core.errors import ConfigError

__all__ = ["ExplainOptions", "Explanation", "explain"]

Explainable = Result | Scenario | Mapping[str, Any] | str | Path


def explain(given: Explainable, **asked: Unpack[ExplainOptions]) -> Result:
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
            return replace(again.explain(**asked), note=note)
    return simulate(scenario(given), explained=True, on_progress=asked.get("on_progress")).explain(**asked)


def _refuse(asked: ExplainOptions) -> None:
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
