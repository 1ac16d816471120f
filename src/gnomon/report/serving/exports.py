"""A run in the formats of load generators and benchmark suites, for tools that read those."""

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl

from gnomon import __version__
from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.report.perfetto import microseconds
from gnomon.report.serving.trace import frame_of
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.results.latency import request_times
from gnomon.serving.results.latency_breakdown import NAMES, accounts
from gnomon.serving.results.percentiles import weighted_quantiles
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import Run

_HOST = NAMES.index("host")


def num_members(run: Run) -> int:
    """How many entries the batches of a run have; an error where it kept some of its iterations only."""
    if run.log.used[3] > 1:
        raise ConfigError(
            "the run has more iterations than a log can hold.", where="--export vidur",
            fix="Simulate fewer requests (workload.num_requests).",
        )  # fmt: skip
    rows = run.log.iterations[: run.log.used[0]]
    return int(rows["size"][rows["stage"] == 0].sum())


def request_metrics(run: Run) -> str:
    """One row per finished request, of a run that was explained and kept the members of its batches."""
    q = run.cluster.requests
    done = np.flatnonzero(q.status == FINISHED)
    # Of every request: seconds inside of batches, all stages together.
    execution_s = np.zeros(run.cluster.requests.size)
    for row, members in _batches(run):
        execution_s[members[:, 0]] += row["end_s"] - row["start_s"]
    prompt, output = q.prompt_tokens[done].astype(np.int64), q.output_tokens[done].astype(np.int64)
    arrival_s, scheduled_s = q.arrival_s[done], q.scheduled_s[done]
    e2e_s, execution = q.finished_s[done] - arrival_s, execution_s[done]
    divided = accounts(run)
    host_s = np.zeros(q.size)
    host_s[divided.ids] = divided.parts_ns[:, :, _HOST].sum(axis=1) / 1e9
    model = execution - host_s[done]
    in_engine = q.finished_s[done] - scheduled_s
    prefill_s, decode_s = q.first_token_s[done] - scheduled_s, q.finished_s[done] - q.first_token_s[done]
    columns: dict[str, Any] = {
        "Request Id": done,
        "request_e2e_time": e2e_s, "request_e2e_time_normalized": e2e_s / output,
        "request_execution_time": execution, "request_execution_time_normalized": execution / output,
        "request_model_execution_time": model, "request_model_execution_time_normalized": model / output,
        "request_preemption_time": np.maximum(0.0, in_engine - execution),
        "request_scheduling_delay": scheduled_s - arrival_s,
        "request_execution_plus_preemption_time": in_engine,
        "request_execution_plus_preemption_time_normalized": in_engine / output,
        "prefill_e2e_time": q.first_token_s[done] - arrival_s,
        "prefill_time_execution_plus_preemption": prefill_s,
        "prefill_time_execution_plus_preemption_normalized": prefill_s / prompt,
        "decode_time_execution_plus_preemption_normalized": decode_s / output,
        "request_inter_arrival_delay": np.diff(arrival_s, prepend=arrival_s[:1]),
        "request_num_tokens": prompt + output, "request_num_prefill_tokens": prompt,
        "request_num_decode_tokens": output, "request_pd_ratio": prompt / output,
        "request_num_restarts": q.num_restarts[done],
    }  # fmt: skip
    return pl.DataFrame({name: np.ascontiguousarray(values) for name, values in columns.items()}).write_csv()


def batch_metrics(run: Run) -> str:
    batches = frame_of(run.log.iterations[: run.log.used[0]]).group_by("replica", "number").agg(
        pl.col("start_s").min(), pl.col("end_s").max(), pl.col("size", "tokens", "prefill_tokens", "decodes").first(),
        seconds=(pl.col("end_s") - pl.col("start_s")).sum(),
    )  # fmt: skip
    named = {
        "replica_id": "replica", "batch_execution_time": "seconds", "batch_size": "size", "batch_num_tokens": "tokens",
        "batch_num_prefill_tokens": "prefill_tokens", "batch_num_decode_tokens": "decodes",
    }  # fmt: skip
    numbered = batches.sort("start_s", "replica").with_row_index("Batch Id")
    return numbered.select("Batch Id", **{theirs: pl.col(ours) for theirs, ours in named.items()}).write_csv()


def chrome_trace(run: Run) -> str:
    """One event per batch and stage: a replica is a process, a stage a thread."""
    events = []
    for row, members in _batches(run):
        request_ids, tokens = members[:, 0].tolist(), members[:, 1].tolist()
        args = {
            "batch_id": int(row["number"]), "batch_size": len(request_ids), "request_ids": request_ids,
            "num_tokens": tokens, "num_prefill_tokens": int(row["prefill_tokens"]),
            "num_decode_tokens": int(row["decodes"]),
        }  # fmt: skip
        begin, end = microseconds(float(row["start_s"])), microseconds(float(row["end_s"]))
        where = {"ts": begin, "dur": end - begin, "pid": int(row["replica"]), "tid": int(row["stage"])}
        events.append({"name": str(request_ids), "ph": "X", **where, "args": args})
    return json.dumps({"traceEvents": events})


def _batches(run: Run) -> Iterator[tuple[Any, Ints]]:
    """Every batch on every stage, with [request, tokens] of its members."""
    rows = run.log.iterations[: run.log.used[0]]
    assert (rows["first_member"] >= 0).all(), "the run did not keep the members of its batches"
    for row in rows:
        yield row, run.log.members[row["first_member"] : row["first_member"] + row["size"]]


_PERCENTILES = (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
NOTE = "Simulated by Gnomon; gaps between the tokens of one request are its mean gap."


class _Figures:
    """The requests of a run that ended well: seconds and tokens of each."""

    def __init__(self, run: Run, summary: Summary) -> None:
        done, times = run.cluster.requests.status == FINISHED, request_times(run)
        q = run.cluster.requests[done]
        self.scenario, self.summary, self.run = run.scenario, summary, run
        self.sent_s, self.ttft_s, self.e2e_s = q.arrival_s, times.ttft_s[done], times.e2e_s[done]
        self.prompt, self.output = q.prompt_tokens.astype(np.int64), q.output_tokens.astype(np.int64)
        self.tpot_s = times.tpot_s[done][self.output > 1]
        used = run.log.used[2]
        self.gap_s, self.gap_count = run.log.gap_s[:used], run.log.gap_count[:used]
        self.num_failed = int(len(done) - done.sum())

    def spreads(self) -> dict[str, dict[str, float] | None]:
        """Every distribution, by the name that most formats use."""
        return {
            "request_latency": _spread(self.e2e_s),
            "normalized_time_per_output_token": _spread(self.e2e_s / self.output),
            "time_per_output_token": _spread(self.tpot_s),
            "time_to_first_token": _spread(self.ttft_s),
            "inter_token_latency": _spread(self.gap_s, self.gap_count),
        }


def _spread(values: Floats, counts: Any = None) -> dict[str, float] | None:
    """Mean, deviation, extremes and percentiles; None where there is nothing."""
    if not values.size:
        return None
    weights = np.ones(values.size) if counts is None else counts
    mean = float(np.average(values, weights=weights))
    found = {"mean": mean, "stddev": float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))}
    if counts is None:
        at = np.percentile(values, _PERCENTILES)
    else:
        at = weighted_quantiles(values, counts, np.array(_PERCENTILES) / 100)
    found |= {f"p{percentile:g}": float(value) for percentile, value in zip(_PERCENTILES, at, strict=True)}
    return found | {"min": float(values.min()), "max": float(values.max())}


def _llmd_report(f: _Figures) -> str:
    """llm-d's benchmark report 0.2.1."""

    def stats(spread: dict[str, float] | None, units: str) -> dict[str, Any] | None:
        return spread and {"units": units, **{name.replace(".", "p"): value for name, value in spread.items()}}

    units = {"normalized_time_per_output_token": "s/token", "time_per_output_token": "s/token",
             "inter_token_latency": "s/token"}  # fmt: skip
    rates = f.summary.throughput
    text = json.dumps(f.scenario.model_dump(mode="json"), sort_keys=True)
    uid = hashlib.sha256(text.encode()).hexdigest()[:32]
    stack = []
    for number, pool in enumerate(f.run.pools):
        cut = pool.replica
        parallelism = {"tp": cut.tensor_parallel, "pp": cut.pipeline_parallel, "dp": cut.data_parallel}
        accelerator = {"model": pool.device.name, "count": cut.num_gpus, "parallelism": parallelism}
        engine = {"kind": "inference_engine", "tool": "gnomon", "tool_version": __version__,
                  "role": "replica" if pool.role == "both" else pool.role, "replicas": pool.num_replicas,
                  "model": {"name": f.scenario.model}, "accelerator": accelerator}  # fmt: skip
        about = {"label": f"pool-{number}", "cfg_id": uid}
        stack.append({"metadata": about, "standardized": engine, "native": {"config": json.loads(text)}})
    lengths: list[dict[str, Any]] = [{"distribution": "other", "value": 0}, {"distribution": "other", "value": 0}]
    for length, one in zip(lengths, (f.prompt, f.output), strict=True):
        length |= {"value": float(one.mean()), "min": int(one.min()), "max": int(one.max())} if one.size else {}
    load = {"tool": "gnomon", "tool_version": __version__, "source": "unknown", "input_seq_len": lengths[0],
            "output_seq_len": lengths[1], "rate_qps": rates.offered_requests_per_s}  # fmt: skip
    aggregate = {
        "requests": {"total": f.prompt.size + f.num_failed, "failures": f.num_failed,
                     "input_length": stats(_spread(f.prompt), "count"),
                     "output_length": stats(_spread(f.output), "count")},
        "latency": {name: stats(spread, units.get(name, "s")) for name, spread in f.spreads().items()},
        "throughput": {
            "input_token_rate": {"units": "tokens/s", "mean": rates.prompt_tokens_per_s},
            "output_token_rate": {"units": "tokens/s", "mean": rates.output_tokens_per_s},
            "total_token_rate": {"units": "tokens/s", "mean": rates.tokens_per_s},
            "request_rate": {"units": "queries/s", "mean": rates.requests_per_s}},
    }  # fmt: skip
    report = {
        "version": "0.2.1",
        "run": {"uid": uid, "description": NOTE},
        "scenario": {"stack": stack, "load": {"metadata": {}, "standardized": load, "native": {}}},
        "results": {"request_performance": {"aggregate": aggregate}},
    }
    return json.dumps(report, indent=1)


def _inference_perf(f: _Figures) -> str:
    """inference-perf's summary_lifecycle_metrics.json."""

    def stats(spread: dict[str, float] | None) -> dict[str, float] | None:
        return spread and {("median" if n == "p50" else n): v for n, v in spread.items() if n != "stddev"}

    rates = f.summary.throughput
    good = {
        "count": f.prompt.size,
        "latency": {name: stats(spread) for name, spread in f.spreads().items()},
        "throughput": {"input_tokens_per_sec": rates.prompt_tokens_per_s,
                       "output_tokens_per_sec": rates.output_tokens_per_s,
                       "total_tokens_per_sec": rates.tokens_per_s, "requests_per_sec": rates.requests_per_s},
        "prompt_len": stats(_spread(f.prompt)),
        "output_len": stats(_spread(f.output)),
    }  # fmt: skip
    load = {"count": f.prompt.size + f.num_failed, "schedule_delay": stats(_spread(np.zeros(max(1, f.prompt.size))))}
    failed = {"count": f.num_failed, "request_latency": None, "prompt_len": None}
    return json.dumps({"load_summary": load, "successes": good, "failures": failed}, indent=1)


def _aiperf(f: _Figures) -> str:
    """AIPerf's profile_export.jsonl: one line for each request."""
    lines = []
    for i in range(f.prompt.size):
        start = round(f.sent_s[i] * 1e9)
        about = {"session_num": i, "x_request_id": f"gnomon-{i}", "benchmark_phase": "profiling",
                 "was_cancelled": False, "request_start_ns": start,
                 "request_end_ns": start + round(f.e2e_s[i] * 1e9)}  # fmt: skip
        gap_s = (f.e2e_s[i] - f.ttft_s[i]) / max(1, f.output[i] - 1)
        metrics = {"time_to_first_token": (f.ttft_s[i] * 1e3, "ms"), "request_latency": (f.e2e_s[i] * 1e3, "ms"),
                   "inter_token_latency": (gap_s * 1e3, "ms"), "input_sequence_length": (int(f.prompt[i]), "tokens"),
                   "output_sequence_length": (int(f.output[i]), "tokens")}  # fmt: skip
        stats = {name: {"value": value, "unit": unit} for name, (value, unit) in metrics.items()}
        lines.append(json.dumps({"metadata": about, "metrics": stats, "error": None}) + "\n")
    return "".join(lines)


def _vllm_bench(f: _Figures) -> str:
    """`vllm bench serve --save-result --save-detailed`."""
    rates, spreads = f.summary.throughput, f.spreads()
    found: dict[str, Any] = {"backend": "gnomon", "model_id": f.scenario.model, "note": NOTE,
                             "num_prompts": f.prompt.size + f.num_failed, "duration": f.summary.duration_s,
                             "completed": f.prompt.size, "failed": f.num_failed,
                             "total_input_tokens": int(f.prompt.sum()), "total_output_tokens": int(f.output.sum()),
                             "request_throughput": rates.requests_per_s, "output_throughput": rates.output_tokens_per_s,
                             "total_token_throughput": rates.tokens_per_s}  # fmt: skip
    named = {"ttft": "time_to_first_token", "tpot": "time_per_output_token", "itl": "inter_token_latency",
             "e2el": "request_latency"}  # fmt: skip
    for short, name in named.items():
        spread = spreads[name]
        for ours, theirs in (("mean", "mean"), ("p50", "median"), ("stddev", "std"), ("p99", "p99")):
            found[f"{theirs}_{short}_ms"] = spread[ours] * 1e3 if spread else None
    gaps = (f.e2e_s - f.ttft_s) / np.maximum(1, f.output - 1)
    found |= {"input_lens": f.prompt.tolist(), "output_lens": f.output.tolist(), "ttfts": f.ttft_s.tolist(),
              "start_times": f.sent_s.tolist(), "errors": [""] * f.prompt.size,
              "itls": [[float(gap)] * (int(n) - 1) for gap, n in zip(gaps, f.output, strict=True)]}  # fmt: skip
    return json.dumps(found)


def _guidellm(f: _Figures) -> str:
    """guidellm's benchmarks.json: its metrics and requests. guidellm's own settings, which it wants to read the file
    back, are not there."""

    def stats(spread: dict[str, float] | None, scale: float = 1.0) -> dict[str, Any]:
        if spread is None:
            return {"successful": None}
        scaled = {name: value * scale for name, value in spread.items()}
        ranks = {name.replace("0.1", "001").replace("99.9", "999") if "." in name else f"p{int(name[1:]):02d}": value
                 for name, value in scaled.items() if name[0] == "p"}  # fmt: skip
        rest = {"mean": scaled["mean"], "median": scaled["p50"], "std_dev": scaled["stddev"],
                "min": scaled["min"], "max": scaled["max"]}  # fmt: skip
        return {"successful": rest | {"percentiles": ranks}}

    spreads = f.spreads()
    metrics = {
        "request_totals": {"successful": f.prompt.size, "errored": f.num_failed, "incomplete": 0,
                           "total": f.prompt.size + f.num_failed},
        "request_latency": stats(spreads["request_latency"]),
        "prompt_token_count": stats(_spread(f.prompt)),
        "output_token_count": stats(_spread(f.output)),
        "time_to_first_token_ms": stats(spreads["time_to_first_token"], 1e3),
        "time_per_output_token_ms": stats(spreads["time_per_output_token"], 1e3),
        "inter_token_latency_ms": stats(spreads["inter_token_latency"], 1e3),
    }  # fmt: skip
    requests = [
        {"request_id": f"gnomon-{i}", "prompt_tokens": int(f.prompt[i]), "output_tokens": int(f.output[i]),
         "request_start_time": float(f.sent_s[i]), "request_end_time": float(f.sent_s[i] + f.e2e_s[i]),
         "request_latency": float(f.e2e_s[i]), "time_to_first_token_ms": float(f.ttft_s[i] * 1e3)}
        for i in range(f.prompt.size)
    ]  # fmt: skip
    one = {"type_": "generative_benchmark", "metrics": metrics, "requests": {"successful": requests}}
    return json.dumps({"metadata": {"version": 2, "note": NOTE}, "benchmarks": [one]}, indent=1)


EXPORTS: dict[str, dict[str, Callable[[_Figures], str]]] = {
    "llmd-report": {"llmd_report.json": _llmd_report},
    "inference-perf": {"summary_lifecycle_metrics.json": _inference_perf},
    "aiperf": {"profile_export.jsonl": _aiperf},
    "vllm-bench": {"vllm_bench.json": _vllm_bench},
    "guidellm": {"benchmarks.json": _guidellm},
    "vidur": {
        "request_metrics.csv": lambda f: request_metrics(f.run),
        "batch_metrics.csv": lambda f: batch_metrics(f.run),
        "chrome_trace.json": lambda f: chrome_trace(f.run),
    },
}
"""By name: the files that the tool itself writes, and what writes each."""
NEEDS_MEMBERS = ("vidur",)  # Formats that say who was in which batch.


def exported(run: Run, summary: Summary, name: str) -> dict[str, str]:
    """A run in another tool's format: the usual names of the files, and what is in each."""
    if name not in EXPORTS:
        raise UnknownNameError("format", name, list(EXPORTS), where="--export")
    figures = _Figures(run, summary)
    return {file: write(figures) for file, write in EXPORTS[name].items()}
