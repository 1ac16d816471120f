"""Own training steps on one H200 (PyTorch 2.11, transformers 5.17, random weights, bf16, fused AdamW): predicted.

The constants of `training/data/constants.yaml` come from these and from single kernels, so this says that they still
describe what they came from; `gnomon verify training` holds them against others' steps.
"""

from __future__ import annotations

import pytest

from gnomon.core.config import build
from gnomon.core.units import GIB
from gnomon.training import TrainConfig, train_step

HARNESS_GIB = 1.05
"""Held throughout by the measuring process itself, whatever the model."""
STEPS = [
    # model, sequences, tokens, recomputed, compiled, ms of forward, backward, optimizer, GiB at the peak
    ("llama-3.2-1b", 1, 4096, 0, 1, 24.788, 43.269, 6.53, 18.589),
    ("llama-3.2-1b", 1, 4096, 0, 0, 31.355, 55.243, 6.455, 20.59),
    ("qwen3-1.7b", 2, 4096, 0, 1, 62.221, 126.91, 9.236, 40.116),
    ("llama-3.1-8b", 1, 4096, 0, 1, 105.598, 227.762, 45.827, 69.002),
    ("llama-3.1-8b", 1, 4096, 0, 0, 130.784, 262.847, 44.429, 76.502),
    ("llama-3.2-3b", 1, 8192, 0, 1, 113.733, 246.066, 17.277, 50.274),
    ("qwen3-8b", 1, 2048, 1, 1, 53.378, 160.195, 45.816, 62.164),
    ("llama-2-7b", 1, 4096, 1, 1, 94.79, 305.251, 36.462, 51.485),
    ("qwen3-1.7b", 1, 8192, 1, 0, 103.566, 280.382, 8.949, 25.644),
    ("qwen3-4b", 2, 4096, 0, 0, 189.664, 395.247, 20.896, 84.507),
    ("qwen3-0.6b", 8, 2048, 0, 1, 61.247, 109.087, 3.174, 51.714),
    ("llama-3.2-3b", 4, 4096, 1, 1, 208.185, 591.458, 17.487, 45.555),
    ("qwen3-8b", 1, 8192, 0, 0, 301.872, 634.776, 46.759, 120.194),
]
AROUND_THE_LIMIT = [
    ("llama-3.2-1b", 9, 4096, 0, True),
    ("llama-3.2-1b", 10, 4096, 0, False),
    ("llama-3.2-1b", 11, 4096, 0, False),
    ("llama-3.1-8b", 2, 4096, 0, True),
    ("llama-3.1-8b", 3, 4096, 0, False),
    ("llama-3.1-8b", 5, 8192, 1, False),
    ("llama-3.1-8b", 7, 8192, 1, False),
    ("qwen3-8b", 1, 6144, 0, True),
    ("qwen3-8b", 1, 8192, 0, True),
    ("qwen3-4b", 3, 4096, 0, True),
    ("qwen3-4b", 4, 4096, 0, False),
    ("qwen3-0.6b", 10, 4096, 0, False),
    ("qwen3-0.6b", 12, 4096, 0, False),
]


def asked(model: str, sequences: int, tokens: int, recomputed: int, compiled: int = 0) -> TrainConfig:
    given = {
        "model": model, "device": "h200", "gpus": 1, "framework": "transformers", "sharding": "none",
        "micro_batch": sequences, "sequence": tokens, "recompute": "full" if recomputed else "none",
        "compile": bool(compiled),
    }  # fmt: skip
    return build(TrainConfig, given)


@pytest.mark.parametrize("measured", STEPS)
def test_steps(measured: tuple[str, int, int, int, int, float, float, float, float]) -> None:
    step = train_step(asked(*measured[:5]))
    for phase, ms in zip(("forward", "backward", "optimizer"), measured[5:8], strict=True):
        assert step.phases[phase] * 1e3 == pytest.approx(ms, rel=0.09), phase
    assert step.memory.peak_bytes / GIB == pytest.approx(measured[8] - HARNESS_GIB, rel=0.02)


@pytest.mark.parametrize("case", AROUND_THE_LIMIT)
def test_whether_it_fits(case: tuple[str, int, int, int, bool]) -> None:
    assert train_step(asked(*case[:4]), check=False).fits == case[4]
