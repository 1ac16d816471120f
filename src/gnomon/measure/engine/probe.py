"""How fast the engine is against what the hardware allows: single iterations, and the load it can carry."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from gnomon.measure.engine.load import MIXES, draw
from gnomon.measure.engine.runner import Runner
from gnomon.measure.engine.scheduler import Batch, Request

H200_FLOPS_PER_S = 989e12  # Dense bf16, NVIDIA H200 data sheet.
H200_BYTES_PER_S = 4.8e12  # HBM3e, same source.


@dataclass(frozen=True)
class Probe:
    """One kind of iteration: whole seconds (host included), the GPU's, and the bound of the data sheet."""

    name: str
    seconds: float
    gpu_s: float
    bound_s: float

    @property
    def share(self) -> float:
        """Bound over time: 1.0 is the best the hardware allows."""
        return self.bound_s / self.seconds


def decode(runner: Runner, sequences: int, kv: int, repeats: int = 30) -> Probe:
    batch = _batch(runner, [1] * sequences, [kv] * sequences)
    seconds, gpu_s = _time(runner, batch, repeats)
    shape = runner.shape
    embedding = 2 * shape.vocab_size * shape.hidden_size
    num_bytes = shape.weight_bytes - embedding + sequences * kv * shape.kv_bytes_per_token
    return Probe(f"decode of {sequences} x {kv}", seconds, gpu_s, num_bytes / H200_BYTES_PER_S)


def prefill(runner: Runner, tokens: int, repeats: int = 10, rest_s: float = 0.0) -> Probe:
    """An iteration that prefills one prompt of `tokens`; `rest_s` between repeats keeps up a power-capped clock."""
    batch = _batch(runner, [tokens], [0])
    seconds, gpu_s = _time(runner, batch, repeats, rest_s)
    shape = runner.shape
    per_token = shape.weight_bytes / 2 - 2 * shape.vocab_size * shape.hidden_size
    pairs = shape.num_layers * shape.num_heads * shape.head_dim * tokens**2
    flops = 2 * tokens * per_token + 2 * pairs + 2 * shape.vocab_size * shape.hidden_size
    return Probe(f"prefill of {tokens}{', rested' if rest_s else ''}", seconds, gpu_s, flops / H200_FLOPS_PER_S)


def capacity(runner: Runner, mix: str) -> float:
    """Requests per second that the engine can carry: whole prompts at the full budget, decodes at the largest batch.

    A request costs its prompt's share of full prefill iterations and, for each further token, its share of a decode
    iteration of `max_num_seqs` at the mean KV length.
    """
    prompts, outputs = draw(MIXES[mix], 100_000, np.random.default_rng(0))
    prompt, output = float(np.mean(prompts)), float(np.mean(outputs))
    budget, seqs = runner.config.max_num_batched_tokens, runner.config.max_num_seqs
    per_prompt_token = prefill(runner, budget).seconds / budget
    per_token = decode(runner, seqs, int(prompt + output / 2)).seconds / seqs
    return 1.0 / (prompt * per_prompt_token + (output - 1) * per_token)


def _batch(runner: Runner, num_tokens: list[int], computed: list[int]) -> Batch:
    """A batch whose sequences lie in distinct random blocks (repeated if they are too few)."""
    rng = np.random.default_rng(0)
    size = (runner.config.max_num_seqs, runner.config.blocks_per_sequence)
    runner.tables[:] = np.resize(rng.permutation(runner.num_blocks), size)
    requests = []
    for index, (count, done) in enumerate(zip(num_tokens, computed, strict=True)):
        prompt = rng.integers(0, runner.shape.vocab_size, done + count, np.int32)
        requests.append(Request(index, 0.0, prompt, 1, computed=done, slot=index))
    return Batch(1, 0, requests, num_tokens)


def _time(runner: Runner, batch: Batch, repeats: int, rest_s: float = 0.0) -> tuple[float, float]:
    """Median seconds and GPU seconds of a batch run again and again, the next one prepared during each as in a run."""
    whole, gpu = [], []
    prepared = runner.prepare(batch)
    for _ in range(repeats + 3):
        time.sleep(rest_s)
        begun = time.perf_counter()
        flight = runner.launch(prepared)
        prepared = runner.prepare(batch)
        while not flight.has_landed():
            pass
        whole.append(time.perf_counter() - begun)
        gpu.append(flight.gpu_s())
    return statistics.median(whole[3:]), statistics.median(gpu[3:])
