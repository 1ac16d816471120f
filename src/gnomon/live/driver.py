"""The clock: the simulated cluster is brought up to the present whenever something happens in it or is sent to it."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gnomon.live.cluster import Asked, LiveCluster
from gnomon.live.metrics import Metrics
from gnomon.live.stream import Stream
from gnomon.serving.engine.state import REJECTED, SHED

_SPIN_S = 0.001
"""Timers of an event loop come up to a millisecond late: the rest is waited for by looking at the clock."""


class Driver:
    """A cluster on the clock. `speed` simulated seconds pass in a real one."""

    def __init__(
        self, live: LiveCluster, metrics: Metrics, speed: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.live, self.metrics, self.speed, self._clock = live, metrics, speed, clock
        self._start_s = clock()
        self._streams: dict[int, Stream] = {}
        self._replies: list[tuple[float, int, Stream, int, bool]] = []
        self._count = 0
        self._timer: Any = None
        self.failed: Exception | None = None

    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return (self._clock() - self._start_s) * self.speed

    def send(self, asked: Asked) -> Stream:
        """Send a request now."""
        now_s = self.now_s()
        stream = Stream(self.live.send(now_s, asked), asked, now_s)
        self._streams[stream.id] = stream
        self._tick()
        return stream

    def cancel(self, stream: Stream) -> None:
        """The client of a request has left."""
        if self._streams.pop(stream.id, None) is not None and self.failed is None:
            self.metrics.count_end(stream, "abort", self.now_s())
            self.live.leave(stream.id, self.now_s())
            self._tick()

    def _tick(self) -> None:
        """Bring the cluster to the present, pass on what came of it, and come again when something happens."""
        if self.failed is not None:
            return
        now_s = self.now_s()
        try:
            self.live.advance(now_s)
            self._collect(now_s)
        except Exception as error:
            self._fail(error)
            raise
        while self._replies and self._replies[0][0] <= now_s:
            due_s, _, stream, count, is_done = heapq.heappop(self._replies)
            stream.deliver(count, is_done, self._start_s + due_s / self.speed)
        next_s = min(self.live.next_s(), self._replies[0][0] if self._replies else float("inf"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_s < float("inf"):
            wait_s = (next_s - now_s) / self.speed - _SPIN_S
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, wait_s), self._spin, self._clock() + wait_s + _SPIN_S)

    def _spin(self, due_s: float) -> None:
        if self._clock() >= due_s:
            self._timer = None
            self._tick()
        else:
            self._timer = asyncio.get_running_loop().call_soon(self._spin, due_s)

    def _collect(self, now_s: float) -> None:
        """Look which requests have got tokens or have ended. There may be ten thousand tokens a second: whatever can be
        done for all of them at once is."""
        if not self._streams:
            return
        live, streams = self.live, list(self._streams.values())
        ids = np.fromiter(self._streams, np.int64, len(streams))
        produced, ended = live.produced(ids), live.ended(ids)
        before = np.fromiter((stream.num_produced for stream in streams), np.int64, len(streams))
        changed = np.flatnonzero((produced > before) | ended)
        if not changed.size:
            return
        some = ids[changed]
        done = ended[changed] | (produced[changed] >= live.cluster.requests.output_tokens[some])
        came_s = live.newest_s(some)
        columns = (produced[changed], done, came_s, came_s + live.reply_s(some), live.cluster.requests.replica[some])
        for i, count, is_done, at_s, due_s, r in zip(changed, *(one.tolist() for one in columns), strict=True):
            stream = streams[i]
            if count and not stream.num_produced:
                self._begin(stream, r)
            if count > stream.num_produced:
                self.metrics.count_tokens(stream, count - stream.num_produced, at_s)
            stream.num_produced, stream.last_s = count, at_s
            if is_done:
                self._end(stream, at_s)
            if due_s <= now_s:
                stream.deliver(count, is_done, self._start_s + due_s / self.speed)
            else:
                self._count += 1
                heapq.heappush(self._replies, (due_s, self._count, stream, count, is_done))

    def _begin(self, stream: Stream, replica: int) -> None:
        """A request has its first token."""
        request = self.live.cluster.requests[stream.id]
        stream.cached_tokens, stream.num_produced, stream.replica = int(request.cached_tokens), 1, replica
        stream.last_s = float(request.first_token_s)
        self.metrics.count_first(stream, stream.last_s + float(request.first_reply_s))

    def _end(self, stream: Stream, now_s: float) -> None:
        del self._streams[stream.id]
        status = self.live.cluster.requests[stream.id].status
        if status in (SHED, REJECTED):
            stream.verdict = "shed" if status == SHED else "rejected"
        self.metrics.count_end(stream, stream.verdict or "stop", now_s)
        self.live.leave(stream.id, now_s)

    def _fail(self, error: Exception) -> None:
        """The engine cannot go on: nobody gets an answer any more."""
        self.failed = error
        for stream in self._streams.values():
            stream.verdict = "failed"
            stream.deliver(stream.num_tokens, True, 0.0)
        self._streams.clear()
