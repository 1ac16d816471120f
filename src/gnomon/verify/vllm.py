"""Recorded vLLM servers, simulated from the kernels of their GPU and compared latency by latency.

The simulation gets what the server was given (arrivals, lengths, limits, KV blocks); no constant is fitted per
run. Where a recording has no token ids, only a request's own blocks can be found again in the prefix cache.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from gnomon import catalog
from gnomon.calibration.replay import Latencies
from gnomon.catalog import Model
from gnomon.catalog.devices import DEVICES, Dtype
from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError, DataError
from gnomon.report import look, page
from gnomon.report.blocks import Block, Line, Plot, Section, Table
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.run.simulate import Run, run
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import BatchingConfig, ReplicaConfig, RouterConfig
from gnomon.serving.scenario.engine_presets import engine
from gnomon.timing import TimingConfig
from gnomon.timing.config import CAPTURE_SIZES
from gnomon.timing.sources.profile.servingsim import profiled_devices
from gnomon.verify.findings import Error, Findings, Progress, each, latency_errors, proof, tolerated
from gnomon.verify.vllm_recording import Recording, read_recording

TOLERANCES = {"ttft": 0.03, "tpot": 0.01, "e2e": 0.01, "throughput": 0.01}
STATISTICS = {"mean": None, "median": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}

# The defaults of vLLM 0.19 for what a recording does not say.
_MAX_SEQUENCES, _MAX_BATCHED_TOKENS, _MEMORY_UTILIZATION = 256, 2048, 0.9
_DTYPES: dict[str, Dtype] = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "auto": "bf16", "fp8": "fp8"}


@dataclass(frozen=True, eq=False)
class Comparison:
    """One recorded server beside its simulation."""

    recording: Recording
    device: str
    simulated: Run
    errors: list[Error]

    @property
    def beyond(self) -> list[Error]:
        """What misses its tolerance."""
        return [error for error in self.errors if error.is_beyond]


def compare(
    folder: str | Path, profiles: str | Path, device: str | None = None, tolerances: Mapping[str, float] = TOLERANCES,
) -> Comparison:  # fmt: skip
    """Simulate the server recorded in `folder` with the kernels measured in `profiles`."""
    if not Path(profiles).is_dir():
        raise DataError("no such folder.", where=str(profiles), fix="--profiles names a folder of measured kernels.")
    recording = read_recording(folder)
    model = catalog.model(recording.model)
    chosen = device_of(recording, model, profiles, device)
    simulated = run(scenario_of(recording, model, profiles, chosen), requests=recording.requests)
    requests = simulated.cluster.requests
    if len(requests) != len(recording.requests) or not (requests.status == FINISHED).all():
        raise DataError(
            "the simulated server cannot serve every recorded request.",
            where=str(recording.folder),
            fix="Check num_gpu_blocks and max_model_len in meta.json.",
        )
    return Comparison(recording, chosen, simulated, errors_of(recording, simulated, tolerances))


def device_of(recording: Recording, model: Model, profiles: str | Path, device: str | None) -> str:
    """The GPU of a recorded server: as asked for, as recorded, as its folder is named, or the only one profiled."""
    if device is not None:
        return catalog.device(device).name
    leading = recording.name.partition("_")[0]
    for said in (recording.device_name, leading):
        if said and (known := DEVICES.resolve(said)):
            return known
    candidates = profiled_devices(Path(profiles), model)
    if len(candidates) == 1:
        return candidates[0]
    raise ConfigError(
        "does not say on which GPU the server ran.",
        where=str(recording.folder),
        fix=f"Give --device, one of those profiled for {model.name}: {', '.join(candidates) or 'none'}.",
    )


def scenario_of(recording: Recording, model: Model, profiles: str | Path, device: str) -> Scenario:
    """The recorded server as a scenario."""
    ranks = recording.whole("data_parallel_size", 1, "parallel_config")
    expert_parallel = bool(recording.option("enable_expert_parallel", "parallel_config")) and model.is_moe
    sequences = recording.whole("max_num_seqs", _MAX_SEQUENCES, "scheduler_config")
    in_lockstep = model.is_moe and ranks > 1
    preset = engine("vllm").sections(recording.model, device, recording.version)["batching"]
    overlap = recording.option("async_scheduling", "scheduler_config")
    reserves = recording.option("scheduler_reserve_full_isl", "scheduler_config") is not False
    return Scenario(
        engine=None,  # Its settings are those recorded, and its host time is in the profiles.
        model=recording.model,
        device=device,
        num_replicas=1 if in_lockstep else ranks,
        replica=ReplicaConfig(
            tensor_parallel=recording.whole("tensor_parallel_size", 1, "parallel_config"),
            pipeline_parallel=recording.whole("pipeline_parallel_size", 1, "parallel_config"),
            data_parallel=ranks if in_lockstep else 1,
            expert_parallel=expert_parallel,
            memory_utilization=recording.kv_cache("gpu_memory_utilization") or _MEMORY_UTILIZATION,
            num_kv_blocks=_usable_blocks(recording, ranks),
            max_request_tokens=_longest_request(recording, model),
        ),
        batching=BatchingConfig(
            policy="vllm_v1",
            max_sequences=sequences,
            max_batch_tokens=recording.whole("max_num_batched_tokens", _MAX_BATCHED_TOKENS, "scheduler_config"),
            overlap=preset["overlap"] if overlap is None else bool(overlap),
            surplus_token=preset.get("surplus_token", False),
            max_chunk_tokens=recording.option("long_prefill_token_threshold", "scheduler_config") or None,
            block_size=recording.requests.prefix_block_tokens,
            prefix_cache=recording.kv_cache("enable_prefix_caching") is not False,
            options={"reserve_full_prompt": float(reserves)},
        ),
        router=RouterConfig(name="vllm_dp" if ranks > 1 else "round_robin"),
        timing=TimingConfig(
            source="profile",
            path=str(profiles),
            dtype=_dtype(recording, "dtype", "bf16"),
            kv_dtype=_dtype(recording, "kv_cache_dtype", _dtype(recording, "dtype", "bf16")),
            graph_sizes=_graph_sizes(recording, sequences),
            expert_load="balanced",  # As the kernels of the profiles were measured.
        ),
    )


def _usable_blocks(recording: Recording, ranks: int) -> int | None:
    """KV blocks that the requests of one rank can hold; None where the server did not say.

    vLLM reports the sum over data-parallel ranks, and keeps one block of each to itself (the null block).
    """
    blocks = recording.kv_cache("num_gpu_blocks")
    if blocks is None:
        return None
    if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < 2 * ranks:
        where = str(recording.folder / "meta.json")
        raise DataError(f"num_gpu_blocks is {blocks!r}, less than two blocks for each rank.", where=where)
    return blocks // ranks - 1


def _longest_request(recording: Recording, model: Model) -> int:
    """The longest request that the server accepts; what it did serve was not too long."""
    limit = recording.whole("max_model_len", model.max_context_tokens, "model_config")
    return max(limit, int(recording.requests.total_tokens.max()))


def _dtype(recording: Recording, option: str, default: Dtype) -> Dtype:
    said = recording.option(option)
    if said is None or said == "auto":
        return default
    name = str(said).removeprefix("torch.")
    if name not in _DTYPES and not name.startswith("fp8"):
        where = str(recording.folder / "meta.json")
        raise DataError(f"{option} {said!r} is not known.", where=where, fix=f"Known: {', '.join(_DTYPES)}.")
    return _DTYPES.get(name, "fp8")


def _graph_sizes(recording: Recording, max_sequences: int) -> tuple[int, ...] | None:
    """Token counts for which the server captured CUDA graphs; by default up to twice its largest batch."""
    if recording.option("enforce_eager", "model_config"):
        return None
    sizes = recording.option("cudagraph_capture_sizes", "compilation_config")
    if sizes is None:
        return tuple(size for size in CAPTURE_SIZES if size <= 2 * max_sequences)
    return tuple(cast("list[int]", sizes)) or None


def errors_of(recording: Recording, simulated: Run, tolerances: Mapping[str, float] = TOLERANCES) -> list[Error]:
    """Every compared number of a run."""
    requests = simulated.cluster.requests
    arrival_s, outputs = recording.requests.arrival_s, recording.requests.output_tokens
    real, ours = (
        Latencies.of(arrival_s, one.first_token_s, one.last_token_s, outputs) for one in (recording, requests)
    )
    errors = latency_errors([real], [[ours]], STATISTICS, tolerances, peers=recording.peer_errors)
    total, limit = float(outputs.sum()), tolerances["throughput"]
    real_s, ours_s = float(recording.last_token_s.max()), float(requests.last_token_s.max())
    return [*errors, Error("throughput", "mean", total / real_s, total / ours_s, limit)]


@proof("vllm")
def prove(
    *runs: str | Path, profiles: str | Path, device: str | None = None, tolerances: Mapping[str, float] | None = None,
    on_progress: Progress | None = None,
) -> Findings:  # fmt: skip
    """Latencies: recorded vLLM servers, simulated from the kernels in `profiles`.

    `tolerances` of ttft, tpot, e2e and throughput are relative: 3 % for the first and 1 % for the others if not given.
    """
    allowed = tolerated(TOLERANCES, tolerances)
    return told([compare(folder, profiles, device, allowed) for folder in each(runs, on_progress)])


def told(found: list[Comparison]) -> Findings:
    """A table per run."""
    blocks: list[Block] = []
    for one in found:
        blocks += [Line(_head(one)), Table(_table(one))]
    runs = [_as_data(one) for one in found]
    return Findings(
        records=found, rows=[{"run": run["run"], **row} for run in runs for row in run["errors"]], data={"runs": runs},
        blocks=blocks, failures=[f"{one.recording.name} {error.words}" for one in found for error in one.beyond],
        pictures={"over_time.html": partial(write_page, found)},
    )  # fmt: skip


def _head(one: Comparison) -> str:
    preemptions = int(one.simulated.cluster.replicas.num_preemptions.sum())
    return (
        f"{one.recording.name}: {one.recording.model} on {one.device}, {len(one.recording.requests):,} requests, "
        f"{one.simulated.pools[0].num_kv_blocks:,} KV blocks, {preemptions:,} pre-emptions"
    )


def _table(one: Comparison) -> list[dict[str, Any]]:
    rows = [error.row for error in one.errors]
    has_peer = bool(one.recording.peer_errors)
    return [{name: value for name, value in row.items() if has_peer or name != "peer"} for row in rows]


def _as_data(one: Comparison) -> dict[str, Any]:
    return {
        "run": one.recording.name, "model": one.recording.model, "device": one.device,
        "requests": len(one.recording.requests), "num_kv_blocks": one.simulated.pools[0].num_kv_blocks,
        "preemptions": int(one.simulated.cluster.replicas.num_preemptions.sum()), "within": not one.beyond,
        "notes": one.simulated.notes, "errors": [error.data for error in one.errors],
    }  # fmt: skip


def write_page(comparisons: Sequence[Comparison], path: str | Path) -> Path:
    """Draw every run below each other; runs without a time series show their errors alone."""
    sections = [Section(_head(one), [Table(_table(one)), *_charts(one)], together=True) for one in comparisons]
    lede = "How far the simulation is from each recording, and both over time."
    return page.write_page(path, "Recorded and simulated vLLM servers", sections, lede=lede)


def _charts(one: Comparison) -> list[Block]:
    series = one.recording.series
    if series is None or "t" not in series.columns:
        return [Line("No timeseries.csv was recorded.")]
    at = series["t"].cast(pl.Float64).to_numpy()
    found: list[Block] = []
    for title, name, simulated in _simulated(one, at):
        if name in series.columns:
            recorded = series[name].cast(pl.Float64).to_numpy()
            drawn = [("recorded", recorded, look.GREY), ("simulated", simulated, look.BLUE)]
            found.append(Plot(f"{one.recording.name} {name}", partial(look.time_lines, title, at, drawn, {})))
    return found


def _simulated(one: Any, at: Floats) -> list[tuple[str, str, Floats]]:
    """The server's columns as the simulation has them at the same moments."""
    requests, run = one.simulated.cluster.requests, one.simulated
    rows = run.log.iterations[: run.log.used[0]]
    rows = rows[rows["stage"] == 0]
    rows = rows[np.argsort(rows["end_s"], kind="stable")]
    waiting, running, blocks = np.zeros(at.size), np.zeros(at.size), np.zeros(at.size)
    for replica in run.cluster.replicas.id:
        own = rows[rows["replica"] == replica]
        last = np.searchsorted(own["end_s"], at, side="right") - 1
        ended = last >= 0
        waiting[ended] += own["waiting"][last[ended]]
        blocks[ended] += own["used_blocks"][last[ended]]
        running[ended] += own["size"][last[ended]]
    running *= at <= float(requests.last_token_s.max())
    produced = np.concatenate([[0.0], np.cumsum(rows["decodes"])])
    decoded = produced[np.searchsorted(rows["end_s"], at, side="right")]
    started = np.searchsorted(np.sort(requests.first_token_s), at, side="right")
    tokens = np.diff(decoded + started, prepend=0.0) / np.diff(at, prepend=0.0)
    share = 100.0 * blocks / float(run.cluster.replicas.num_blocks.sum())
    return [
        ("Requests in the batch", "running", running),
        ("Requests waiting", "waiting", waiting),
        ("Output tokens per second", "gen_throughput", tokens),
        ("KV blocks in use, %", "kv_cache_pct", share),
    ]
