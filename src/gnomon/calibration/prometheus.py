"""Scrapes of a server's /metrics (vLLM, SGLang): means between the first and the last, or since the start of one."""

import re
from collections import defaultdict
from collections.abc import Sequence

from gnomon.calibration.logs import Counters
from gnomon.core.errors import DataError

_LINE = re.compile(r"^((?:vllm|sglang):[\w:]+)(?:\{[^}]*\})?\s+([-+\d.eE]+)(?:\s+\d+)?$", re.MULTILINE)
_TTFT = "time_to_first_token_seconds"
_TPOT = ("inter_token_latency_seconds", "request_time_per_output_token_seconds", "time_per_output_token_seconds")
_E2E = "e2e_request_latency_seconds"
_RUNNING = ("num_requests_running", "num_running_reqs")

_CACHED = ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total", "cached_tokens_total")

Values = dict[str, float]


def is_scrape(text: str) -> bool:
    """Whether a text is a scrape of an engine that is known."""
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
        raise DataError(
            "has no times to the first token, no times per output token, or no number of running requests.",
            where=where,
            fix="Scrape /metrics of vLLM or SGLang (--enable-metrics) while it serves.",
        )
    busy = max(sum(running) / len(running), 1.0)
    prompt, output = grown("prompt_tokens_total") / requests, grown("generation_tokens_total") / requests
    if prompt < 1 or output < 1:
        raise DataError("has no prompt_tokens_total or generation_tokens_total.", where=where)
    cached = next((grown(name) for name in _CACHED if name in last), 0.0) / requests
    return Counters(requests, prompt, output, busy, ttft, tpot, mean(_E2E), min(max(0.0, cached), prompt - 1.0))
