"""The reference engine on an H200, beside its simulation from the shipped profile.

The simulation gets what the engine was given (arrivals, lengths, limits, KV blocks, CUDA graph sizes) and kernel times
measured on the same card. Two constants, the host's seconds per iteration and per sequence, are fitted once, on a run
of their own, for all others. When an iteration starts relative to an arrival cannot be predicted to the millisecond,
so each run is simulated several times with arrivals moved by a few milliseconds, and the figures are their means.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl

from gnomon import catalog
from gnomon.core.errors import DataError
from gnomon.core.streams import stream
from gnomon.serving.scenario import BatchingConfig, ReplicaConfig, Scenario
from gnomon.serving.simulate import run
from gnomon.serving.state import Floats
from gnomon.timing import TimingConfig, iteration_tables
from gnomon.timing.config import HostConfig
from gnomon.timing.lookup import Shape, stage_s
from gnomon.workload import Requests

RUNS = Path(__file__).parent / "data" / "h200"
PROFILE = Path(__file__).parent.parent / "timing" / "data" / "h200"
CALIBRATION = "calibration"

Metric = Literal["ttft", "tpot", "e2e"]
TOLERANCES: dict[Metric, float] = {"ttft": 0.05, "tpot": 0.03, "e2e": 0.03}
GATED = ("mean", "p99")
STATISTICS = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}

NUM_SIMULATIONS = 8
ARRIVAL_SHIFT_S = 10e-3
"""Arrivals are moved by up to this much: about two iterations."""


class Latencies(NamedTuple):
    """Seconds of every request; TPOT of those with more than one output token."""

    ttft: Floats
    tpot: Floats
    e2e: Floats

    @classmethod
    def of(cls, arrived_s: Floats, first_s: Floats, last_s: Floats, output_tokens: Floats) -> Latencies:
        """From stamps."""
        several = output_tokens > 1
        tpot = (last_s - first_s)[several] / (output_tokens[several] - 1)
        return cls(first_s - arrived_s, tpot, last_s - arrived_s)


@dataclass(frozen=True, eq=False)
class Recording:
    """One measured run."""

    folder: Path

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the engine wrote about the run."""
        try:
            facts: dict[str, Any] = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"cannot be read: {error}.", where=str(self.folder / "run.json")) from None
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
        """Name of the run."""
        return self.folder.name

    @property
    def latencies(self) -> Latencies:
        """As measured."""
        columns = ("arrived_s", "first_token_s", "last_token_s", "output_tokens")
        return Latencies.of(*(self.requests[name].to_numpy().astype(float) for name in columns))

    def timing(self, profile: Path, host: HostConfig) -> TimingConfig:
        """Kernels of the profile, padded to the engine's CUDA graphs."""
        sizes = tuple(self.facts["engine"]["capture_sizes"])
        return TimingConfig(source="profile", path=str(profile), graph_sizes=sizes, host=host)

    def scenario(self, profile: Path, host: HostConfig) -> Scenario:
        """The same engine, simulated."""
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
            timing=self.timing(profile, host),
        )


@dataclass(frozen=True)
class Error:
    """One figure of a run, measured and simulated."""

    metric: Metric
    statistic: str
    measured_s: float
    simulated_s: float
    low_s: float
    high_s: float
    """Where the figure of such a run lies 19 times in 20, so few requests being what they are (percentiles only)."""

    @property
    def relative(self) -> float:
        """(simulated - measured) / measured."""
        return self.simulated_s / self.measured_s - 1.0

    @property
    def verdict(self) -> Literal["ok", "unresolved", "beyond"]:
        """Whether the error is within tolerance; `unresolved` where the measurement itself is not that precise."""
        if self.statistic not in GATED or abs(self.relative) <= TOLERANCES[self.metric]:
            return "ok"
        return "unresolved" if self.low_s <= self.simulated_s <= self.high_s else "beyond"


@dataclass(frozen=True, eq=False)
class Comparison:
    """One run beside its simulations."""

    recording: Recording
    simulated: list[Latencies]
    errors: list[Error]


def recordings(folder: Path = RUNS) -> list[Recording]:
    """The measured runs below `folder`, the calibration left out."""
    found = [Recording(path) for path in sorted(folder.glob("*/")) if path.name != CALIBRATION]
    if not found:
        raise DataError("holds no runs.", where=str(folder), fix="Give a folder that `gnomon engine serve` wrote.")
    return found


def calibrate(recording: Recording, profile: Path = PROFILE) -> HostConfig:
    """Host seconds per iteration and per sequence: what iterations took beyond the profile's kernels, least squares.

    All iterations count, those that the operating system interrupted too: means of latencies contain them.
    """
    steps = recording.iterations
    engine = recording.facts["engine"]
    model = catalog.model(recording.facts["model"]["name"])
    tables = iteration_tables(
        model,
        catalog.device("h200"),
        catalog.Parallelism(),
        config=recording.timing(profile, HostConfig()),
        max_tokens=engine["max_num_batched_tokens"],
        max_sequences=engine["max_num_seqs"],
        max_kv_tokens=engine["max_model_len"],
    ).tables
    kernels = np.array([stage_s(tables, 0, _shape(row), 0) for row in steps.iter_rows(named=True)])
    beyond = (steps["end_s"] - steps["start_s"]).to_numpy() - kernels
    columns = np.stack([np.ones(len(beyond)), steps["sequences"].to_numpy().astype(float)], 1)
    (constant, slope), *_ = np.linalg.lstsq(columns, beyond, rcond=None)
    return HostConfig(per_iteration_s=max(0.0, float(constant)), per_sequence_s=max(0.0, float(slope)))


def compare(recording: Recording, host: HostConfig, profile: Path = PROFILE) -> Comparison:
    """Simulate one run and compare its latencies."""
    scenario = recording.scenario(profile, host)
    rng = stream(0, "arrival shift", recording.name)
    simulated = [_simulate(recording.requests, scenario, rng) for _ in range(NUM_SIMULATIONS)]
    errors = []
    for metric in TOLERANCES:
        measured = getattr(recording.latencies, metric)
        for statistic, percent in STATISTICS.items():
            values = [_figure(getattr(one, metric), percent) for one in simulated]
            low, high = _interval(measured, percent)
            errors.append(Error(metric, statistic, _figure(measured, percent), float(np.mean(values)), low, high))
    return Comparison(recording, simulated, errors)


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


def _figure(values: Floats, percent: float | None) -> float:
    return float(values.mean() if percent is None else np.percentile(values, percent))


def _interval(values: Floats, percent: float | None) -> tuple[float, float]:
    """The order statistics that enclose a percentile 19 times in 20 (normal approximation of the binomial)."""
    if percent is None:
        return float(values.mean()), float(values.mean())
    share, count, ordered = percent / 100.0, len(values), np.sort(values)
    spread = 1.96 * math.sqrt(count * share * (1.0 - share))
    low, high = math.floor(count * share - spread), math.ceil(count * share + spread)
    return float(ordered[max(0, low - 1)]), float(ordered[min(count, high) - 1])


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
    )


def _read(path: Path) -> pl.DataFrame:
    try:
        return pl.read_csv(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"cannot be read: {error}.", where=str(path)) from None
