"""Runs batches: prepares the model's inputs, replays the captured graphs, brings the sampled tokens back."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from gnomon.measure.engine.model import Model
from gnomon.measure.engine.scheduler import Batch
from gnomon.measure.engine.shape import EngineConfig, ModelShape

MEMORY_FRACTION = 0.9
RESERVE_BYTES = 6 << 30  # CUDA context, graphs, cuBLAS workspaces, activations.


@dataclass(frozen=True)
class Iteration:
    """What one iteration contained and how long its parts took; KV counts are before the iteration."""

    tokens: int
    sequences: int
    decodes: int
    decode_kv: int
    decode_kv_max: int
    chunks_squared: float
    chunks_kv: float
    prepare_s: float
    """Host time of writing its inputs, most of it while the GPU was still at the iteration before."""
    launch_s: float = 0.0
    """Host time of launching it: long without a graph, whatever the GPU has to do."""
    gpu_s: float = 0.0
    """From the first copy to the last, on the GPU's clock: waiting for launches included."""


@dataclass(frozen=True)
class Prepared:
    """A batch whose inputs are written: which graphs to replay, and what is in it."""

    body: Callable[[], None]
    head: Callable[[], None]
    iteration: Iteration


class Flight:
    """What an iteration on the GPU leaves: when it began and ended there, and the tokens it sampled."""

    def __init__(self, max_sequences: int, *, on_gpu: bool) -> None:
        self.sampled = torch.zeros(max_sequences, dtype=torch.int64, pin_memory=on_gpu)
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if on_gpu else []
        self.launch_s = 0.0

    def has_landed(self) -> bool:
        return not self.events or bool(self.events[1].query())

    def gpu_s(self) -> float:
        return float(self.events[0].elapsed_time(self.events[1])) * 1e-3 if self.events else 0.0


class Runner:
    """A model with its graphs. On a CPU the same kernels run eagerly (for tests).

    Inputs of one batch may be prepared while the batch before runs, but only of one; what a batch sampled can be read
    until the batch after the next is launched.
    """

    def __init__(self, shape: ModelShape, config: EngineConfig, device: str = "cuda", dtype: str = "bfloat16") -> None:
        self.shape, self.config, self.device = shape, config, torch.device(device)
        self.num_blocks = config.num_kv_blocks or blocks_that_fit(shape, config, self.device)
        self.model = Model(shape, config, self.num_blocks, self.device, getattr(torch, dtype))
        self._inputs = self.model.inputs
        self.tables = self._inputs.host_tables
        """Page tables, one row per slot, written by the scheduler."""
        self._on_gpu = self.device.type == "cuda"
        self._flights = [Flight(config.max_num_seqs, on_gpu=self._on_gpu) for _ in range(2)]
        self._uploaded = torch.cuda.Event() if self._on_gpu else None
        self._bodies: dict[tuple[int, bool, bool], Callable[[], None]] = {}
        self._heads: dict[int, Callable[[], None]] = {}
        self._sizes = list(config.capture_sizes)
        self.capture_s = self._capture()

    def prepare(self, batch: Batch, *, again: bool = False) -> Prepared:
        """Write the inputs of a batch (`again`: over what was prepared for it before)."""
        begun = time.perf_counter()
        num_rows = np.array(batch.num_tokens, np.int32)
        position = np.array([request.computed for request in batch.requests], np.int32)
        tokens = self._inputs.fill(batch, num_rows, position, again=again)
        is_decode = num_rows == 1
        kv, chunks = position[is_decode].astype(np.int64), num_rows[~is_decode].astype(np.float64)
        return self._with_graphs(
            Iteration(
                tokens=tokens, sequences=len(num_rows), decodes=len(kv), decode_kv=int(kv.sum()),
                decode_kv_max=int(kv.max()) if len(kv) else 0, chunks_squared=float((chunks**2).sum()),
                chunks_kv=float((chunks * position[~is_decode]).sum()), prepare_s=time.perf_counter() - begun,
            )
        )  # fmt: skip

    def extend(self, prepared: Prepared, batch: Batch) -> Prepared:
        """Add what was admitted to a batch after it was prepared. The GPU may be waiting, so this is kept short."""
        old = prepared.iteration
        requests, counts = batch.requests[old.sequences :], batch.num_tokens[old.sequences :]
        if min(counts) == 1:  # Counts as a decode: the whole work list changes.
            return self.prepare(batch, again=True)
        begun = time.perf_counter()
        self._inputs.append(requests, counts, old.sequences, old.tokens)
        new = replace(
            old, tokens=old.tokens + sum(counts), sequences=len(batch.requests),
            chunks_squared=old.chunks_squared + sum(count * count for count in counts),
            chunks_kv=old.chunks_kv + sum(n * request.computed for n, request in zip(counts, requests, strict=True)),
            prepare_s=old.prepare_s + time.perf_counter() - begun,
        )  # fmt: skip
        return self._with_graphs(new)

    def _with_graphs(self, iteration: Iteration) -> Prepared:
        kinds = iteration.chunks_squared > 0, iteration.decodes > 0
        if self.config.eager or (self.config.eager_prefill and kinds[0]):
            body = _body_of(self.model, iteration.tokens, *kinds)
        else:
            body = self._bodies[(self._padded(iteration.tokens), *kinds)]
        if self.config.eager:
            head = _head_of(self.model, iteration.sequences)
        else:
            head = self._heads[min(self._padded(iteration.sequences), self.config.max_num_seqs)]
        return Prepared(body, head, iteration)

    def launch(self, prepared: Prepared) -> Flight:
        """Start the iteration that was prepared last; when this returns, its inputs are on the GPU."""
        begun = time.perf_counter()
        flight = self._flights[0]
        self._flights.reverse()
        if flight.events:
            flight.events[0].record()
        self._inputs.upload()
        if self._uploaded:
            self._uploaded.record()
        prepared.body()
        prepared.head()
        flight.sampled.copy_(self.model.sampled, non_blocking=True)
        if flight.events:
            flight.events[1].record()
        flight.launch_s = time.perf_counter() - begun
        if self._uploaded:
            self._uploaded.synchronize()
        return flight

    def _padded(self, count: int) -> int:
        return self._sizes[bisect.bisect_left(self._sizes, count)]

    def _capture(self) -> float:
        """Make every iteration's work callable: as CUDA graphs on a GPU, plainly on a CPU."""
        begun = time.perf_counter()
        seqs = self.config.max_num_seqs
        largest_decode = self._padded(min(seqs, self._sizes[-1]))
        bodies = [(size, True, with_decodes) for size in self._sizes for with_decodes in (True, False)]
        if self.config.eager_prefill or self.config.eager:
            self._warm_up(bodies)
            bodies = []
        decodes = [(size, False, True) for size in self._sizes if size <= largest_decode]
        heads = sorted({min(size, seqs) for size in self._sizes})
        if self.config.eager:
            self._warm_up(decodes)
            for size in heads:
                self.model.head(size)
            return time.perf_counter() - begun
        bodies += decodes
        pool = None
        for body in sorted(bodies, reverse=True):
            self._bodies[body], pool = self._captured(_body_of(self.model, *body), pool)
        for size in reversed(heads):
            self._heads[size], pool = self._captured(_head_of(self.model, size), pool)
        return time.perf_counter() - begun

    def _warm_up(self, bodies: list[tuple[int, bool, bool]]) -> None:
        """Run once what will run eagerly, at and beside each size: kernels are compiled and loaded at first use."""
        for size, *kinds in bodies if self._on_gpu else []:
            for tokens in range(max(1, size - 7), size + 1, 3):
                _body_of(self.model, tokens, *kinds)()
            torch.cuda.synchronize()

    def _captured(self, work: Callable[[], None], pool: object) -> tuple[Callable[[], None], object]:
        if not self._on_gpu:
            return work, None
        work()  # Compiles kernels and lets cuBLAS choose, outside the capture.
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            work()
        graph.replay()  # The first replay takes longer: it brings the graph to the GPU.
        return graph.replay, graph.pool()


def blocks_that_fit(shape: ModelShape, config: EngineConfig, device: torch.device) -> int:
    """KV blocks in what is left of `MEMORY_FRACTION` of the GPU beside weights and reserve."""
    if device.type != "cuda":
        return config.max_num_seqs * config.blocks_per_sequence
    total = torch.cuda.get_device_properties(device).total_memory
    free = MEMORY_FRACTION * total - shape.weight_bytes - RESERVE_BYTES
    blocks = int(free // (shape.kv_bytes_per_token * config.block_size))
    if blocks < config.blocks_per_sequence:
        raise ValueError(f"{shape.name} does not fit: {shape.weight_bytes / 2**30:.0f} GiB of weights on this GPU")
    return blocks


def _body_of(model: Model, size: int, with_chunks: bool, with_decodes: bool) -> Callable[[], None]:
    return lambda: model.body(size, with_chunks=with_chunks, with_decodes=with_decodes)


def _head_of(model: Model, size: int) -> Callable[[], None]:
    return lambda: model.head(size)
