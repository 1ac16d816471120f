"""`/metrics` in Prometheus' format, under the names that vLLM and SGLang give them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.live.cluster import LiveCluster
from gnomon.live.protocol import Stream

_SHORT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_LONG_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_GAP_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
_LATE_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)

# Histograms: vLLM's name, SGLang's, what it says, its buckets.
_HISTOGRAMS = {
    "ttft": ("time_to_first_token_seconds", "time_to_first_token_seconds", "Seconds to the first token.", _SHORT_S),
    "itl": ("inter_token_latency_seconds", "inter_token_latency_seconds", "Seconds between two tokens.", _GAP_S),
    "e2e": ("e2e_request_latency_seconds", "e2e_request_latency_seconds", "Seconds of a request.", _LONG_S),
    "prompt": ("request_prompt_tokens", "prompt_tokens_histogram", "Prompt tokens of a request.", _TOKENS),
    "output": ("request_generation_tokens", "generation_tokens_histogram", "Output tokens of a request.", _TOKENS),
}


class _Histogram:
    def __init__(self, bounds: tuple[float, ...], num_replicas: int) -> None:
        self.bounds = np.array(bounds)
        self.counts, self.sums = np.zeros((num_replicas, len(bounds) + 1), np.int64), np.zeros(num_replicas)

    def add(self, replica: int | Ints, value: float | Floats, count: int | Ints = 1) -> None:
        replicas, places, counts = np.broadcast_arrays(replica, np.searchsorted(self.bounds, value), count)
        np.add.at(self.counts, (replicas, places), counts)
        np.add.at(self.sums, replicas, value * counts)

    def buckets(self, replica: int) -> list[tuple[str, float]]:
        """As Prometheus has them: how many are at most so large."""
        return list(zip((*map(str, self.bounds), "+Inf"), self.counts[replica].cumsum().astype(float), strict=True))


class Metrics:
    """What has happened so far, of all replicas; a collector of `prometheus_client`."""

    def __init__(self, live: LiveCluster, model_name: str) -> None:
        self.live, self.model_name = live, model_name
        size = live.cluster.replicas.size
        self._histograms = {name: _Histogram(what[3], size) for name, what in _HISTOGRAMS.items()}
        self._prompt_tokens, self._output_tokens = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._ends: dict[tuple[int, str], int] = {}
        self.lateness = _Histogram(_LATE_S, 1)
        """Real seconds from when tokens were due to when they were handed to the network."""

    def count_first(self, stream: Stream, came_s: float) -> None:
        """A request has got its first token."""
        r = stream.replica
        self._histograms["ttft"].add(r, came_s - stream.sent_s)
        self._histograms["prompt"].add(r, stream.asked.prompt_tokens)
        self._prompt_tokens[r] += stream.asked.prompt_tokens
        self._output_tokens[r] += 1

    def count_tokens(self, replicas: Ints, counts: Ints, gaps_s: Floats) -> None:
        """Requests have got more."""
        self._histograms["itl"].add(replicas, gaps_s, counts)
        np.add.at(self._output_tokens, replicas, counts)

    def count_end(self, stream: Stream, why: str, ended_s: float, num_tokens: int) -> None:
        """A request has ended."""
        r = stream.replica
        self._ends[r, why] = self._ends.get((r, why), 0) + 1
        if why == "stop":
            self._histograms["e2e"].add(r, ended_s - stream.sent_s)
            self._histograms["output"].add(r, num_tokens)

    def collect(self) -> Iterable[Any]:
        """Every metric, for `prometheus_client`."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        replicas, ranks = self.live.cluster.replicas, range(self.live.cluster.replicas.size)
        running = replicas.num_outstanding - replicas.num_waiting
        used = 1.0 - replicas.free_blocks / replicas.num_blocks
        hits = replicas.cache_hits / replicas.cache_queries.clip(1)
        gauges = (
            ("vllm:num_requests_running", "Requests that run.", running),
            ("vllm:num_requests_waiting", "Requests that wait.", replicas.num_waiting),
            ("vllm:kv_cache_usage_perc", "Share of the KV blocks that is in use.", used),
            ("vllm:gpu_cache_usage_perc", "The same, by its former name.", used),
            ("sglang:num_running_reqs", "Requests that run.", running),
            ("sglang:num_queue_reqs", "Requests that wait.", replicas.num_waiting),
            ("sglang:token_usage", "Share of the KV cache that is in use.", used),
            ("sglang:num_used_tokens", "Tokens in the KV cache.",
             (replicas.num_blocks - replicas.free_blocks) * replicas.block_size),
            ("sglang:cache_hit_rate", "Share of the prompt tokens that was found.", hits),
        )  # fmt: skip
        prompt, output = self._prompt_tokens, self._output_tokens
        counters = (
            ("vllm:prompt_tokens", "Prompt tokens.", prompt),
            ("vllm:generation_tokens", "Output tokens.", output),
            ("vllm:num_preemptions", "Pre-emptions.", replicas.num_preemptions),
            ("vllm:prefix_cache_queries", "Tokens that were looked for.", replicas.cache_queries),
            ("vllm:prefix_cache_hits", "Tokens that were found.", replicas.cache_hits),
            ("sglang:prompt_tokens", "Prompt tokens.", prompt),
            ("sglang:generation_tokens", "Output tokens.", output),
        )
        for families, family in ((gauges, GaugeMetricFamily), (counters, CounterMetricFamily)):
            for name, text, values in families:
                one = family(name, text, labels=_labels(name))
                for r in ranks:
                    one.add_metric([self.model_name, str(r)], float(values[r]))
                yield one
        for key, (vllm, sglang, text, _) in _HISTOGRAMS.items():
            for name in (f"vllm:{vllm}", f"sglang:{sglang}"):
                histogram = HistogramMetricFamily(name, text, labels=_labels(name))
                for r in ranks:
                    found = self._histograms[key]
                    histogram.add_metric([self.model_name, str(r)], found.buckets(r), float(found.sums[r]))
                yield histogram
        late = HistogramMetricFamily("gnomon:token_lateness_seconds", "Seconds that tokens were sent late.")
        late.add_metric([], self.lateness.buckets(0), float(self.lateness.sums[0]))
        yield late
        ends = CounterMetricFamily(
            "vllm:request_success", "Requests that ended.", labels=[*_labels("vllm:"), "finished_reason"]
        )
        for (r, why), count in sorted(self._ends.items()):
            ends.add_metric([self.model_name, str(r), why], count)
        yield ends


def _labels(name: str) -> list[str]:
    return ["model_name", "engine" if name.startswith("vllm:") else "dp_rank"]
