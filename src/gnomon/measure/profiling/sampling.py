"""Choosing tokens on this GPU: milliseconds by vocabulary and sequences, in the format of `gnomon.timing`'s table.

Kernels are queued behind one that sleeps, so that launching them does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from gnomon.measure.kernels import sampling

VOCABULARIES = (32000, 128256, 151936, 201088, 262208)
SEQUENCES = (1, 8, 16, 32, 64, 96, 127, 128, 192, 256, 384, 512, 1024)
CYCLES_PER_S = 2e9


def measure(
    out: Path, vocabularies: Sequence[int] = VOCABULARIES, sequences: Sequence[int] = SEQUENCES, device: str = "cuda"
) -> list[str]:
    """Write the table to `out`, one line for each size."""
    lines: list[str] = []
    for vocabulary in vocabularies:
        for count in sequences:
            calls = steps(vocabulary, count, torch.device(device))
            names = ",".join(f"{name}_us" for name in calls)
            lines = lines or [f"vocabulary,sequences,{names}"]
            took = ",".join(f"{1e6 * seconds(call):.1f}" for call in calls.values())
            lines.append(f"{vocabulary},{count},{took}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return lines


def steps(vocabulary: int, count: int, device: torch.device) -> dict[str, Callable[[], object]]:
    """Every step by name; those in Triton only on a GPU."""
    logits = 3.0 * torch.randn(count, vocabulary, device=device)
    p, repetition = (torch.full((count,), value, device=device) for value in (0.95, 1.1))
    k = torch.full((count,), min(20, vocabulary), device=device)
    token_ids = [torch.randint(0, vocabulary + 1, (count, length), device=device) for length in (512, 1024)]
    chosen, none = torch.zeros(count, dtype=torch.int64, device=device), torch.zeros(count, device=device)
    found: dict[str, Callable[[], object]] = {
        "random": lambda: sampling.random(logits, p),
        "sort": lambda: sampling.top_k_top_p(logits, None, p),
        "sort_top_k": lambda: sampling.top_k_top_p(logits, k, p),
        "top_k": lambda: sampling.top_k(logits.clone(), k, min(20, vocabulary)),
    }
    if device.type == "cuda":
        from gnomon.measure.kernels import gpu_sampling

        every = torch.full((count,), vocabulary, device=device)
        found["search"] = lambda: gpu_sampling.top_k_top_p(logits, every, p)
    found["penalties"] = lambda: sampling.penalties(logits, token_ids[0], token_ids[1], repetition, none)
    found["logprobs"] = lambda: sampling.logprobs(logits, chosen, 5)
    return found


def seconds(call: Callable[[], object], repeats: int = 5) -> float:
    """Median seconds on the GPU (on a CPU: of the call)."""
    for _ in range(2):
        call()
    begun = time.perf_counter()
    call()
    once = time.perf_counter() - begun
    if not torch.cuda.is_available():
        return once
    took = []
    for _ in range(repeats):
        torch.cuda._sleep(int((2.0 * once + 3e-4) * CYCLES_PER_S))
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        last.synchronize()
        took.append(first.elapsed_time(last) * 1e-3)
    return statistics.median(took)
