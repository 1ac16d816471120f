"""The reference engine on an H200, beside its simulation from the shipped profile (docs/h200-validation.md).

When an iteration starts relative to an arrival cannot be predicted to the millisecond, so each run is simulated several
times with arrivals moved by a few milliseconds, and the figures are their means. The folders `name`, `name.2` ... are
one run; runs with a calibration of their own lie in a folder beside the others.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.calibration.calibrate import with_facts
from gnomon.calibration.kernels import kernel_seconds
from gnomon.calibration.logs import Log, Stamps, load_of
from gnomon.calibration.read import read_log
from gnomon.calibration.replay import STATISTICS, Latencies, latencies, matched, simulated_latencies
from gnomon.core.config import build
from gnomon.core.errors import ConfigError, DataError
from gnomon.core.files import written_whole
from gnomon.core.streams import stream
from gnomon.core.text import read_json
from gnomon.report.blocks import Table
from gnomon.serving.scenario import Scenario
from gnomon.timing.host import HostConfig
from gnomon.timing.sources.profile.native import read_manifest
from gnomon.verify.findings import Error, Findings, Progress, each, latency_errors, proof

RUNS = Path(__file__).parent / "data" / "h200"
PROFILE = Path(__file__).parent.parent / "timing" / "data" / "h200"
CALIBRATION = "calibration"

TOLERANCES = {"ttft": 0.05, "tpot": 0.03, "e2e": 0.03}
GATED = ("mean", "p99")
TOLERANCES_APART = dict.fromkeys(TOLERANCES, 0.05)
"""Of runs in a folder of their own: they are short, and judged by their means."""

NUM_SIMULATIONS = 8
ARRIVAL_SHIFT_S = 10e-3  # Arrivals are moved by up to this much: about two iterations.


@dataclass(frozen=True, eq=False)
class Recording:
    folder: Path

    @cached_property
    def log(self) -> Log:
        return read_log(self.folder)

    @property
    def stamps(self) -> Stamps:
        if self.log.stamps is None:
            raise DataError("holds no requests.", where=str(self.folder))
        return self.log.stamps

    @property
    def is_apart(self) -> bool:
        """Whether it lies in a folder of runs with a calibration of their own, beside others."""
        return (self.folder.parent.parent / CALIBRATION).is_dir()

    @property
    def name(self) -> str:
        """Name of the run, without the number of the repeat."""
        name = load_of(self.folder.name)
        return f"{self.folder.parent.name}/{name}" if self.is_apart else name

    def clock(self, profile: Path) -> float:
        """The mean clock of the run over that of the profile; 1 where either is unknown."""
        known = read_manifest(profile).get("clocks") or {}
        mean, full = read_json(self.folder / "run.json").get("clocks", {}).get("sm_mhz_mean"), known.get("sm_mhz")
        return min(1.0, mean / full) if mean and full else 1.0

    def scenario(self, profile: Path, host: HostConfig, *, full_clock: bool = False) -> Scenario:
        """The recorded engine as a scenario: kernels of the profile at the run's clock (or full clock)."""
        timing = {"source": "profile", "path": str(profile), "clock": 1.0 if full_clock else self.clock(profile)}
        timing |= {"host": host.model_dump(exclude_unset=True)}
        given = {"engine": "none", "batching": {"policy": "vllm_v1"}, "timing": timing}
        return with_facts(build(Scenario, given), [self.log])


@dataclass(frozen=True, eq=False)
class Comparison:
    """One run beside its simulations; all its repeats together."""

    name: str
    measured: list[Latencies]
    simulated: list[list[Latencies]]
    errors: list[Error]
    clock: float
    """The card's clock over that of the profile."""

    @property
    def num_requests(self) -> int:
        return sum(len(one.e2e) for one in self.measured)


def runs_in(folder: Path = RUNS) -> list[list[Recording]]:
    """The measured runs below `folder`, the repeats of each together, the calibrations left out."""
    sets = [folder, *(path.parent for path in sorted(folder.glob(f"*/{CALIBRATION}/")))]
    paths = [path for one in sets for path in sorted(one.glob("*/")) if path not in sets and path.name != CALIBRATION]
    found = [Recording(path) for path in paths]
    if not found:
        raise DataError("holds no runs.", where=str(folder), fix="Give a folder that `gnomon engine serve` wrote.")
    return [list(repeats) for _, repeats in groupby(found, key=lambda one: one.name)]


def calibrate(recording: Recording, profile: Path = PROFILE, *, full_clock: bool = False) -> HostConfig:
    """Host seconds per iteration and per sequence: what iterations took beyond the profile's kernels, least squares.

    All iterations count, those that the operating system interrupted too, each as often as it has sequences: so they
    do in the latencies of requests.
    """
    steps, scenario = recording.log.steps, recording.scenario(profile, HostConfig(), full_clock=full_clock)
    if steps is None:
        raise DataError("holds no iterations.", where=str(recording.folder))
    beyond = steps.seconds - kernel_seconds(scenario, recording.log)
    sequences = steps.sequences.astype(float)
    columns, weight = np.stack([np.ones(len(beyond)), sequences], 1), np.sqrt(sequences)
    (constant, slope), *_ = np.linalg.lstsq(columns * weight[:, None], beyond * weight, rcond=None)
    if slope < 0.0:
        constant, slope = np.average(beyond, weights=sequences), 0.0
    return HostConfig(per_iteration_s=max(0.0, float(constant)), per_sequence_s=float(slope))


def compare(
    repeats: list[Recording], host: HostConfig, profile: Path = PROFILE, *, full_clock: bool = False
) -> Comparison:
    rng = stream(0, "arrival shift", repeats[0].name)
    measured = [latencies(one.stamps) for one in repeats]
    scenarios = [one.scenario(profile, host, full_clock=full_clock) for one in repeats]
    simulated = [
        [_simulate(one, scenario, rng) for one, scenario in zip(repeats, scenarios, strict=True)]
        for _ in range(NUM_SIMULATIONS)
    ]
    judged = (TOLERANCES_APART, ("mean",)) if repeats[0].is_apart else (TOLERANCES, GATED)
    errors = latency_errors(measured, simulated, STATISTICS, *judged)
    clock = float(np.mean([scenario.timing.clock for scenario in scenarios]))
    return Comparison(repeats[0].name, measured, simulated, errors, clock)


def _simulate(one: Recording, scenario: Scenario, rng: np.random.Generator) -> Latencies:
    given = one.stamps.requests
    arrived = given.arrival_s + rng.uniform(0.0, ARRIVAL_SHIFT_S, len(given))
    order = np.argsort(arrived, kind="stable")
    moved = replace(given.take(order), arrival_s=arrived[order])
    return simulated_latencies(matched(scenario, replace(one.log, stamps=replace(one.stamps, requests=moved))))


@proof("h200")
def prove(
    *, runs: str | Path | None = None, profile: str | Path | None = None, only: str = "", full_clock: bool = False,
    on_progress: Progress | None = None,
) -> Findings:  # fmt: skip
    """The reference engine on an H200: recorded `runs` (the shipped ones unless given) beside their simulation."""
    folder, bundle = Path(runs or RUNS), Path(profile or PROFILE)
    recorded = runs_in(folder)
    wanted = [one for one in recorded if only in one[0].name]
    if not wanted:
        known = ", ".join(one[0].name for one in recorded)
        raise ConfigError(f"no run is called like {only!r}.", where="--only", fix=f"Known: {known}.")
    folders = dict.fromkeys(one[0].folder.parent for one in wanted)
    hosts = {at: calibrate(Recording(at / CALIBRATION), bundle, full_clock=full_clock) for at in folders}
    compared = [
        compare(one, hosts[one[0].folder.parent], bundle, full_clock=full_clock) for one in each(wanted, on_progress)
    ]
    return findings(compared, {at.name: host for at, host in hosts.items()})


def findings(found: list[Comparison], hosts: dict[str, HostConfig]) -> Findings:
    """One row per run, the error of every figure in it."""
    each_host = ", ".join(
        f"{host.per_iteration_s * 1e6:.0f} µs and {host.per_sequence_s * 1e6:.2f} µs per sequence ({name})"
        for name, host in hosts.items()
    )
    caption = (
        f"Errors in %. Host: {each_host}. ! = beyond tolerance (mean and P99: TPOT and E2E 3 %, TTFT 5 %; "
        f"runs in a folder of their own: means 5 %)."
    )
    runs = {one.name: [error.data for error in one.errors] for one in found}
    return Findings(
        records=found,
        rows=[{"run": name, **row} for name, rows in runs.items() for row in rows],
        data={"hosts": {name: host.model_dump() for name, host in hosts.items()}, "runs": runs},
        blocks=[Table([_row(one) for one in found], "Simulated against measured", caption)],
        failures=[f"{one.name} {error.words}" for one in found for error in one.errors if error.is_beyond],
        pictures={"cdf.svg": partial(write_cdfs, found)},
    )


def _row(one: Comparison) -> dict[str, Any]:
    row: dict[str, Any] = {"run": one.name, "requests": one.num_requests, "clock": f"{one.clock:.3f}"}
    for error in one.errors:
        row[f"{error.metric} {error.statistic}"] = f"{100 * error.relative:+z.1f}{'!' if error.is_beyond else ''}"
    return row


def write_cdfs(found: list[Comparison], path: Path) -> Path:
    """One row per run, one column per metric; black is measured, the coloured dashes are simulated."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6 * len(TOLERANCES), 1.4 * len(found)), layout="constrained")
    axes, shares = figure.subplots(len(found), len(TOLERANCES), squeeze=False), np.linspace(0.0, 1.0, 101)
    for row, one in zip(axes, found, strict=True):
        for panel, metric in zip(row, TOLERANCES, strict=True):
            both = (one.measured, [part for turn in one.simulated for part in turn])
            for parts, (colour, dash) in zip(both, (("#222222", "-"), ("#e4572e", "--")), strict=True):
                values = np.concatenate([getattr(part, metric) for part in parts])
                panel.plot(1e3 * np.quantile(values, 0.998 * shares), shares, dash, color=colour, linewidth=1.2)
            panel.set_title(f"{one.name}: {metric.upper()} (ms)", fontsize=7)
            panel.tick_params(labelsize=6, labelleft=False)
    with written_whole(path) as temporary:
        figure.savefig(temporary, format="svg")
    return path
