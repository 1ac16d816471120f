"""The reference engine on an H200, beside its simulation from the shipped profile.

The simulation gets what the engine was given (arrivals, lengths, limits, KV blocks, CUDA graph sizes), kernel times
measured on the same card, and the card's mean clock during the run, which a power cap lowers near capacity. Two
constants, the host's seconds per iteration and per sequence, are fitted once, on a run of their own, for all others.
When an iteration starts relative to an arrival cannot be predicted to the millisecond, so each run is simulated several
times with arrivals moved by a few milliseconds, and the figures are their means.

A load that few requests make up may be measured more than once: the folders `name`, `name.2` ... are one run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from gnomon import catalog
from gnomon.calibration.replay import STATISTICS, Latencies, statistic
from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError, DataError
from gnomon.core.files import write_text
from gnomon.core.streams import stream
from gnomon.core.text import read_json
from gnomon.report.blocks import Table
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import BatchingConfig, ReplicaConfig
from gnomon.timing import TimingConfig, iteration_tables
from gnomon.timing.host import HostConfig
from gnomon.timing.lookup import Shape, stage_s
from gnomon.timing.sources.profile.native import read_manifest
from gnomon.verify.findings import Findings, Progress, each, proof
from gnomon.workload import Requests

RUNS = Path(__file__).parent / "data" / "h200"
PROFILE = Path(__file__).parent.parent / "timing" / "data" / "h200"
CALIBRATION = "calibration"

Metric = Literal["ttft", "tpot", "e2e"]
TOLERANCES: dict[Metric, float] = {"ttft": 0.05, "tpot": 0.03, "e2e": 0.03}
GATED = ("mean", "p99")

NUM_SIMULATIONS = 8
ARRIVAL_SHIFT_S = 10e-3
"""Arrivals are moved by up to this much: about two iterations."""


@dataclass(frozen=True, eq=False)
class Recording:
    """One measured run."""

    folder: Path

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the engine wrote about the run."""
        facts: dict[str, Any] = read_json(self.folder / "run.json")
        return facts

    @cached_property
    def requests(self) -> pl.DataFrame:
        """Arrivals, lengths and stamps."""
        return _read(self.folder / "requests.csv.gz")

    @cached_property
    def iterations(self) -> pl.DataFrame:
        """What every iteration contained, and how long it took."""
        return _read(self.folder / "iterations.csv.gz")

    @property
    def name(self) -> str:
        """Name of the run, without the number of the repeat."""
        return re.sub(r"\.\d+$", "", self.folder.name)

    @property
    def latencies(self) -> Latencies:
        """As measured."""
        columns = ("arrived_s", "first_token_s", "last_token_s", "output_tokens")
        return Latencies.of(*(self.requests[name].to_numpy().astype(float) for name in columns))

    def timing(self, profile: Path, host: HostConfig, *, full_clock: bool = False) -> TimingConfig:
        """Kernels of the profile at the run's clock (or full clock), padded to the engine's CUDA graphs."""
        sizes = tuple(self.facts["engine"]["capture_sizes"])
        clock = 1.0 if full_clock else self.clock(profile)
        return TimingConfig(source="profile", path=str(profile), graph_sizes=sizes, host=host, clock=clock)

    def clock(self, profile: Path) -> float:
        """The mean clock of the run over that of the profile; 1 where either is unknown."""
        known = read_manifest(profile).get("clocks") or {}
        mean, full = self.facts.get("clocks", {}).get("sm_mhz_mean"), known.get("sm_mhz")
        return min(1.0, mean / full) if mean and full else 1.0

    def scenario(self, profile: Path, host: HostConfig, *, full_clock: bool = False) -> Scenario:
        """The recorded engine as a scenario."""
        engine = self.facts["engine"]
        return Scenario(
            model=self.facts["model"]["name"],
            device="h200",
            replica=ReplicaConfig(num_kv_blocks=engine["num_kv_blocks"], max_request_tokens=engine["max_model_len"]),
            batching=BatchingConfig(
                policy="vllm_v1",
                max_sequences=engine["max_num_seqs"],
                max_batch_tokens=engine["max_num_batched_tokens"],
                block_size=engine["block_size"],
                prefix_cache=False,
                reserve_full_prompt=False,
            ),
            timing=self.timing(profile, host, full_clock=full_clock),
        )


@dataclass(frozen=True)
class Error:
    """One figure of a run, measured and simulated."""

    metric: Metric
    statistic: str
    measured_s: float
    simulated_s: float

    @property
    def relative(self) -> float:
        """(simulated - measured) / measured."""
        return self.simulated_s / self.measured_s - 1.0

    @property
    def is_beyond(self) -> bool:
        """Whether the figure is one that is judged, and off by more than its tolerance."""
        return self.statistic in GATED and abs(self.relative) > TOLERANCES[self.metric]


@dataclass(frozen=True, eq=False)
class Comparison:
    """One run beside its simulations; all its repeats together."""

    name: str
    measured: Latencies
    simulated: list[Latencies]
    errors: list[Error]
    clock: float
    """The card's clock over that of the profile."""

    @property
    def num_requests(self) -> int:
        """Requests measured."""
        return len(self.measured.e2e)


def runs_in(folder: Path = RUNS) -> list[list[Recording]]:
    """The measured runs below `folder`, the repeats of each together, the calibration left out."""
    found = [Recording(path) for path in sorted(folder.glob("*/")) if path.name != CALIBRATION]
    if not found:
        raise DataError("holds no runs.", where=str(folder), fix="Give a folder that `gnomon engine serve` wrote.")
    return [list(repeats) for _, repeats in groupby(found, key=lambda one: one.name)]


def calibrate(recording: Recording, profile: Path = PROFILE, *, full_clock: bool = False) -> HostConfig:
    """Host seconds per iteration and per sequence: what iterations took beyond the profile's kernels, least squares.

    All iterations count, those that the operating system interrupted too, each as often as it has sequences: so they
    do in the latencies of requests.
    """
    steps = recording.iterations
    engine = recording.facts["engine"]
    model = catalog.model(recording.facts["model"]["name"])
    tables = iteration_tables(
        model,
        catalog.device("h200"),
        catalog.Parallelism(),
        config=recording.timing(profile, HostConfig(), full_clock=full_clock),
        max_tokens=engine["max_num_batched_tokens"],
        max_sequences=engine["max_num_seqs"],
        max_kv_tokens=engine["max_model_len"],
    ).tables
    kernels = np.array([stage_s(tables, 0, _shape(row), 0) for row in steps.iter_rows(named=True)])
    beyond = (steps["end_s"] - steps["start_s"]).to_numpy() - kernels
    sequences = steps["sequences"].to_numpy().astype(float)
    columns, weight = np.stack([np.ones(len(beyond)), sequences], 1), np.sqrt(sequences)
    (constant, slope), *_ = np.linalg.lstsq(columns * weight[:, None], beyond * weight, rcond=None)
    if slope < 0.0:
        constant, slope = np.average(beyond, weights=sequences), 0.0
    return HostConfig(per_iteration_s=max(0.0, float(constant)), per_sequence_s=float(slope))


def compare(
    repeats: list[Recording], host: HostConfig, profile: Path = PROFILE, *, full_clock: bool = False
) -> Comparison:
    """Simulate one run and compare its latencies."""
    rng = stream(0, "arrival shift", repeats[0].name)
    measured = _together([one.latencies for one in repeats])
    scenarios = [one.scenario(profile, host, full_clock=full_clock) for one in repeats]
    simulated = [
        _together([_simulate(one.requests, scenario, rng) for one, scenario in zip(repeats, scenarios, strict=True)])
        for _ in range(NUM_SIMULATIONS)
    ]
    errors = []
    for metric in TOLERANCES:
        for name, percent in STATISTICS.items():
            values = [statistic(getattr(one, metric), percent) for one in simulated]
            errors.append(Error(metric, name, statistic(getattr(measured, metric), percent), float(np.mean(values))))
    clock = float(np.mean([scenario.timing.clock for scenario in scenarios]))
    return Comparison(repeats[0].name, measured, simulated, errors, clock)


def _together(parts: list[Latencies]) -> Latencies:
    return Latencies(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _simulate(rows: pl.DataFrame, scenario: Scenario, rng: np.random.Generator) -> Latencies:
    arrived = rows["arrived_s"].to_numpy() + rng.uniform(0.0, ARRIVAL_SHIFT_S, len(rows))
    order = np.argsort(arrived, kind="stable")
    output = rows["output_tokens"].to_numpy()[order].astype(np.int32)
    requests = Requests(
        arrival_s=arrived[order],
        prompt_tokens=rows["prompt_tokens"].to_numpy()[order].astype(np.int32),
        output_tokens=output,
        session=np.full(len(rows), -1, np.int32),
        priority=np.zeros(len(rows), np.int8),
        prefix_offsets=np.zeros(len(rows) + 1, np.int64),
        prefix_hashes=np.zeros(0, np.int64),
    )
    done = run(scenario, requests=requests).cluster.requests
    return Latencies.of(arrived[order], done["first_token_s"], done["finished_s"], output.astype(float))


def _shape(row: dict[str, Any]) -> Shape:
    """What an iteration contained; recorded KV lengths are without the token that it adds."""
    decodes = row["decodes"]
    return Shape(
        tokens=row["tokens"],
        sequences=row["sequences"],
        chunks_squared=float(row["chunks_squared"]),
        chunks_kv=float(row["chunks_kv"]),
        decodes=decodes,
        decode_kv=float(row["decode_kv"] + decodes),
        decode_kv_max=float(row["decode_kv_max"] + (decodes > 0)),
        decode_tokens=decodes,
        prompt_kv=0.0,
    )


def _read(path: Path) -> pl.DataFrame:
    try:
        return pl.read_csv(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"cannot be read: {error}.", where=str(path)) from None


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
    host = calibrate(Recording(folder / CALIBRATION), bundle, full_clock=full_clock)
    return told([compare(one, host, bundle, full_clock=full_clock) for one in each(wanted, on_progress)], host)


WIDTH, HEIGHT, MARGIN, LABEL = 230, 120, 14, 26
MEASURED, SIMULATED = "#222222", "#e4572e"


def told(found: list[Comparison], host: HostConfig) -> Findings:
    """One row per run, the error of every figure in it."""
    caption = (
        f"Errors in %. Host: {host.per_iteration_s * 1e6:.0f} µs, {host.per_sequence_s * 1e6:.2f} µs per sequence. "
        f"! = beyond tolerance (mean and P99: TPOT and E2E 3 %, TTFT 5 %)."
    )
    runs = {one.name: _as_data(one) for one in found}
    return Findings(
        records=found,
        rows=[{"run": name, **row} for name, rows in runs.items() for row in rows],
        data={"host": host.model_dump(), "runs": runs},
        blocks=[Table([_row(one) for one in found], "Simulated against measured", caption)],
        failures=[
            f"{c.name} {e.metric} {e.statistic} ({e.relative:+z.1%})" for c in found for e in c.errors if e.is_beyond
        ],
        pictures={"cdf.svg": partial(write_cdfs, found)},
    )


def _row(one: Comparison) -> dict[str, Any]:
    row: dict[str, Any] = {"run": one.name, "requests": one.num_requests, "clock": f"{one.clock:.3f}"}
    for error in one.errors:
        row[f"{error.metric} {error.statistic}"] = f"{100 * error.relative:+z.1f}{'!' if error.is_beyond else ''}"
    return row


def _as_data(one: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "metric": error.metric,
            "statistic": error.statistic,
            "measured_s": error.measured_s,
            "simulated_s": error.simulated_s,
            "error": error.relative,
            "is_beyond": error.is_beyond,
        }
        for error in one.errors
    ]


def write_cdfs(found: list[Comparison], path: Path) -> Path:
    """One row per run, one column per metric; black is measured, the coloured dashes are simulated."""
    width = len(TOLERANCES) * WIDTH + MARGIN
    height = len(found) * HEIGHT + LABEL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="10">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{MARGIN}" y="16" fill="{MEASURED}">measured</text>',
        f'<text x="{MARGIN + 60}" y="16" fill="{SIMULATED}">simulated (dashed)</text>',
    ]
    for row, one in enumerate(found):
        for column, metric in enumerate(TOLERANCES):
            measured = getattr(one.measured, metric)
            simulated = np.concatenate([getattr(latencies, metric) for latencies in one.simulated])
            title = f"{one.name}: {metric.upper()}"
            parts.append(_panel(column * WIDTH + MARGIN, row * HEIGHT + LABEL, title, measured, simulated))
    parts.append("</svg>\n")
    return write_text(path, "\n".join(parts))


def _panel(x: float, y: float, title: str, measured: Floats, simulated: Floats) -> str:
    inner_width, inner_height = WIDTH - 2 * MARGIN, HEIGHT - 44
    largest = float(max(np.percentile(measured, 99.8), np.percentile(simulated, 99.8)))
    lines = [
        f'<g transform="translate({x},{y})"><text x="0" y="10">{title}</text>',
        f'<rect x="0" y="14" width="{inner_width}" height="{inner_height}" fill="none" stroke="#ccc"/>',
        f'<text x="0" y="{inner_height + 25}" fill="#777">0</text>',
        f'<text x="{inner_width}" y="{inner_height + 25}" fill="#777" text-anchor="end">{largest * 1e3:.4g} ms</text>',
    ]
    for values, colour, dash in ((measured, MEASURED, ""), (simulated, SIMULATED, ' stroke-dasharray="4 3"')):
        shares = np.linspace(0.0, 1.0, 101)
        at = np.minimum(np.quantile(values, shares) / largest, 1.0) * inner_width
        points = " ".join(f"{a:.1f},{14 + inner_height * (1 - s):.1f}" for a, s in zip(at, shares, strict=True))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4"{dash}/>')
    return "\n".join([*lines, "</g>"])
