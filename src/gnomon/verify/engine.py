"""Any recorded engine beside its simulation: arrivals, lengths and stamps from its log, settings from a scenario.

A run is a folder or a file that `gnomon calibrate` reads; beside the requests a folder may hold `scenario.yaml`, the
engine's settings, which may name a policy file of the user's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gnomon.calibration.calibrate import with_facts
from gnomon.calibration.logs import Log, load_of
from gnomon.calibration.read import read_log
from gnomon.calibration.replay import STATISTICS, latencies, matched, simulated_latencies
from gnomon.core.config import load
from gnomon.core.errors import DataError
from gnomon.report.blocks import Block, Line, Table
from gnomon.serving.scenario import Scenario
from gnomon.verify.findings import Error, Findings, Progress, each, latency_errors, proof, tolerated

TOLERANCES = {"ttft": 0.10, "tpot": 0.05, "e2e": 0.05}  # Of means; other statistics are shown, not judged.
SCENARIO = "scenario.yaml"


@dataclass(frozen=True, eq=False)
class Comparison:
    """One load, its repeats together."""

    name: str
    num_requests: int
    errors: list[Error]


def compare(name: str, repeats: list[tuple[Log, Scenario]], tolerances: Mapping[str, float]) -> Comparison:
    stamps = [log.stamps for log, _ in repeats if log.stamps is not None]
    simulated = [simulated_latencies(matched(chosen, log)) for log, chosen in repeats]
    errors = latency_errors([latencies(one) for one in stamps], [simulated], STATISTICS, tolerances, judged=("mean",))
    return Comparison(name, sum(len(one.requests) for one in stamps), errors)


def _scenario_of(run: Path, given: str | Path | None, calibration: str | None) -> Scenario:
    beside = run / SCENARIO if run.is_dir() else run.with_name(SCENARIO)
    path = given if given is not None else beside if beside.is_file() else None
    # Settings are those recorded; without a scenario nothing says that the engine was vLLM.
    more = {"calibration": calibration} if calibration else {} if path is not None else {"engine": "none"}
    return load(Scenario, path, more)


@proof("engine")
def prove(
    *runs: str | Path, scenario: str | Path | None = None, calibration: str | None = None,
    tolerances: Mapping[str, float] | None = None, on_progress: Progress | None = None,
) -> Findings:  # fmt: skip
    """Latencies: recorded runs of any engine, simulated with the settings of `scenario`, of the run's own folder, or of
    the log itself, and a `calibration`."""
    grouped: dict[str, list[tuple[Log, Scenario]]] = {}
    for path in runs:
        log = read_log(path)
        if log.stamps is None:
            fix = "Give a client's file or a folder."
            raise DataError("has no requests with their stamps.", where=log.name, fix=fix)
        given = _scenario_of(Path(path), scenario, calibration)
        grouped.setdefault(load_of(log.name), []).append((log, with_facts(given, [log])))
    allowed = tolerated(TOLERANCES, tolerances)
    return findings([compare(name, repeats, allowed) for name, repeats in each(list(grouped.items()), on_progress)])


def findings(found: list[Comparison]) -> Findings:
    """A table per load; means are judged."""
    blocks: list[Block] = []
    for one in found:
        blocks += [
            Line(f"{one.name}: {one.num_requests:,} requests"),
            Table([{name: value for name, value in error.row.items() if name != "peer"} for error in one.errors]),
        ]
    rows = [{"run": one.name, **error.data} for one in found for error in one.errors]
    failures = [f"{one.name} {error.words}" for one in found for error in one.errors if error.is_beyond]
    return Findings(records=found, rows=rows, data={"runs": rows}, blocks=blocks, failures=failures)
