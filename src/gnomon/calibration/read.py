"""Find out what a log is, and read it: a file or a folder is one load on the server."""

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from gnomon import catalog
from gnomon.calibration import request_files, step_files
from gnomon.calibration.logs import Counters, Log, Stamps, Steps
from gnomon.core.errors import DataError
from gnomon.core.text import MAX_TABLE_BYTES, parse_json, read_json, read_text
from gnomon.workload.table import unpacked

_LINE = re.compile(r"^((?:vllm|sglang):[\w:]+)(?:\{[^}]*\})?\s+([-+\d.eE]+)(?:\s+\d+)?$", re.MULTILINE)
_TTFT = "time_to_first_token_seconds"
_TPOT = ("inter_token_latency_seconds", "request_time_per_output_token_seconds", "time_per_output_token_seconds")
_E2E = "e2e_request_latency_seconds"
_RUNNING = ("num_requests_running", "num_running_reqs")

_CACHED = ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total", "cached_tokens_total")

Values = dict[str, float]


def is_scrape(text: str) -> bool:
    return _LINE.search(text) is not None


def parse(text: str) -> Values:
    """Counters by their name without the engine's, summed over labels; buckets are left out."""
    found: Values = defaultdict(float)
    for name, value in _LINE.findall(text):
        plain = name.partition(":")[2]
        if not plain.endswith("_bucket"):
            found[plain] += float(value)
    return dict(found)


def counters(scrapes: Sequence[str], where: str) -> Counters:
    """What happened between the first scrape and the last; since the server's start if there is one only."""
    values = [parse(text) for text in scrapes]
    first, last = (values[0] if len(values) > 1 else {}), values[-1]

    def grown(name: str) -> float:
        return last.get(name, 0.0) - first.get(name, 0.0)

    def mean(name: str) -> float | None:
        count = grown(f"{name}_count")
        return grown(f"{name}_sum") / count if count > 0 else None

    tpot = next((found for name in _TPOT if (found := mean(name)) is not None), None)
    ttft, requests = mean(_TTFT), grown(f"{_TTFT}_count")
    running = [value[name] for value in values for name in _RUNNING if name in value]
    if ttft is None or tpot is None or not running:
        what = "has no times to the first token, no times per output token, or no number of running requests."
        raise DataError(what, where=where, fix="Scrape /metrics of vLLM or SGLang (--enable-metrics) while it serves.")
    busy = max(sum(running) / len(running), 1.0)
    prompt, output = grown("prompt_tokens_total") / requests, grown("generation_tokens_total") / requests
    if prompt < 1 or output < 1:
        raise DataError("has no prompt_tokens_total or generation_tokens_total.", where=where)
    cached = next((grown(name) for name in _CACHED if name in last), 0.0) / requests
    return Counters(requests, prompt, output, busy, ttft, tpot, mean(_E2E), min(max(0.0, cached), prompt - 1.0))


KINDS = (
    "a step log (CSV or JSON lines), a table of requests, a file of vllm bench serve --save-detailed, SGLang's "
    "bench_serving, AIPerf, genai-perf or inference-perf, scrapes of /metrics, or a folder of gnomon"
)

WANTED = (
    "Steps need duration_s (or start_s and end_s), prefill_tokens and decodes, and are better with decode_kv, "
    "sequences, running, waiting; requests need arrival_s, first_token_s, finished_s, prompt_tokens, output_tokens."
)
STEMS = {"iterations": "steps", "steps": "steps", "requests": "stamps"}
"""Files in the folder of a load, and what they hold."""
SUFFIXES = (".gz", ".csv", ".jsonl", ".json", ".parquet", ".log", ".txt", ".prom", ".metrics")


def read_logs(paths: Sequence[str | Path]) -> list[Log]:
    """Several loads; those whose files have the same name go by their folder's: `chat-60.2/requests.csv` is
    `chat-60.2`, `a/run.log` is `a/run`."""
    logs = [read_log(path) for path in paths]
    names, renamed = [log.name for log in logs], []
    for log, path in zip(logs, paths, strict=True):
        folder = Path(path).resolve().parent.name
        own = folder if log.name in STEMS else f"{folder}/{log.name}"
        renamed.append(log if names.count(log.name) == 1 else replace(log, name=own))
    return renamed


def read_log(path: str | Path) -> Log:
    """One load, whatever its format; a DataError says what was expected."""
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise DataError("no such file or folder.", where=str(path))
    name = path.name
    while name.endswith(SUFFIXES):
        name = name.rpartition(".")[0]
    try:
        return _log(name, _read_file(path))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise DataError(f"is not as expected: {error!r}.", where=str(path), fix=f"Give {KINDS}.") from None
    except ValueError as error:
        raise DataError(f"cannot be read: {error}.", where=str(path)) from None


def _read_folder(folder: Path) -> Log:
    """What `gnomon engine serve` or `gnomon simulate --out` wrote, a recorded server, or scrapes in turn."""
    found: dict[str, Any] = {}
    for stem, part in STEMS.items():
        for suffix in (".csv.gz", ".csv", ".jsonl", ".parquet"):
            if part not in found and (folder / f"{stem}{suffix}").is_file():
                found[part] = getattr(read_log(folder / f"{stem}{suffix}"), part)
                if found[part] is None:
                    raise DataError(f"holds no {part}.", where=str(folder / f"{stem}{suffix}"))
    if not found:
        scrapes = sorted(file for file in folder.iterdir() if file.suffix in (".prom", ".txt", ".metrics"))
        if not scrapes:
            raise DataError("holds no log.", where=str(folder), fix=f"Give {KINDS}.")
        texts = [read_text(file) for file in scrapes]
        return Log(folder.name, counters=counters(texts, str(folder)))
    if (folder / "run.json").is_file():
        found["facts"] = _engine_facts(read_json(folder / "run.json"))
    return Log(folder.name, **found)


def _engine_facts(about: Mapping[str, Any]) -> dict[str, Any]:
    engine, model = about.get("engine"), about.get("model")
    if isinstance(model, str) and model in catalog.model_names():
        return {"model": model}
    if not isinstance(engine, dict) or not isinstance(model, dict):
        return {}
    given = {
        "model": model.get("name"), "device": "h200" if "H200" in str(about.get("device_name")) else None,
        "replica.num_kv_blocks": engine.get("num_kv_blocks"), "replica.max_request_tokens": engine.get("max_model_len"),
        "batching.max_sequences": engine.get("max_num_seqs"),
        "batching.max_batch_tokens": engine.get("max_num_batched_tokens"),
        "batching.block_size": engine.get("block_size"), "batching.prefix_cache": False,
        "batching.options.reserve_full_prompt": 0.0, "timing.graph_sizes": _graph_sizes(engine),
        "timing.sampler": _sampler(engine),
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def _graph_sizes(engine: Mapping[str, Any]) -> list[int] | None:
    """The sizes to which iterations are padded; with eager prefill, those of decodes; without graphs, none."""
    sizes = [] if engine.get("eager") else engine.get("capture_sizes") or []
    if engine.get("eager_prefill"):
        sizes = [size for size in sizes if size <= engine.get("max_num_seqs", 0)]
    return list(sizes) or None


def _sampler(engine: Mapping[str, Any]) -> dict[str, Any] | None:
    """How it chooses tokens, where not the likeliest: top-p by sorting, penalties by counting anew."""
    asked = {
        "is_random": engine.get("temperature", 0.0) > 0.0,
        "filter": "sort" if engine.get("top_p", 1.0) < 1.0 else "",
        "penalties": "recount" if engine.get("repetition_penalty", 1.0) != 1.0 else "",
    }
    return {name: value for name, value in asked.items() if value} or None


Part: TypeAlias = Steps | Stamps | Counters


def _log(name: str, part: Part) -> Log:
    if isinstance(part, Steps):
        return Log(name, steps=part)
    return Log(name, stamps=part) if isinstance(part, Stamps) else Log(name, counters=part)


def _read_file(path: Path) -> Part:
    where = str(path)
    if path.suffix == ".parquet":
        return _from_rows(_parquet(path), where)
    text = _text(path)
    if is_scrape(text):
        return counters([text], where)
    if step_files.VLLM_LINE.search(text):
        return step_files.steps_from_vllm(text, where)
    if path.name.removesuffix(".gz").endswith(".csv"):
        rows = csv.DictReader(io.StringIO(text))
        return _from_rows([{name: _number(value) for name, value in row.items()} for row in rows], where)
    return _from_json(text, where)


def _from_json(text: str, where: str) -> Part:
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise DataError("is empty.", where=where, fix=f"Give {KINDS}.")
    try:
        data = parse_json(text, where, lenient=True)
    except DataError:
        if len(lines) == 1:
            raise
        data = [parse_json(line, f"{where}:{number}", lenient=True) for number, line in enumerate(lines, 1)]
    if isinstance(data, dict) and "experiments" in data:
        return request_files.from_genai_perf(data, where)
    rows = data if isinstance(data, list) else [data]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise DataError("holds no objects.", where=where, fix=f"Give {KINDS}.")
    if "ttfts" in rows[-1]:
        return request_files.from_bench(rows[-1], where)
    if "metrics" in rows[0] and "metadata" in rows[0]:
        return request_files.from_aiperf(rows, where)
    if "load_summary" in rows[0] and "successes" in rows[0]:
        what = "is inference-perf's summary of a stage: it does not hold single requests."
        fix = "Give per_request_lifecycle_metrics.json (report.request_lifecycle.per_request: true in its config)."
        raise DataError(what, where=where, fix=fix)
    if "info" in rows[0] and "start_time" in rows[0]:
        return request_files.from_inference_perf(rows, where)
    return _from_rows(rows, where)


def _from_rows(rows: Sequence[Mapping[str, Any]], where: str) -> Part:
    if not rows:
        raise DataError("has no rows.", where=where, fix=f"Give {KINDS}.")
    if request_files.is_request_row(rows[0]):
        return request_files.from_rows(rows, where)
    if step_files.is_step_row(rows[0]):
        if "stage" in rows[0]:
            rows = [row for row in rows if row["stage"] == 0]
        return step_files.steps_from_columns({name: [row.get(name) for row in rows] for name in rows[0]}, where)
    raise DataError(f"its columns are not known: {', '.join(list(rows[0])[:8])}.", where=where, fix=WANTED)


def _text(path: Path) -> str:
    if path.suffix != ".gz":
        return read_text(path, most=MAX_TABLE_BYTES)
    try:
        data = unpacked(path)
        return (path.read_bytes() if isinstance(data, Path) else data).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read: {error}.", where=str(path)) from None


def _number(value: Any) -> Any:
    """A cell as a number where it is one; None where it is empty."""
    if value in (None, ""):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return value
    return number if math.isfinite(number) else None


def _parquet(path: Path) -> list[dict[str, Any]]:
    import polars as pl

    try:
        return pl.read_parquet(path.read_bytes()).to_dicts()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"cannot be read: {error}.", where=str(path)) from None
