"""The memory planner against Vidur's recorded runs and a real vLLM server."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon import catalog
from gnomon.core.errors import ConfigError, DoesNotFitError


@pytest.mark.parametrize(
    ("name", "tensor", "pipeline", "block_size", "max_tokens", "blocks"),
    [  # All from recorded Vidur runs on A100-80 with margin 0.1.
        ("llama-2-7b", 1, 1, 16, 2048, 7552),
        ("llama-2-7b", 1, 1, 16, 1024, 7616),
        ("llama-2-7b", 1, 1, 1, 2048, 120832),
        ("llama-3-8b", 1, 1, 16, 16384, 29696),
        ("codellama-34b", 2, 1, 16, 4096, 27904),
        ("llama-2-70b", 2, 2, 16, 2048, 32768),
    ],
)
def test_vidur_planner_gives_the_recorded_blocks(
    name: str, tensor: int, pipeline: int, block_size: int, max_tokens: int, blocks: int
) -> None:
    plan = catalog.plan_memory(
        catalog.model(name),
        catalog.device("a100"),
        catalog.Parallelism(tensor_parallel=tensor, pipeline_parallel=pipeline),
        planner="vidur",
        block_size=block_size,
        max_tokens=max_tokens,
        memory_utilization=0.9,
    )
    assert plan.num_kv_blocks == blocks
    assert plan.max_batch == blocks // pipeline // (max_tokens // block_size)


def test_vidur_planner_by_hand() -> None:
    """Llama-2-70B (80 layers, 8 KV heads of 128, 64 heads, 8192 wide, 28672 in the MLP) on two by two A100 of 80 GiB.

    A rank holds half of the layers and half of each: 2 bytes x 40 x (8192 x 128 x (64 + 16 + 64) / 2 + 3 x 8192 x 28672
    / 2). A token's KV is 4 x 128 bytes for each of 4 KV heads, planned for all 80 layers and then cut over two stages.
    """
    plan = catalog.plan_memory(
        catalog.model("llama-2-70b"),
        catalog.device("a100"),
        catalog.Parallelism(tensor_parallel=2, pipeline_parallel=2),
        planner="vidur",
        block_size=16,
        max_tokens=2048,
        memory_utilization=0.9,
    )
    weights = 2 * 40 * (8192 * 128 * (64 + 16 + 64) + 3 * 8192 * 28672) / 2
    token = 4 * 128 * 4 * 80
    assert plan.usable_bytes == pytest.approx(0.9 * 80 * 2**30)
    assert (plan.weight_bytes, plan.reserve_bytes) == (weights, 0.0)
    assert plan.kv_bytes == plan.usable_bytes - weights
    assert plan.block_bytes == token * 16 / 2
    assert plan.max_batch == int(plan.kv_bytes // (token * 2048)) == 128
    assert plan.num_kv_blocks == 128 * 128 * 2


def test_default_planner_is_close_to_a_real_vllm_server() -> None:
    plan = catalog.plan_memory(
        catalog.model("meta-llama/Llama-3.1-8B"),
        catalog.device("rtx-4090"),
        catalog.Parallelism(),
        max_batched_tokens=2048,
        max_sequences=256,
    )
    assert plan.num_kv_blocks == pytest.approx(2588, rel=0.005)  # vLLM 0.19 with gpu_memory_utilization 0.9.


def test_parts_add_up_to_the_usable_memory() -> None:
    device = catalog.device("h100")
    plan = catalog.plan_memory(catalog.model("llama-3-8b"), device, catalog.Parallelism(), memory_utilization=0.8)
    assert plan.usable_bytes == pytest.approx(0.8 * device.memory_bytes)
    assert plan.weight_bytes + plan.reserve_bytes + plan.kv_bytes == pytest.approx(plan.usable_bytes)
    assert plan.num_kv_tokens * plan.block_bytes / plan.block_size <= plan.kv_bytes


def test_a_model_that_does_not_fit_says_by_how_much_and_what_would() -> None:
    with pytest.raises(DoesNotFitError, match=r"GiB short per GPU.*Tensor parallelism 2 would fit"):
        catalog.plan_memory(catalog.model("llama-3-70b"), catalog.device("h100"), catalog.Parallelism())
    fits = catalog.Parallelism(tensor_parallel=2)
    assert catalog.plan_memory(catalog.model("llama-3-70b"), catalog.device("h100"), fits).num_kv_blocks > 0


def test_number_formats_change_weights_and_blocks() -> None:
    model, device, one = catalog.model("llama-3-8b"), catalog.device("h100"), catalog.Parallelism()
    full = catalog.plan_memory(model, device, one)
    small = catalog.plan_memory(model, device, one, dtype="fp8", kv_dtype="fp8")
    assert small.weight_bytes < 0.6 * full.weight_bytes
    assert small.block_bytes == full.block_bytes / 2


@pytest.mark.parametrize("change", [{"memory_utilization": 0.0}, {"memory_utilization": 1.5}, {"block_size": 0}])
def test_senseless_numbers_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        catalog.plan_memory(catalog.model("llama-3-8b"), catalog.device("h100"), catalog.Parallelism(), **change)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.floats(0.5, 1.0), st.sampled_from([1, 16, 32]))
def test_more_memory_never_gives_fewer_tokens(tensor: int, utilization: float, block_size: int) -> None:
    model, device = catalog.model("llama-3-8b"), catalog.device("h100")
    cut = catalog.Parallelism(tensor_parallel=tensor)
    less = catalog.plan_memory(model, device, cut, memory_utilization=utilization * 0.95, block_size=block_size)
    more = catalog.plan_memory(model, device, cut, memory_utilization=utilization, block_size=block_size)
    assert more.num_kv_tokens >= less.num_kv_tokens
