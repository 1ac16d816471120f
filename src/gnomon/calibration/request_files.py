"""Files of benchmark clients: per request when it was sent, its first and its last token, and its lengths.

Read: Gnomon's own tables and recordings, `vllm bench serve --save-detailed`, SGLang's bench_serving with
`--output-details`, AIPerf's profile_export.jsonl, genai-perf's profile_export.json, and llm-d's inference-perf
(per_request_lifecycle_metrics.json).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gnomon.calibration.logs import Stamps
from gnomon.core.errors import DataError
from gnomon.workload.requests import Requests, first_wave


class Row(NamedTuple):
    """One request: seconds of one clock, and tokens."""

    sent_s: float
    first_s: float
    last_s: float
    prompt: int
    output: int


_ROWS = (
    ("arrival_s", "first_token_s", "finished_s", "prompt_tokens", "output_tokens"),
    ("arrived_s", "first_token_s", "last_token_s", "prompt_tokens", "output_tokens"),
    ("queued_ts", "first_token_ts", "last_token_ts", "input_toks", "output_toks"),
)
"""Columns of Gnomon's tables of requests, of its engine's, and of recorded servers."""


def is_request_row(row: Mapping[str, Any]) -> bool:
    return any(all(name in row for name in names) for names in _ROWS)


def from_rows(rows: Sequence[Mapping[str, Any]], where: str) -> Stamps:
    """From flat rows of one of the known kinds; requests that did not finish are left out."""
    names = next(names for names in _ROWS if all(name in rows[0] for name in names))
    whole = [row for row in rows if all(_is_number(row.get(name)) for name in names)]
    return stamps([_row(row, names) for row in whole], where)


def _row(row: Mapping[str, Any], names: Sequence[str]) -> Row:
    sent, first, last, prompt, output = (row[name] for name in names)
    return Row(float(sent), float(first), float(last), int(prompt), int(output))


def from_bench(data: Mapping[str, Any], where: str) -> Stamps:
    """`vllm bench serve --save-detailed` and SGLang's `--output-details`: parallel lists."""
    count = len(data["ttfts"])
    sent, errors = data.get("start_times"), data.get("errors") or [""] * count
    rows = []
    for i in range(count):
        if errors[i] or not data["output_lens"][i]:
            continue
        at = float(sent[i]) if sent else 0.0
        first = at + float(data["ttfts"][i])
        tokens = max(int(data["output_lens"][i]), 1)
        rows.append(Row(at, first, first + float(np.sum(data["itls"][i])), int(data["input_lens"][i]), tokens))
    if sent:
        return stamps(rows, where)
    limit = data.get("max_concurrency")
    if not limit:
        what = "does not say when its requests were sent (start_times), nor a max_concurrency."
        fix = "Newer versions of the benchmark save start_times; or run it with --max-concurrency."
        raise DataError(what, where=where, fix=fix)
    return closed_loop(rows, int(limit), where)


def from_aiperf(rows: Iterable[Mapping[str, Any]], where: str) -> Stamps:
    """AIPerf's profile_export.jsonl: metadata and metrics, each with its unit."""
    found = []
    for row in rows:
        metrics, about = row["metrics"], row["metadata"]
        if row.get("error") or about.get("was_cancelled") or about.get("benchmark_phase", "profiling") != "profiling":
            continue
        names = ("time_to_first_token", "request_latency", "input_sequence_length", "output_sequence_length")
        if not all(isinstance(metrics.get(name), dict) for name in names):
            continue
        ttft, whole = (_seconds(metrics[name]) for name in names[:2])
        sent = float(about["request_start_ns"]) * 1e-9
        found.append(Row(sent, sent + ttft, sent + whole, *(int(metrics[name]["value"]) for name in names[2:])))
    return stamps(found, where)


def from_genai_perf(data: Mapping[str, Any], where: str) -> Stamps:
    """genai-perf's profile_export.json: stamps in nanoseconds, and what was streamed.

    The first message names the role and the last ones are empty: those with text count. It does not count prompts; the
    server's own `usage` does, where it was asked for.
    """
    found = []
    for experiment in data["experiments"]:
        for request in experiment.get("requests", []):
            if not request.get("response_timestamps") or request.get("success") is False:
                continue
            times, usage = _streamed(request)
            prompt = request.get("input_token_count") or usage.get("prompt_tokens")
            if not prompt:
                fix = (
                    'Run it with --extra-inputs \'{"stream_options": {"include_usage": true}}\', add '
                    "input_token_count to each request, or use AIPerf's profile_export.jsonl."
                )
                raise DataError("does not say how long its prompts are.", where=where, fix=fix)
            output = int(request.get("output_token_count") or usage.get("completion_tokens") or len(times))
            sent, first, last = (float(t) * 1e-9 for t in (request["timestamp"], times[0], times[-1]))
            found.append(Row(sent, first, last, int(prompt), output))
    return stamps(found, where)


def _streamed(request: Mapping[str, Any]) -> tuple[list[float], Mapping[str, Any]]:
    """When messages with text came (all, where none is known to have any), and the server's count of tokens."""
    times, outputs = request["response_timestamps"], request.get("response_outputs") or []
    with_text: list[float] = []
    usage: Mapping[str, Any] = {}
    for time, output in zip(times, outputs, strict=False):
        message = _message(output)
        usage = message.get("usage") or usage
        if any(_has_text(choice) for choice in message.get("choices") or [message]):
            with_text.append(time)
    return with_text or times, usage


def _message(output: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """One streamed message: Triton's as it is, OpenAI's from its line of server-sent events."""
    text = output if isinstance(output, str) else output.get("response")
    if text is None:
        return {} if isinstance(output, str) else output
    try:
        message = json.loads(str(text).strip().removeprefix("data:"))
    except ValueError:  # "[DONE]", or plain text.
        return {}
    return message if isinstance(message, dict) else {}


def _has_text(choice: Mapping[str, Any]) -> bool:
    content = choice.get("delta") or choice.get("message") or choice
    return any(content.get(name) for name in ("content", "reasoning_content", "text", "text_output"))


def from_inference_perf(rows: Iterable[Mapping[str, Any]], where: str) -> Stamps:
    """llm-d's inference-perf: lengths and token times under `info`, in newer versions one level deeper."""
    found = []
    for row in rows:
        info = row.get("info") or {}
        asked = (info.get("request_metrics") or {}).get("text") or info
        given = info.get("response_metrics") or info
        times = given.get("output_token_times") or []
        if row.get("error") or not times:
            continue
        # The client's own count is of the text, tokenised again.
        counted = (given.get("server_usage") or {}).get("completion_tokens")
        output = int(counted or given.get("output_tokens") or len(times))
        sent, first, last = (float(at) for at in (row["start_time"], times[0], times[-1]))
        found.append(Row(sent, first, last, int(asked["input_tokens"]), output))
    return stamps(found, where)


def stamps(rows: Sequence[Row], where: str) -> Stamps:
    """Sorted by sending, from the first on; a DataError where there is nothing, or time runs backwards."""
    if not rows:
        raise DataError("has no request that finished.", where=where)
    sent, first, last, prompt, output = np.array(sorted(rows), np.float64).T
    if not ((sent <= first) & (first <= last)).all():
        raise DataError("a request's first token comes before it was sent, or after its last.", where=where)
    if not ((prompt >= 1) & (output >= 1)).all():
        raise DataError("a request has no prompt or no output tokens.", where=where)
    return Stamps(Requests(sent - sent[0], prompt, output), first - sent[0], last - sent[0])


def closed_loop(rows: Sequence[Row], concurrency: int, where: str) -> Stamps:
    """Requests whose times of sending are unknown, so many in flight: stamps count from each one's own sending."""
    stamps(rows, where)
    count = min(concurrency, len(rows))
    lengths = np.array([(row.prompt, row.output) for row in rows], np.int32)
    wave, think_s = first_wave(len(rows), count, 0), np.zeros(len(rows))
    requests = Requests(wave, lengths[:, 0], lengths[:, 1], concurrency=count, think_s=think_s)
    first, last = (np.array([getattr(row, name) - row.sent_s for row in rows]) for name in ("first_s", "last_s"))
    return Stamps(requests, first, last, closed_loop=True)


def _seconds(metric: Mapping[str, Any]) -> float:
    return float(metric["value"]) * {"ms": 1e-3, "us": 1e-6, "ns": 1e-9, "s": 1.0, "sec": 1.0}[metric.get("unit", "ms")]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))
