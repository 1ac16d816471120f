"""Any recorded engine beside its simulation: arrivals, lengths and stamps from its log, settings from a scenario.

A run is a folder or a file that `gnomon calibrate` reads; beside the requests a folder may hold `scenario.yaml`, the
engine's settings, which may name a policy file of the user's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon.calibration.calibrate import with_facts
from gnomon.calibration.logs import Log, load_of
from gnomon.calibration.read import read_log
from gnomon.calibration.replay import Figures, figures, matched
from gnomon.core import units
from gnomon.core.config import load
from gnomon.core.errors import DataError
from gnomon.report.blocks import Block, Line, Table
from gnomon.serving.scenario import Scenario
from gnomon.verify.findings import Findings, Progress, each, proof

TOLERANCES = {"ttft": 0.10, "tpot": 0.05, "e2e": 0.05}
"""Of means; other statistics are shown, not judged."""
SCENARIO = "scenario.yaml"


@dataclass(frozen=True, eq=False)
class Comparison:
    """One load, its repeats together."""

    name: str
    num_requests: int
    figures: Figures

    def beyond(self, tolerances: dict[str, float]) -> list[str]:
        """The metrics whose mean misses its tolerance."""
        return [metric for metric in self.figures.values if abs(self.figures.error(metric)) > tolerances[metric]]


def compare(
    runs: Sequence[str | Path], scenario: str | Path | None = None, calibration: str | None = None
) -> list[Comparison]:
    """Simulate every load with the settings of `scenario`, of its own folder, or of the log itself."""
    logs = [(read_log(path), _scenario_of(Path(path), scenario, calibration)) for path in runs]
    grouped: dict[str, list[tuple[Log, Scenario]]] = {}
    for log, given in logs:
        if log.stamps is None:
            raise DataError(
                "has no requests with their stamps.", where=log.name, fix="Give a client's file or a folder."
            )
        grouped.setdefault(load_of(log.name), []).append((log, with_facts(given, [log])))
    found = []
    for name, repeats in grouped.items():
        pairs = [(log.stamps, matched(chosen, log)) for log, chosen in repeats if log.stamps is not None]
        found.append(Comparison(name, sum(len(stamps.requests) for stamps, _ in pairs), figures(pairs)))
    return found


def _scenario_of(run: Path, given: str | Path | None, calibration: str | None) -> Scenario:
    beside = run / SCENARIO if run.is_dir() else run.with_name(SCENARIO)
    path = given if given is not None else beside if beside.is_file() else None
    return load(Scenario, path, {"calibration": calibration} if calibration else None)


@proof("engine")
def prove(
    *runs: str | Path, scenario: str | Path | None = None, calibration: str | None = None,
    tolerances: Mapping[str, float] | None = None, on_progress: Progress | None = None,
) -> Findings:  # fmt: skip
    """Latencies: recorded runs of any engine, simulated with the settings of `scenario` and a `calibration`."""
    found = [one for logs in each([runs], on_progress) for one in compare(logs, scenario, calibration)]
    return told(found, {metric: (tolerances or {}).get(metric, usual) for metric, usual in TOLERANCES.items()})


NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


def told(found: list[Comparison], tolerances: dict[str, float]) -> Findings:
    """A table per load; means are judged."""
    blocks: list[Block] = []
    for one in found:
        blocks += [Line(f"{one.name}: {one.num_requests:,} requests"), Table(_rows(one, tolerances))]
    rows = [{"run": one.name, **row} for one in found for row in _data(one)]
    failures = [
        f"{one.name} {NAMES[metric]} mean ({one.figures.error(metric):+z.1%})"
        for one in found
        for metric in one.beyond(tolerances)
    ]
    return Findings(records=found, rows=rows, data={"runs": rows}, blocks=blocks, failures=failures)


def _rows(one: Comparison, tolerances: dict[str, float]) -> list[dict[str, Any]]:
    rows = []
    for metric, statistics in one.figures.values.items():
        for name, (recorded, simulated) in statistics.items():
            error = one.figures.error(metric, name)
            judged = "yes" if abs(error) <= tolerances[metric] else f"no ({tolerances[metric]:.0%})"
            rows.append({
                "metric": NAMES[metric], "of": name, "recorded": units.seconds(recorded),
                "simulated": units.seconds(simulated), "error": f"{error:+z.1%}",
                "within": judged if name == "mean" else None,
            })  # fmt: skip
    return rows


def _data(one: Comparison) -> list[dict[str, Any]]:
    return [
        {"metric": metric, "of": name, "recorded_s": recorded, "simulated_s": simulated,
         "error": one.figures.error(metric, name)}
        for metric, statistics in one.figures.values.items()
        for name, (recorded, simulated) in statistics.items()
    ]  # fmt: skip
