"""Runs batches: fills the model's inputs, replays the captured graphs, brings the sampled tokens back."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from gnomon.engine.model import Model
from gnomon.engine.scheduler import Batch
from gnomon.engine.shape import EngineConfig, ModelShape

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
    gpu_s: float


class Runner:
    """A model with its graphs. On a CPU the same kernels run eagerly (for tests)."""

    def __init__(self, shape: ModelShape, config: EngineConfig, device: str = "cuda", dtype: str = "bfloat16") -> None:
        self.shape, self.config, self.device = shape, config, torch.device(device)
        self.num_blocks = config.num_kv_blocks or blocks_that_fit(shape, config, self.device)
        self.model = Model(shape, config, self.num_blocks, self.device, getattr(torch, dtype))
        self._on_gpu = self.device.type == "cuda"
        tokens, seqs = config.max_num_batched_tokens, config.max_num_seqs
        self._host = {
            "token_ids": self._pinned(tokens),
            "positions": self._pinned(tokens),
            "slots": self._pinned(tokens),
            "sample_rows": self._pinned(seqs),
            "tables": self._pinned(seqs, config.blocks_per_sequence),
        }
        self._sampled = torch.zeros(seqs, dtype=torch.int64, pin_memory=self._on_gpu)
        self._bodies: dict[tuple[int, bool], Callable[[], None]] = {}
        self._heads: dict[int, Callable[[], None]] = {}
        self._sizes = list(config.capture_sizes)
        self.capture_s = self._capture()

    def run(self, batch: Batch, tables: np.ndarray) -> tuple[list[int], Iteration]:
        """Run one iteration to its end; returns one sampled token per request."""
        begun = time.perf_counter()
        num_rows = np.array(batch.num_tokens, np.int32)
        position = np.array([request.computed for request in batch.requests], np.int32)
        tokens = self._fill(batch, num_rows, position, tables)
        is_decode = num_rows == 1
        with_chunks = not bool(is_decode.all())
        size = self._sizes[bisect.bisect_left(self._sizes, tokens)]
        sequences = len(batch.requests)
        head_size = min(self._sizes[bisect.bisect_left(self._sizes, sequences)], self.config.max_num_seqs)
        prepared = time.perf_counter()
        gpu_s = self._replay(self._bodies[size, with_chunks], self._heads[head_size])
        kv, chunks = position[is_decode].astype(np.int64), num_rows[~is_decode].astype(np.float64)
        return self._sampled[:sequences].tolist(), Iteration(
            tokens=tokens,
            sequences=sequences,
            decodes=len(kv),
            decode_kv=int(kv.sum()),
            decode_kv_max=int(kv.max()) if len(kv) else 0,
            chunks_squared=float((chunks**2).sum()),
            chunks_kv=float((chunks * position[~is_decode]).sum()),
            prepare_s=prepared - begun,
            gpu_s=gpu_s,
        )

    def _fill(self, batch: Batch, num_rows: np.ndarray, position: np.ndarray, tables: np.ndarray) -> int:
        """Write the batch's inputs into the pinned buffers; returns its tokens."""
        host = {name: tensor.numpy() for name, tensor in self._host.items()}
        block_size = self.config.block_size
        slot = np.array([request.slot for request in batch.requests], np.int32)
        end = np.cumsum(num_rows, dtype=np.int32)
        first = end - num_rows
        tokens = int(end[-1])
        sequence = np.repeat(np.arange(len(slot)), num_rows)
        at = np.arange(tokens, dtype=np.int32) - first[sequence] + position[sequence]
        host["positions"][:tokens] = at
        host["slots"][:tokens] = tables[slot[sequence], at // block_size] * block_size + at % block_size
        host["slots"][tokens:] = -1
        ids: list[int] = []
        for request, count in zip(batch.requests, batch.num_tokens, strict=True):
            if count == 1 and request.output:
                ids.append(request.output[-1])
            else:
                ids.extend(_token_ids(request.prompt, request.output, request.computed, count))
        host["token_ids"][:tokens] = ids
        host["sample_rows"][: len(end)] = end - 1
        host["tables"][:] = tables
        self.model.attention.plan(first, num_rows, position, slot)
        return tokens

    def _replay(self, body: Callable[[], None], head: Callable[[], None]) -> float:
        """Copy the inputs, run both graphs, copy the samples; returns the GPU's seconds from first copy to last."""
        if not self._on_gpu:
            begun = time.perf_counter()
            self._upload()
            body()
            head()
            self._sampled.copy_(self.model.sampled)
            return time.perf_counter() - begun
        self._start.record()
        self._upload()
        body()
        head()
        self._sampled.copy_(self.model.sampled, non_blocking=True)
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e-3

    def _upload(self) -> None:
        for name, tensor in self._host.items():
            getattr(self.model, name).copy_(tensor, non_blocking=True)
        self.model.attention.upload()

    def _capture(self) -> float:
        """Make every iteration's work callable: as CUDA graphs on a GPU, plainly on a CPU."""
        begun = time.perf_counter()
        seqs = self.config.max_num_seqs
        largest_decode = self._sizes[bisect.bisect_left(self._sizes, min(seqs, self._sizes[-1]))]
        bodies = [(size, True) for size in self._sizes]
        bodies += [(size, False) for size in self._sizes if size <= largest_decode]
        heads = sorted({min(size, seqs) for size in self._sizes})
        if self._on_gpu:
            self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        pool = None
        for size, with_chunks in sorted(bodies, reverse=True):
            work = _body_of(self.model, size, with_chunks)
            self._bodies[size, with_chunks], pool = self._captured(work, pool)
        for size in reversed(heads):
            self._heads[size], pool = self._captured(_head_of(self.model, size), pool)
        return time.perf_counter() - begun

    def _captured(self, work: Callable[[], None], pool: object) -> tuple[Callable[[], None], object]:
        if not self._on_gpu:
            return work, None
        work()  # Compiles kernels and lets cuBLAS choose, outside the capture.
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            work()
        return graph.replay, graph.pool()

    def _pinned(self, *size: int) -> torch.Tensor:
        return torch.zeros(*size, dtype=torch.int32, pin_memory=self._on_gpu)


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


def _token_ids(prompt: list[int], output: list[int], start: int, count: int) -> list[int]:
    if start + count <= len(prompt):
        return prompt[start : start + count]
    return (prompt + output)[start : start + count]


def _body_of(model: Model, size: int, with_chunks: bool) -> Callable[[], None]:
    return lambda: model.body(size, with_chunks=with_chunks)


def _head_of(model: Model, size: int) -> Callable[[], None]:
    return lambda: model.head(size)
