"""The clock: the simulated cluster is brought up to the present whenever something happens in it or is sent to it."""

import asyncio
import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.core.text import own_yaml
from gnomon.live.cluster import Call, LiveCluster
from gnomon.live.protocol import Stream
from gnomon.serving.engine.state import REJECTED, SHED

METRICS: dict[str, dict[str, Any]] = own_yaml(files("gnomon.live") / "metrics.yaml")
_LATE_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1)


class _Histogram:
    def __init__(self, bounds: Sequence[float], num_replicas: int) -> None:
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
        self._histograms = {name: _Histogram(what["bounds"], size) for name, what in METRICS["histograms"].items()}
        self._prompt_tokens, self._output_tokens = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._ends: dict[tuple[int, str], int] = {}
        self.lateness = _Histogram(_LATE_S, 1)
        """Real seconds from when tokens were due to when they were handed to the network."""

    def count_first(self, stream: Stream, came_s: float) -> None:
        r = stream.replica
        self._histograms["ttft"].add(r, came_s - stream.sent_s)
        self._histograms["prompt"].add(r, stream.asked.prompt_tokens)
        self._prompt_tokens[r] += stream.asked.prompt_tokens
        self._output_tokens[r] += 1

    def count_tokens(self, replicas: Ints, counts: Ints, gaps_s: Floats) -> None:
        self._histograms["itl"].add(replicas, gaps_s, counts)
        np.add.at(self._output_tokens, replicas, counts)

    def count_end(self, stream: Stream, why: str, ended_s: float, num_tokens: int) -> None:
        r = stream.replica
        self._ends[r, why] = self._ends.get((r, why), 0) + 1
        if why == "stop":
            self._histograms["e2e"].add(r, ended_s - stream.sent_s)
            self._histograms["output"].add(r, num_tokens)

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        replicas, ranks = self.live.cluster.replicas, range(self.live.cluster.replicas.size)
        values = {
            "running": replicas.num_outstanding - replicas.num_waiting, "waiting": replicas.num_waiting,
            "kv_share": 1.0 - replicas.free_blocks / replicas.num_blocks,
            "kv_tokens": (replicas.num_blocks - replicas.free_blocks) * replicas.block_size,
            "hit_rate": replicas.cache_hits / replicas.cache_queries.clip(1), "prompt_tokens": self._prompt_tokens,
            "output_tokens": self._output_tokens, "preemptions": replicas.num_preemptions,
            "queries": replicas.cache_queries, "hits": replicas.cache_hits,
        }  # fmt: skip
        for kind, family in (("gauges", GaugeMetricFamily), ("counters", CounterMetricFamily)):
            for name, (of, text) in METRICS[kind].items():
                one = family(name, text, labels=_labels(name))
                for r in ranks:
                    one.add_metric([self.model_name, str(r)], float(values[of][r]))
                yield one
        for key, what in METRICS["histograms"].items():
            for name in what["names"]:
                histogram = HistogramMetricFamily(name, what["says"], labels=_labels(name))
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


_SPIN_S = 0.001
"""Timers of an event loop come up to a millisecond late: the rest is waited for by looking at the clock."""


@dataclass(frozen=True, order=True)
class Burst:
    """Tokens that come to their clients at one moment."""

    start_s: float
    """When the first is written. Writing all takes a while: half of it lies before they are due, if that is known."""
    due_s: float
    tokens: list[tuple[Stream, int, bool]] = field(compare=False)
    """Streams, how many tokens each has then, and whether that is all."""


class Driver:
    """A cluster on the clock. `speed` simulated seconds pass in a real one."""

    def __init__(
        self, live: LiveCluster, metrics: Metrics, speed: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.live, self.metrics, self.speed, self._clock = live, metrics, speed, clock
        self._start_s = clock()
        self._streams: dict[int, Stream] = {}
        self._ids: Ints | None = None
        """Of these; None where some have come or gone."""
        self._produced = np.zeros(live.cluster.requests.size, np.int64)
        self._last_s = np.zeros(live.cluster.requests.size)
        self._bursts: list[Burst] = []
        """A heap."""
        self._next_s = float("inf")
        """When something happens in the cluster."""
        self._seen_s = 0.0
        """Until when all has happened."""
        self._write_s = 0.0
        """Real seconds of writing a token."""
        self._timer: Any = None
        self.failed: Exception | None = None

    def now_s(self) -> float:
        return (self._clock() - self._start_s) * self.speed

    def send(self, asked: Call, came_s: float | None = None) -> Stream:
        """Send a request now, or when it came (by the clock): reading it takes none of the simulated server's time.
        What has happened since stays as it was."""
        now_s = self.now_s()
        sent_s = now_s if came_s is None else max(self._seen_s, (came_s - self._start_s) * self.speed)
        stream = Stream(self.live.send(sent_s, asked), asked, sent_s)
        self._streams[stream.id], self._ids = stream, None
        self._produced[stream.id] = 0
        self._next_s = sent_s
        self._tick()
        return stream

    def cancel(self, stream: Stream) -> None:
        if self._streams.pop(stream.id, None) is not None and self.failed is None:
            self._ids = None
            self.metrics.count_end(stream, "abort", self.now_s(), 0)
            self.live.leave(stream.id, self.now_s())
            self._next_s = self.live.next_s()
            self._tick()

    def _tick(self) -> None:
        """Bring the cluster to the present, pass on what came of it, and come again when something happens."""
        if self.failed is not None:
            return
        now_s = self.now_s()
        self._deliver(now_s)
        if self._next_s <= now_s:
            try:
                self._seen_s = now_s
                self.live.advance(now_s)
                self._collect(now_s)
            except Exception as error:
                # The engine cannot go on: nobody gets an answer any more.
                self.failed = error
                for stream in self._streams.values():
                    stream.verdict = "failed"
                    stream.deliver(stream.num_tokens, True, 0.0)
                self._streams.clear()
                raise
            self._next_s = self.live.next_s()
            self._foresee()
        next_s = min(self._next_s, self._bursts[0].start_s if self._bursts else float("inf"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_s < float("inf"):
            due_s = self._start_s + next_s / self.speed
            wait_s = max(0.0, due_s - _SPIN_S - self._clock())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._spin, due_s)

    def _deliver(self, now_s: float) -> None:
        while self._bursts and self._bursts[0].start_s <= now_s:
            burst, start_s = heapq.heappop(self._bursts), self._clock()
            due_s = self._start_s + burst.due_s / self.speed
            num_sent = sum([stream.deliver(count, is_done, due_s) for stream, count, is_done in burst.tokens])
            if num_sent:
                # What is written goes out when the event loop has come round, at the latest.
                asyncio.get_running_loop().call_soon(self._after, burst, num_sent, start_s, due_s)

    def _after(self, burst: Burst, num_sent: int, start_s: float, due_s: float) -> None:
        """What can wait until a burst is written."""
        each_s = (self._clock() - start_s) / num_sent
        self._write_s += (each_s - self._write_s) * min(1.0, num_sent / 1000)
        late_s = start_s - due_s + each_s * np.arange(1, num_sent + 1)
        self.metrics.lateness.add(0, np.maximum(0.0, late_s))
        for stream, _, _ in burst.tokens:
            stream.prepare()

    def _spin(self, due_s: float) -> None:
        if self._clock() >= due_s:
            self._timer = None
            self._tick()
        else:
            self._timer = asyncio.get_running_loop().call_soon(self._spin, due_s)

    def _collect(self, now_s: float) -> None:
        """Look which requests have got tokens or have ended. There may be ten thousand tokens a second: whatever can be
        done for all of them at once is, and what is due is sent before it is counted."""
        if self._ids is None:
            self._ids = np.fromiter(self._streams, np.int64, len(self._streams))
        live, ids = self.live, self._ids
        produced, ended = live.produced(ids), live.ended(ids)
        changed = np.flatnonzero((produced > self._produced[ids]) | ended)
        if not changed.size:
            return
        ids, produced, ended = ids[changed], produced[changed], ended[changed]
        done = ended | (produced >= live.cluster.requests["output_tokens"][ids])
        came_s = live.newest_s(ids)
        due_s = came_s + live.reply_s(ids)
        for moment_s in sorted(set(due_s.tolist())):
            now = due_s == moment_s
            streams = map(self._streams.__getitem__, ids[now].tolist())
            burst = list(zip(streams, produced[now].tolist(), done[now].tolist(), strict=True))
            start_s = moment_s - len(burst) / 2 * self._write_s * self.speed
            heapq.heappush(self._bursts, Burst(start_s, moment_s, burst))
        self._deliver(now_s)
        for request_id in ids[(self._produced[ids] == 0) & (produced > 0)].tolist():
            self._begin(self._streams[request_id])
        more = produced - self._produced[ids]
        some = more > 0
        gaps_s = (came_s - self._last_s[ids])[some] / more[some]
        self.metrics.count_tokens(live.cluster.requests["replica"][ids[some]], more[some], gaps_s)
        self._produced[ids], self._last_s[ids] = produced, came_s
        for request_id, ended_s in zip(ids[done].tolist(), came_s[done].tolist(), strict=True):
            self._end(self._streams.pop(request_id), ended_s)

    def _foresee(self) -> None:
        """Where a reply takes no time, tokens are due when their batch ends: those that the batches in flight will give
        requests which had some before are known already, so that half of them can be written before."""
        if self._ids is None:
            self._ids = np.fromiter(self._streams, np.int64, len(self._streams))
        ids, end_s = self._ids, self.live.next_tokens_s(self._ids)
        for moment_s in sorted(set(end_s[end_s < np.inf].tolist())):
            coming = ids[end_s == moment_s]
            start_s = moment_s - len(coming) / 2 * self._write_s * self.speed
            counts = (self._produced[coming] + 1).tolist()
            burst = [(self._streams[one], count, False) for one, count in zip(coming.tolist(), counts, strict=True)]
            heapq.heappush(self._bursts, Burst(start_s, moment_s, burst))

    def _begin(self, stream: Stream) -> None:
        """A request has its first token."""
        request = self.live.cluster.requests[stream.id]
        stream.cached_tokens, stream.replica = int(request.cached_tokens), int(request.replica)
        self._produced[stream.id], self._last_s[stream.id] = 1, request.first_token_s
        self.metrics.count_first(stream, float(request.first_token_s + request.first_reply_s))

    def _end(self, stream: Stream, now_s: float) -> None:
        self._ids = None
        status = self.live.cluster.requests[stream.id].status
        if status in (SHED, REJECTED):
            stream.verdict = "shed" if status == SHED else "rejected"
        self.metrics.count_end(stream, stream.verdict or "stop", now_s, int(self._produced[stream.id]))
        self.live.leave(stream.id, now_s)
