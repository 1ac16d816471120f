"""A profile in the making: shapes in, adaptive grids of measurements out, each shape measured once."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from gnomon.measure.kernels.attention import PagedAttention
from gnomon.measure.kernels.work import Layout, WorkList
from gnomon.measure.profiling import grid, operators
from gnomon.measure.profiling.bundle import Journal, Key
from gnomon.measure.profiling.operators import PAGE_TOKENS, expected_s
from gnomon.measure.profiling.pool import Pool
from gnomon.measure.profiling.quality import NOISY
from gnomon.measure.profiling.shapes import Shapes
from gnomon.measure.profiling.timer import Call, Timer

TABLES = 4  # Page tables among which calls rotate, each naming other pages of the cache.


@dataclass(frozen=True)
class AttentionBatch:
    """A chunk of one prefill and some decodes of `decode_kv` tokens on average.

    The lengths of decodes are spread evenly between nothing and twice the average, as those of a server's batch are:
    equal ones fill the GPU in whole rounds or just not, which no server's batches do. Where `long_decodes` are given,
    so many have `long_kv` tokens, and the others `decode_kv` each.
    """

    chunk: int = 0
    kv: int = 0
    decodes: int = 0
    decode_kv: int = 0
    long_decodes: int = 0
    long_kv: int = 0

    def decode_lengths(self) -> list[int]:
        """KV tokens of each decode; the long ones are spread among the others."""
        if not self.long_decodes:
            return [max(1, round(self.decode_kv * (2 * i + 1) / self.decodes)) for i in range(self.decodes)]
        lengths = [self.decode_kv] * self.decodes
        for index in range(self.long_decodes):
            lengths[index * self.decodes // self.long_decodes] = self.long_kv
        return lengths

    @property
    def key_tokens(self) -> int:
        return self.chunk + self.kv + sum(self.decode_lengths())


class AttentionShape:
    """One rank's heads, with a cache of random keys and values."""

    def __init__(
        self, pool: Pool, heads: int, kv_heads: int, head_dim: int, *, max_chunk: int, max_decodes: int
    ) -> None:
        self.pool, self.heads, self.kv_heads, self.head_dim = pool, heads, kv_heads, head_dim
        token_elements = kv_heads * head_dim
        caches = pool.rotating(4 * pool.cold_bytes // (token_elements * PAGE_TOKENS), kv_heads, PAGE_TOKENS, head_dim)
        self.k_cache, self.v_cache = caches[0], caches[1]
        self._layout = Layout(max_decodes, 1, max_chunk, heads, kv_heads)
        self._work = torch.zeros(self._layout.size, dtype=torch.int32, device=pool.device)
        self._attention = PagedAttention(self._layout, head_dim, self._work)

    def call(self, batch: AttentionBatch) -> tuple[Call, float]:
        """The call for `batch`, and how long to expect."""
        lengths = batch.decode_lengths()
        rows = np.array(([batch.chunk] if batch.chunk else []) + [1] * batch.decodes, np.int32)
        position = np.array(([batch.kv] if batch.chunk else []) + [n - 1 for n in lengths], np.int32)
        first_row = (np.cumsum(rows) - rows).astype(np.int32)
        work = np.zeros(self._layout.size, np.int32)
        WorkList(self._layout, work).fill(first_row, rows, position, np.arange(len(rows), dtype=np.int32))
        self._work.copy_(torch.from_numpy(work))
        tokens = int(rows.sum())
        qkv = self.pool.fixed("qkv", tokens, (self.heads + 2 * self.kv_heads) * self.head_dim)
        out = self.pool.fixed("attended", tokens, self.heads * self.head_dim)
        tables = self._tables(len(rows), int((position + rows).max()))

        def run(index: int) -> None:
            self._attention(
                qkv, self.k_cache, self.v_cache, tables[index % TABLES], out,
                with_chunks=batch.chunk > 0, with_decodes=batch.decodes > 0,
            )  # fmt: skip

        pairs = batch.chunk * (batch.kv + batch.chunk / 2) + sum(lengths)
        item = self.pool.dtype.itemsize
        moved = 2.0 * item * self.kv_heads * self.head_dim * batch.key_tokens
        return run, expected_s(8.0 * self.heads * self.head_dim * pairs, moved)

    def _tables(self, rows: int, longest: int) -> list[torch.Tensor]:
        """Random pages for every sequence; long batches use a page several times, far enough apart for the cache."""
        width = -(-longest // PAGE_TOKENS)
        pages = self.k_cache.shape[0]
        order = torch.randperm(pages, device=self.pool.device, dtype=torch.int32)
        needed = rows * width
        spread = order.repeat(-(-(needed + TABLES * 997) // pages) + 1)
        return [spread[i * 997 % pages :][:needed].view(rows, width) for i in range(TABLES)]


TOKENS = (1, 8, 16, 17, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192)
"""17: PyTorch gathers up to 16 rows with another kernel."""
GEMM_TOKENS = tuple(sorted({*TOKENS, 2, 4, *range(8, 256, 8), *range(256, 512, 16), 640, 896, 1280, 1792, 6144}))
"""Up to 512 the sizes to which engines pad their iterations: libraries change their kernel between any two of them."""
SEQUENCES = (1, 8, 16, 32, 64, 96, 128, 192, 256, 264, 384, 512)
CHUNKS = (16, 32, 64, 96, 192, 320, 448, 704, 960, 1472, 1984, 2752, 4032, 8192)
"""From 64 to 4,032 in the middle of the kernel's tiles of 128: their ends would make all between look too fast."""
CHUNK_KV = (0, 256, 1024, 4096, 16384)
DECODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DECODE_KV = (16, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SKEWED = ((8, 1), (32, 4), (128, 16))
MIXED = ((256, 0, 32, 1024), (512, 512, 64, 512), (1024, 0, 64, 2048), (2048, 2048, 128, 1024))


@dataclass(frozen=True)
class Limits:
    """How far and how finely to measure."""

    max_tokens: int = 8192
    max_sequences: int = 512
    points: int = 76
    """Most points of one token-level curve; adaptive ones come on top of the coarse grid up to this many."""
    attention_points: int = 100
    """Most points of one attention surface (prefill, decode)."""
    slowest_s: float = 12e-3
    """Calls expected to take longer are left to extrapolation."""
    held_out: int = 2
    """Points per curve measured at the end to see how well the others predict them."""


class Session:
    """Measures shapes into a journal; what the journal already has is not measured again."""

    def __init__(self, pool: Pool, timer: Timer, journal: Journal, limits: Limits, seed: int = 0) -> None:
        self.pool, self.timer, self.journal, self.limits = pool, timer, journal, limits
        self.held_out: list[tuple[str, Key, float]] = []
        """(file, key, relative error of the prediction) of points measured after their curve."""
        self._random = np.random.default_rng(seed)

    def compute(self, shapes: Shapes) -> None:
        """Token-level operators: GEMMs, heads, elementwise kernels, experts."""
        tokens, gemm_tokens = (
            sorted({t for t in (*grid_tokens, *shapes.tokens) if t <= self.limits.max_tokens})
            for grid_tokens in (TOKENS, GEMM_TOKENS)
        )
        sequences = [s for s in SEQUENCES if s <= self.limits.max_sequences]
        total = self.limits.points * len(shapes.gemm)
        total += (len(shapes.head) + len(shapes.elementwise) + len(shapes.moe)) * len(tokens)
        progress = Progress("compute", total)
        for n, k in shapes.gemm:
            most = max(self.limits.points, len(gemm_tokens) + self.limits.held_out)
            self._curve(
                "gemm", (shapes.dtype,), (n, k), gemm_tokens, partial(operators.gemm, self.pool, n=n, k=k), progress,
                most,
            )  # fmt: skip
            self.pool.release()
        for n, k in shapes.head:
            self._curve(
                "gemm", (shapes.dtype,), (n, k), sequences, partial(operators.gemm, self.pool, n=n, k=k), progress,
                len(sequences) + 6,
            )  # fmt: skip
            self.pool.release()
        for operator, width in shapes.elementwise:
            sizes = sequences if operator == "sampler" else tokens
            build = partial(operators.elementwise, self.pool, operator, width=width, head_dim=shapes.head_dim)
            self._curve("elementwise", (shapes.dtype, operator), (width,), sizes, build, progress, len(sizes) + 4)
        self.pool.release()
        for shape in shapes.moe:
            self._experts(shapes.dtype, shape, tokens, progress)
            self.pool.release()
        progress.end()

    def attention(self, shapes: Shapes) -> None:
        """Prefill, decode, mixed and skewed batches of every attention shape."""
        progress = Progress("attention", len(shapes.attention) * 2 * self.limits.attention_points)
        for heads, kv_heads, head_dim in shapes.attention:
            shape = AttentionShape(
                self.pool, heads, kv_heads, head_dim, max_chunk=max(CHUNKS), max_decodes=max(DECODES)
            )
            key = (shapes.dtype, heads, kv_heads, head_dim)
            self._surface(key, shape, CHUNKS, CHUNK_KV, lambda a, b: AttentionBatch(chunk=a, kv=b), progress)
            self._surface(key, shape, DECODES, DECODE_KV, lambda a, b: AttentionBatch(decodes=a, decode_kv=b), progress)
            for chunk, kv, decodes, decode_kv in MIXED:  # And its two parts, to see whether their times add up.
                self._attention(key, shape, AttentionBatch(chunk, kv, decodes, decode_kv), progress)
                self._attention(key, shape, AttentionBatch(chunk, kv), progress)
                self._attention(key, shape, AttentionBatch(decodes=decodes, decode_kv=decode_kv), progress)
            for decodes, long_decodes in SKEWED:
                for short, long in ((256, 2048), (512, 8192)):
                    self._attention(key, shape, AttentionBatch(0, 0, decodes, short, long_decodes, long), progress)
            self.pool.release()
        progress.end()

    def _curve(
        self, file: str, before: Key, after: Key, sizes: Iterable[int], build: Callable[[int], tuple[Call, float]],
        progress: Progress, most_points: int,
    ) -> None:  # fmt: skip
        def measure(point: grid.Point) -> float:
            return self._measured(file, (*before, *point, *after), lambda: build(point[0]), progress)

        times: dict[grid.Point, float] = {}
        for size in sizes:
            seconds = measure((size,))
            times[(size,)] = seconds
            if seconds > self.limits.slowest_s:
                break
        known: dict[grid.Point, float] = {
            (key[len(before)],): seconds
            for key, (seconds, _) in self.journal.rows[file].items()
            if _is_of(key, before, after)
        }
        refined = grid.refine(measure, known | times, most_points=most_points - self.limits.held_out)
        self._hold_out(file, before, after, refined, measure)

    def _hold_out(
        self, file: str, before: Key, after: Key, times: dict[grid.Point, float], measure: grid.Measure
    ) -> None:
        """Measure a few sizes that no grid chose, and compare with what the curve predicts."""
        largest = max(times)[0]
        for _ in range(self.limits.held_out):
            size = int(np.exp(self._random.uniform(np.log(2), np.log(largest))))
            predicted = grid.interpolate(times, (size,))
            if (size,) in times or predicted is None:
                continue
            seconds = measure((size,))
            self.held_out.append((file, (*before, size, *after), abs(predicted - seconds) / seconds))

    def _surface(
        self, key: Key, shape: AttentionShape, first: Iterable[int], second: Iterable[int],
        batch: Callable[[int, int], AttentionBatch], progress: Progress,
    ) -> None:  # fmt: skip
        def measure(point: grid.Point) -> float:
            return self._attention(key, shape, batch(point[0], point[1]), progress)

        times: dict[grid.Point, float] = {}
        second = list(second)
        for a in first:
            for b in second:
                seconds = times[(a, b)] = measure((a, b))
                if seconds > self.limits.slowest_s:
                    break
        grid.refine(measure, times, most_points=self.limits.attention_points, tolerance=0.03)

    def _attention(self, key: Key, shape: AttentionShape, batch: AttentionBatch, progress: Progress) -> float:
        sizes: Key = (batch.chunk, batch.kv, batch.decodes)
        if batch.long_decodes:
            row = (*key, *sizes, batch.long_decodes, batch.decode_kv, batch.long_kv)
            return self._measured("skew", row, lambda: shape.call(batch), progress)
        file = "mixed" if batch.chunk and batch.decodes else "attention"
        return self._measured(file, (*key, *sizes, batch.decode_kv), lambda: shape.call(batch), progress)

    def _experts(self, dtype: str, shape: tuple[int, int, int, int], sizes: Iterable[int], progress: Progress) -> None:
        for tokens in sizes:
            call, expected, touched = operators.experts(self.pool, *shape, tokens)
            ready = (call, expected)
            key = (dtype, *shape, tokens, touched)
            if self._measured("moe", key, partial(_given, ready), progress) > self.limits.slowest_s:
                break

    def _measured(self, file: str, key: Key, build: Callable[[], tuple[Call, float]], progress: Progress) -> float:
        seconds = self.journal.get(file, key)
        if seconds is None:
            timing = self.timer(*build())
            if timing.spread > NOISY:
                timing = min(timing, self.timer(*build()), key=lambda one: one.spread)
            seconds = timing.seconds
            self.journal.add(file, key, seconds, timing.spread)
        progress.step(f"{file} {' '.join(map(str, key))}")
        return seconds


def _is_of(key: Key, before: Key, after: Key) -> bool:
    """Whether a row belongs to the curve between the columns `before` and `after` its size."""
    return key[: len(before)] == before and key[len(before) + 1 :] == after


def _given(ready: tuple[Call, float]) -> tuple[Call, float]:
    return ready


class Progress:
    """Counts work done out of an estimate that may grow."""

    def __init__(self, label: str, total: int, every_s: float = 0.2) -> None:
        self.label, self.total, self.done = label, total, 0
        self._begun = self._shown = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._every_s = every_s if self._is_terminal else 15.0

    def step(self, what: str) -> None:
        self.done += 1
        now = time.monotonic()
        if now - self._shown < self._every_s:
            return
        self._shown = now
        share = min(1.0, self.done / max(1, self.total))
        left = (now - self._begun) * (1 - share) / share
        line = f"{self.label} {share:4.0%}  {left:4.0f} s left  {what}"
        bar = "#" * round(20 * share)
        sys.stderr.write(f"\r[{bar:<20}] {line:<60.60}" if self._is_terminal else line + "\n")
        sys.stderr.flush()

    def end(self) -> None:
        if self._is_terminal:
            sys.stderr.write("\n")
