"""Any recorded engine beside its simulation: arrivals, lengths and stamps from its log, settings from a scenario.

A run is a folder or a file that `gnomon calibrate` reads; beside the requests a folder may hold `scenario.yaml`, the
engine's settings, which may name a policy file of the user's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gnomon.calibration.calibrate import load_of, with_facts
from gnomon.calibration.logs import Log
from gnomon.calibration.read import read_log
from gnomon.calibration.replay import Figures, figures, matched
from gnomon.core.config import load
from gnomon.core.errors import DataError
from gnomon.serving.scenario import Scenario

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
