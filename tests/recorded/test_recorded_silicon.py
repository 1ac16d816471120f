"""Iterations from the kernels of aiconfigurator-core as recorded, operator by operator, where that version is there."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from gnomon import catalog
from gnomon.catalog import Parallelism
from gnomon.timing import Batch, Context, Timer, TimingConfig, breakdown
from recorded_kit import check_recorded

RECORDED_WITH = "0.12.0"
BATCHES = {
    "mixed": Batch(prefill=300, prefill_kv=700, decode=5, kv=2500),
    "decodes": Batch(decode=48, kv=9000),
    "prompt": Batch(prefill=5000),
}
SETUPS: dict[str, tuple[str, str, Parallelism, dict[str, Any]]] = {
    "dense": ("llama-3.1-70b", "h200", Parallelism(tensor_parallel=4), {"dtype": "fp8", "kv_dtype": "fp8"}),
    "dense 16 bits": ("llama-3.1-8b", "h100", Parallelism(), {"dtype": "bf16", "engine": "trtllm"}),
    "latent": ("deepseek-v3", "h200", Parallelism(tensor_parallel=8), {"engine": "sglang"}),
    "latent wide": (
        "deepseek-v3", "b200", Parallelism(data_parallel=8, expert_parallel=True),
        {"engine": "trtllm", "expert_load": "power_law_1.2", "kv_dtype": "fp8"},
    ),
    "sparse": ("deepseek-v3.2", "b200", Parallelism(tensor_parallel=8), {"engine": "vllm"}),
    "experts": ("qwen3-30b-a3b", "h100", Parallelism(tensor_parallel=2), {"engine": "vllm"}),
    "windows": ("gpt-oss-120b", "b200", Parallelism(tensor_parallel=2), {"engine": "trtllm"}),
    "states": ("qwen3-next-80b-a3b", "h200", Parallelism(tensor_parallel=4), {"engine": "vllm"}),
}  # fmt: skip


def _installed() -> str | None:
    try:
        return version("aiconfigurator-core")
    except PackageNotFoundError:
        return None


@pytest.mark.skipif(_installed() != RECORDED_WITH, reason=f"recorded with aiconfigurator-core {RECORDED_WITH}")
@pytest.mark.parametrize("name", SETUPS)
def test_measured_kernels(name: str) -> None:
    model, gpu, cut, settings = SETUPS[name]
    device = catalog.device(gpu)
    config = TimingConfig(source="silicon", **settings)
    timer = Timer(Context(catalog.model(model), device, catalog.default_node(device), cut, config))
    found: dict[str, Any] = {}
    for title, batch in BATCHES.items():
        for one in breakdown(timer, batch):
            found[f"{title} {one.name}"] = one.seconds
            found[one.name] = one.provenance
    check_recorded("silicon", name, found)
