"""Recorded vLLM servers, simulated from the kernels of their GPU and compared latency by latency.

The simulation gets what the server was given (arrivals, lengths, limits, KV blocks); no constant is fitted per
run. Where a recording has no token ids, only a request's own blocks can be found again in the prefix cache.

A run directory holds `meta.json` (model, engine options, and where known the resolved configuration, KV blocks and
hardware), `requests.jsonl` (lengths and stamps, and optionally `prompt_token_ids`) and, where kept, `timeseries.csv`
and `peer_simulator_summary.txt`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from gnomon import catalog
from gnomon.calibration.replay import Latencies
from gnomon.catalog import Model
from gnomon.catalog.devices import DEVICES, Dtype
from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import ConfigError, DataError
from gnomon.core.text import MAX_TABLE_BYTES, parse_json, read_text
from gnomon.report import look, page
from gnomon.report.blocks import Block, Line, Plot, Section, Table
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.run.simulate import Run, run
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import BatchingConfig, ReplicaConfig, RouterConfig
from gnomon.serving.scenario.engine_presets import engine
from gnomon.serving.scenario.engine_versions import is_known
from gnomon.timing import TimingConfig
from gnomon.timing.config import CAPTURE_SIZES
from gnomon.timing.sources.profile.servingsim import profiled_devices
from gnomon.verify.findings import Error, Findings, Progress, each, latency_errors, proof, tolerated
from gnomon.workload import Requests

DEFAULT_BLOCK_SIZE = 16
_COUNTS = ("input_toks", "output_toks")
_STAMPS = ("queued_ts", "first_token_ts", "last_token_ts")
_PEER_METRICS = {"TTFT": "ttft", "TPOT": "tpot", "Latency": "e2e"}
_PEER_LINE = re.compile(r"^(TTFT|TPOT|Latency)\s+(\w+)\s+\S+\s+\S+\s+([+-][\d.]+)%")


@dataclass(frozen=True)
class Recording:
    """The files of one run directory. Times are seconds since the first request was queued."""

    folder: Path
    meta: dict[str, Any]
    requests: Requests
    first_token_s: Floats
    last_token_s: Floats

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def model(self) -> str:
        return str(self.meta["model"])

    @property
    def version(self) -> str:
        """vLLM's version; none where it is not recorded, or not one that is known."""
        version = str(self.meta.get("vllm_version") or "")
        return version if is_known(version, engine("vllm").versions) else ""

    @property
    def device_name(self) -> str | None:
        name = self._section("hardware").get("device_name")
        return str(name) if name else None

    def option(self, name: str, *sections: str) -> Any:
        """An engine option: as resolved by the server where that was recorded, else as given; None for neither."""
        for section in sections:
            value = self._section("resolved_config", section).get(name)
            if value is not None:
                return value
        return self._section("engine_kwargs").get(name)

    def whole(self, name: str, default: int, *sections: str) -> int:
        value = self.option(name, *sections)
        return default if value is None else _whole(name, value, self.folder / "meta.json")

    def kv_cache(self, name: str) -> Any:
        """A fact about the KV cache, None where it was not recorded."""
        found = self._section("kv_cache").get(name)
        return found if found is not None else self.option(name, "cache_config")

    @cached_property
    def series(self) -> pl.DataFrame | None:
        """The server's own time series (t, running, waiting, kv_cache_pct, gen_throughput ...), if it was kept."""
        path = self.folder / "timeseries.csv"
        if not path.is_file():
            return None
        try:
            return pl.read_csv(path)
        except pl.exceptions.PolarsError as error:
            raise DataError(f"cannot be read: {error}.", where=str(path)) from None

    @cached_property
    def peer_errors(self) -> dict[tuple[str, str], float]:
        """Relative errors of the peer simulator by (metric, statistic), where its summary lies beside the run."""
        path = self.folder / "peer_simulator_summary.txt"
        if not path.is_file():
            return {}
        found = (_PEER_LINE.match(line.strip()) for line in path.read_text(encoding="utf-8").splitlines())
        return {(_PEER_METRICS[m[1]], m[2].lower()): float(m[3]) / 100 for m in found if m}

    def _section(self, *path: str) -> dict[str, Any]:
        value: Any = self.meta
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, dict) else {}


def read_recording(folder: str | Path) -> Recording:
    """Read a run directory; a DataError names the file and what is wrong with it."""
    folder, path = Path(folder), Path(folder) / "meta.json"
    if not folder.is_dir():
        raise DataError("no such run directory.", where=str(folder))
    meta = parse_json(_text(path), str(path))
    if not isinstance(meta, dict):
        raise DataError("holds no JSON object.", where=str(path))
    if not isinstance(meta.get("model"), str):
        raise DataError("does not name the model.", where=str(path), fix='It needs "model": "organisation/name".')
    if not isinstance(meta.get("engine_kwargs", {}), dict):
        raise DataError("engine_kwargs is no JSON object.", where=str(path))
    rows = _read_rows(folder / "requests.jsonl")
    table = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in (*_COUNTS, *_STAMPS)}
    order = np.argsort(table["queued_ts"], kind="stable")
    table = {name: column[order] for name, column in table.items()}
    start = table["queued_ts"][0]
    block_size = _block_size(meta, folder)
    offsets, hashes = shared_prefixes([rows[i].get("prompt_token_ids") or [] for i in order], block_size)
    requests = Requests(
        table["queued_ts"] - start, table["input_toks"].astype(np.int32), table["output_toks"].astype(np.int32),
        prefix_offsets=offsets, prefix_hashes=hashes, prefix_block_tokens=block_size,
    )  # fmt: skip
    return Recording(folder, meta, requests, table["first_token_ts"] - start, table["last_token_ts"] - start)


def shared_prefixes(prompts: list[list[int]], block_size: int) -> tuple[Ints, Ints]:
    """Offsets and hashes of the prompts' full blocks: equal hashes for equal tokens from the start of the prompt."""
    seen: dict[tuple[int, tuple[int, ...]], int] = {}
    hashes, offsets = [], [0]
    for tokens in prompts:
        before = -1
        for end in range(block_size, len(tokens) + 1, block_size):
            before = seen.setdefault((before, tuple(tokens[end - block_size : end])), len(seen))
            hashes.append(before)
        offsets.append(len(hashes))
    return np.array(offsets, np.int64), np.array(hashes, np.int64)


def _whole(name: str, value: Any, where: object, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < least:
        raise DataError(f"{name} is {value!r}, not a whole number from {least} on.", where=str(where))
    return int(value)


def _block_size(meta: dict[str, Any], folder: Path) -> int:
    """Tokens per KV block; vLLM's default where the server did not say."""
    sections = (meta.get("kv_cache"), (meta.get("resolved_config") or {}).get("cache_config"))
    sizes = (section.get("block_size") for section in sections if isinstance(section, dict))
    size = next((one for one in sizes if one is not None), DEFAULT_BLOCK_SIZE)
    return _whole("block_size", size, folder / "meta.json")


def _read_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if line.strip():
            where = f"{path}:{number}"
            row = parse_json(line, where)
            _check_row(row, where)
            rows.append(row)
    if not rows:
        raise DataError("has no requests.", where=str(path))
    return rows


def _check_row(row: Any, where: str) -> None:
    if not isinstance(row, dict):
        raise DataError("is no JSON object.", where=where)
    for name in (*_COUNTS, *_STAMPS):
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise DataError(f"{name} is {value!r}, not a number.", where=where, fix="Leave out unfinished requests.")
    for name in _COUNTS:
        _whole(name, row[name], where)
    tokens = row.get("prompt_token_ids")
    if tokens is not None and (not isinstance(tokens, list) or len(tokens) != row["input_toks"]):
        raise DataError("prompt_token_ids is no list of input_toks tokens.", where=where)
    if not row["queued_ts"] <= row["first_token_ts"] <= row["last_token_ts"]:
        raise DataError("its stamps are not in order: queued_ts, first_token_ts, last_token_ts.", where=where)


def _text(path: Path) -> str:
    if not path.exists():
        fix = "A run directory holds meta.json and requests.jsonl."
        raise DataError("no such file.", where=str(path), fix=fix)
    return read_text(path, most=MAX_TABLE_BYTES)


TOLERANCES = {"ttft": 0.03, "tpot": 0.01, "e2e": 0.01, "throughput": 0.01}
STATISTICS = {"mean": None, "median": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}

# The defaults of vLLM 0.19 for what a recording does not say.
_MAX_SEQUENCES, _MAX_BATCHED_TOKENS, _MEMORY_UTILIZATION = 256, 2048, 0.9
_DTYPES: dict[str, Dtype] = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "auto": "bf16", "fp8": "fp8"}


@dataclass(frozen=True, eq=False)
class Comparison:
    recording: Recording
    device: str
    simulated: Run
    errors: list[Error]

    @property
    def beyond(self) -> list[Error]:
        return [error for error in self.errors if error.is_beyond]


def compare(
    folder: str | Path, profiles: str | Path, device: str | None = None, tolerances: Mapping[str, float] = TOLERANCES,
) -> Comparison:  # fmt: skip
    if not Path(profiles).is_dir():
        raise DataError("no such folder.", where=str(profiles), fix="--profiles names a folder of measured kernels.")
    recording = read_recording(folder)
    model = catalog.model(recording.model)
    chosen = device_of(recording, model, profiles, device)
    simulated = run(scenario_of(recording, model, profiles, chosen), requests=recording.requests)
    requests = simulated.cluster.requests
    if len(requests) != len(recording.requests) or not (requests.status == FINISHED).all():
        what = "the simulated server cannot serve every recorded request."
        raise DataError(what, where=str(recording.folder), fix="Check num_gpu_blocks and max_model_len in meta.json.")
    return Comparison(recording, chosen, simulated, errors_of(recording, simulated, tolerances))


def device_of(recording: Recording, model: Model, profiles: str | Path, device: str | None) -> str:
    """The GPU of a recorded server: as asked for, as recorded, as its folder is named, or the only one profiled."""
    if device is not None:
        return catalog.device(device).name
    leading = recording.name.partition("_")[0]
    for value in (recording.device_name, leading):
        if value and (known := DEVICES.resolve(value)):
            return known
    candidates = profiled_devices(Path(profiles), model)
    if len(candidates) == 1:
        return candidates[0]
    fix = f"Give --device, one of those profiled for {model.name}: {', '.join(candidates) or 'none'}."
    raise ConfigError("does not say on which GPU the server ran.", where=str(recording.folder), fix=fix)


def scenario_of(recording: Recording, model: Model, profiles: str | Path, device: str) -> Scenario:
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
    # Two for each rank, at the least.
    return _whole("num_gpu_blocks", blocks, recording.folder / "meta.json", 2 * ranks) // ranks - 1


def _longest_request(recording: Recording, model: Model) -> int:
    """The longest request that the server accepts; what it did serve was not too long."""
    limit = recording.whole("max_model_len", model.max_context_tokens, "model_config")
    return max(limit, int(recording.requests.total_tokens.max()))


def _dtype(recording: Recording, option: str, default: Dtype) -> Dtype:
    value = recording.option(option)
    if value is None or value == "auto":
        return default
    name = str(value).removeprefix("torch.")
    if name not in _DTYPES and not name.startswith("fp8"):
        where = str(recording.folder / "meta.json")
        raise DataError(f"{option} {value!r} is not known.", where=where, fix=f"Known: {', '.join(_DTYPES)}.")
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
    return findings([compare(folder, profiles, device, allowed) for folder in each(runs, on_progress)])


def findings(found: list[Comparison]) -> Findings:
    blocks: list[Block] = [block for one in found for block in (Line(_head(one)), Table(_table(one)))]
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
    waiting, running, blocks = levels = np.zeros((3, at.size))
    for replica in run.cluster.replicas.id:
        own = rows[rows["replica"] == replica]
        last = np.searchsorted(own["end_s"], at, side="right") - 1
        ended = last >= 0
        for level, name in zip(levels, ("waiting", "size", "used_blocks"), strict=True):
            level[ended] += own[name][last[ended]]
    running *= at <= float(requests.last_token_s.max())
    produced = np.concatenate([[0.0], np.cumsum(rows["decodes"])])
    decoded = produced[np.searchsorted(rows["end_s"], at, side="right")]
    started = np.searchsorted(np.sort(requests.first_token_s), at, side="right")
    tokens = np.diff(decoded + started, prepend=0.0) / np.diff(at, prepend=0.0)
    share = 100.0 * blocks / float(run.cluster.replicas.num_blocks.sum())
    return [
        ("Requests in the batch", "running", running), ("Requests waiting", "waiting", waiting),
        ("Output tokens per second", "gen_throughput", tokens), ("KV blocks in use, %", "kv_cache_pct", share),
    ]  # fmt: skip
