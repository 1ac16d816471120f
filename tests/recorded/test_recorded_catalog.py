"""Sizes of every model and times of every family of operators, as recorded."""

from __future__ import annotations

from typing import Any

import pytest

from gnomon import catalog
from gnomon.catalog import Parallelism, RooflineConstants
from gnomon.catalog.memory import plan_memory
from gnomon.core.errors import GnomonError
from gnomon.timing import Batch, Context, Timer, TimingConfig, breakdown
from gnomon.timing.breakdown import expected_error, total
from recorded_kit import check_recorded

FAMILIES = (
    "llama-3-8b", "phi-2", "mixtral-8x7b", "deepseek-v3", "deepseek-v3.2", "gemma-3-12b", "gpt-oss-120b",
    "qwen3-next-80b-a3b", "kimi-linear-48b-a3b", "nemotron-3-nano-30b-a3b", "llama-4-scout", "glm-4.5-air",
    "minimax-m3", "qwen3-30b-a3b",
)  # fmt: skip
OTHERS = (
    "gemma-3-1b", "gemma-4-26b-a4b", "glm-5", "kimi-k2.5", "llama-2-70b", "llama-4-maverick", "mistral-7b",
    "nemotron-3-super-120b-a12b", "qwen-72b", "qwen2.5-0.5b", "qwen3-235b-a22b", "qwen3.5-35b-a3b", "internlm-20b",
    "deepseek-v2-lite", "glm-4.6", "minimax-m2.5",
)  # fmt: skip
CUTS = (
    Parallelism(),
    Parallelism(tensor_parallel=4, pipeline_parallel=3),
    Parallelism(tensor_parallel=2, data_parallel=4, expert_parallel=True),
)


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_sizes_of_models(name: str) -> None:
    model = catalog.model(name)
    found: dict[str, Any] = {
        "parameters": [model.num_parameters, model.num_active_parameters, model.num_mtp_parameters],
        "kv": [model.kv_bytes_per_token(kv, t) for kv in ("auto", "fp8") for t in (1, 3, 16)],
        "sequence": [model.sequence_bytes(tokens, "bf16", 2) for tokens in (100, 3000, 100_000)],
    }
    for number, cut in enumerate(CUTS):
        for dtype in ("auto", "bf16"):
            found[f"weights {number} {dtype}"] = _or_refused(lambda c=cut, d=dtype: _weights(model, c, d))
    for planner in ("gnomon", "sglang", "trtllm"):
        found[planner] = _or_refused(lambda p=planner: _blocks(model, p))
    check_recorded("models", name, found)


def _weights(model: Any, cut: Parallelism, dtype: str) -> list[float]:
    cut.check(model)
    return [model.weight_bytes_of_stage(cut, stage, dtype) for stage in range(cut.pipeline_parallel)]


def _blocks(model: Any, planner: Any) -> list[float]:
    device, cut = catalog.device("b200"), Parallelism(tensor_parallel=4, pipeline_parallel=2)
    plan = plan_memory(model, device, cut, planner=planner, max_tokens=9000, sequence_tokens=2000, kv_dtype="fp8")
    return [plan.num_kv_blocks, plan.weight_bytes, plan.reserve_bytes, plan.block_bytes]


def _or_refused(question: Any) -> Any:
    try:
        return question()
    except GnomonError as error:
        return str(error).splitlines()[0]


BATCHES = {
    "mixed": Batch(prefill=300, prefill_kv=700, decode=5, kv=2500),
    "decodes": Batch(decode=40, kv=9000),
    "prompt": Batch(prefill=4000),
}
SETUPS: dict[str, tuple[str, Parallelism, dict[str, Any]]] = {
    "h100": ("h100", Parallelism(), {}),
    "b200 fp8": ("b200", Parallelism(tensor_parallel=4), {"dtype": "fp8", "kv_dtype": "fp8", "engine": "trtllm"}),
    "a100 wide": (
        "a100-80gb",
        Parallelism(tensor_parallel=2, pipeline_parallel=2, data_parallel=8, expert_parallel=True),
        {"expert_load": "power_law_1.2", "clock": 0.8, "scale": 1.1},
    ),
}


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("name", FAMILIES)
def test_times_of_operators(name: str, setup: str) -> None:
    model, (device_name, cut, settings) = catalog.model(name), SETUPS[setup]
    if not model.is_moe:
        cut = cut.suited_to(model)
    device = catalog.device(device_name).model_copy(update={"roofline": RooflineConstants(), "roofline_error": 0.2})
    config = TimingConfig(**{"source": "roofline", "dtype": "bf16", "kv_dtype": "bf16", **settings})
    try:
        cut.check(model)
        timer = Timer(Context(model, device, catalog.default_node(device), cut, config))
        found: dict[str, Any] = {}
        for title, batch in BATCHES.items():
            rows = breakdown(timer, batch)
            if title == "mixed":
                found |= {one.name: [one.calls, one.seconds, one.flops, one.bytes] for one in rows}
            whole = total(rows)
            found[f"{title} in all"] = [whole.calls, whole.seconds, whole.mfu, expected_error(timer, batch)]
            found[f"{title} limits"] = "".join(one.limit[0] for one in rows)
    except GnomonError as error:
        found = {"refused": str(error).splitlines()[0]}
    check_recorded("operators", f"{name} {setup}", found)
