"""A whole training step: its configuration, its parts by hand, its memory by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gnomon import catalog
from gnomon.core.config import build
from gnomon.core.errors import ConfigError, DoesNotFitError
from gnomon.training import TrainConfig, train_step
from gnomon.training.constants import constants
from gnomon.training.exchange import Exchange
from gnomon.training.memory import in_flight, rank_bytes, stages_at
from gnomon.training.pipelines import StageSeconds, span
from gnomon.training.stages import recomputed, stage_parameters, stages_of, state_bytes

H200: dict[str, Any] = {"device": "h200", "gpus": 1, "framework": "transformers", "sharding": "none"}


def config(**given: Any) -> TrainConfig:
    return build(TrainConfig, given).check()


def test_embedding_and_loss_count_as_layers_where_layers_do_not_divide() -> None:
    """126 layers on 64 stages: 128 slots of two, of which embedding and loss take one each."""
    sizes = [stage.num_layers for stage in stages_of(catalog.model("llama-3.1-405b"), 64)]
    assert sizes == [1, *[2] * 62, 1]
    sizes = [stage.num_layers for stage in stages_of(catalog.model("llama-3-70b"), 20)]
    assert sizes == [4] * 20
    sizes = [stage.num_layers for stage in stages_of(catalog.model("deepseek-v3"), 16)]
    assert sum(sizes) == 61 and sizes[0] == 3 and sizes[-1] == 2


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"gpus": 8, "tensor_parallel": 4, "pipeline_parallel": 4}, "gpus"),
        ({"gpus": 8, "batch": 12}, "batch"),
        ({"gpus": 8, "virtual_stages": 2}, "virtual_stages"),
        ({"gpus": 8, "expert_parallel": 2}, "expert_parallel"),
        ({"gpus": 64, "pipeline_parallel": 64, "batch": 64}, "pipeline_parallel"),
        ({"gpus": 8, "context_parallel": 8, "sequence": 4104}, "context_parallel"),
        ({"gpus": 8, "shard_gpus": 3}, "shard_gpus"),
    ],
)
def test_what_cannot_be_divided_is_refused(given: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(**given)
    assert error.value.where == where


def test_parts_add_up_to_the_step() -> None:
    step = train_step(
        config(
            model="llama-3-70b", gpus=64, tensor_parallel=4, pipeline_parallel=8, virtual_stages=5, batch=256,
            sequence=8192, precision="fp8",
        )
    )  # fmt: skip
    assert sum(step.parts.values()) == pytest.approx(step.step_s)
    assert step.tokens_per_gpu_s == pytest.approx(256 * 8192 / step.step_s / 64)


def test_memory_of_a_small_model_by_hand() -> None:
    """Llama-3.2-1B, 4,096 tokens, everything in bf16: six bytes of state per parameter when backward begins, what
    layers keep (3 x 8192 + 3 x 2048 + 2 x 512 + 4 x 2048 elements), and twelve bytes per logit."""
    step = train_step(config(model="llama-3.2-1b", **H200))
    parts = step.memory.parts
    assert parts["weights"] + parts["optimizer"] == pytest.approx(6 * 1_235_814_400)
    assert parts["gradients"] == 0.0
    kept = 3 * 8192 + 2 * 2048 + 2 * 512 + 4 * 2048
    assert parts["activations"] == pytest.approx(16 * 4096 * 2 * kept)
    assert parts["logits"] == pytest.approx(12 * 4096 * 128256)


def test_recomputation_trades_time_for_memory() -> None:
    plain, again = (train_step(config(model="qwen3-1.7b", recompute=how, **H200)) for how in ("none", "full"))
    assert again.memory.parts["activations"] < 0.1 * plain.memory.parts["activations"]
    assert again.phases["backward"] > plain.phases["backward"] + 0.8 * plain.parts["products"] / 3
    assert again.phases["forward"] == pytest.approx(plain.phases["forward"])


def test_pytorch_s_stages_hold_what_they_receive_and_their_outputs() -> None:
    """Four micro-batches of 4,096 tokens on two stages: received activations (hidden 4,096) and outputs (128,256) in
    bf16 on the last, received gradients on the first."""
    given = {"model": "llama-3-8b", "gpus": 2, "batch": 4, "pipeline_parallel": 2, "sharding": "parameters"}
    titan, other = (config(**given, framework=name) for name in ("torchtitan", "fsdp"))
    first, last = (rank_bytes(titan, stages_at(titan, rank)).state["buffers"] for rank in (0, 1))
    plain = [rank_bytes(other, stages_at(other, rank)).state["buffers"] for rank in (0, 1)]
    assert first - plain[0] == 4 * 2 * 4096 * 4096
    assert last - plain[1] == 4 * 2 * 4096 * (4096 + 128256)


def test_only_the_given_layers_are_computed_again() -> None:
    """Of 28 layers, seven: a quarter of the time, and three quarters of what layers keep beside the inputs of seven."""
    given = {"model": "qwen3-1.7b", "recompute": "full", **H200}
    steps = {n: train_step(config(**given, recompute_layers=n)) for n in (0, 7, 28)}
    whole = train_step(config(**given))
    assert steps[28].parts == whole.parts and "recomputation" not in steps[0].parts
    assert steps[7].parts["recomputation"] == pytest.approx(whole.parts["recomputation"] / 4)
    kept = {n: step.memory.moments["loss"] - step.memory.moments["end"] for n, step in steps.items()}
    assert kept[7] == pytest.approx(0.75 * kept[0] + 0.25 * kept[28])


def test_the_first_layers_of_a_stage_are_computed_again_whatever_their_kinds() -> None:
    """DeepSeek-V3 has three dense layers, then experts: of the first stage's 31, four are three dense ones and one."""
    given = config(model="deepseek-v3", gpus=2, pipeline_parallel=2, recompute="full", recompute_layers=4)
    counts = {mlp: (count, again) for (_, mlp), count, again in recomputed(given, stages_of(given.shape, 2)[0])}
    assert counts == {"dense": (3, 3), "experts": (28, 1)}


def test_layers_are_computed_again_in_every_virtual_stage() -> None:
    """80 layers in 4 x 5 stages of four: one of each is a quarter."""
    given = {"model": "llama-3-70b", "gpus": 64, "tensor_parallel": 8, "pipeline_parallel": 4, "virtual_stages": 5}
    some, all_ = (train_step(config(**given, recompute="full", recompute_layers=n), check=False) for n in (1, 4))
    assert some.parts["recomputation"] == pytest.approx(all_.parts["recomputation"] / 4)


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    given = {"model": "llama-3-70b", "gpus": 8, "tensor_parallel": 1}
    with pytest.raises(DoesNotFitError, match=r"needs \d+\.\d GB .* more than the 85\.0 GB of one h100"):
        train_step(config(**given))
    with pytest.raises(DoesNotFitError, match="It would fit with"):
        train_step(config(**given | {"gpus": 64}))
    assert not train_step(config(**given), check=False).fits


def test_more_sharding_takes_less_memory() -> None:
    peaks = [
        train_step(config(model="llama-3-8b", gpus=8, sharding=how, device="b200"), check=False).memory.peak_bytes
        for how in ("none", "optimizer", "gradients", "parameters")
    ]
    assert peaks == sorted(peaks, reverse=True) and len(set(peaks)) == 4


def test_tensor_parallel_activations_are_divided_with_sequence_parallelism() -> None:
    whole = train_step(config(model="llama-3-8b", gpus=8, device="b200"), check=False).memory.parts["activations"]
    given = {"model": "llama-3-8b", "gpus": 8, "device": "b200", "tensor_parallel": 8}
    divided = train_step(config(**given), check=False).memory.parts["activations"]
    assert divided == pytest.approx(whole / 8)
    plain = train_step(config(**given, sequence_parallel=False), check=False).memory.parts["activations"]
    assert plain > 2 * divided


def test_tokens_go_once_to_each_gpu_that_has_one_of_their_experts() -> None:
    """Eight choices among eight GPUs meet 8 (1 - (7/8)^8) of them, of which seven eighths lie elsewhere."""
    exchange = Exchange(config(model="qwen3-30b-a3b", gpus=8, expert_parallel=8, device="b200"))
    link = exchange.node.link
    met = 8 * (1 - (7 / 8) ** 8)
    expected = link.latency_s + 6 * link.step_s + 4096 * 2048 * 2 * met * 7 / 8 / link.bandwidth_bytes_s
    assert exchange.expert_s() == pytest.approx(expected)
    assert Exchange(config(model="qwen3-30b-a3b", gpus=8, device="b200")).expert_s() == 0.0


def test_experts_spread_over_nodes_cross_the_network_once_per_node() -> None:
    exchange = Exchange(config(model="qwen3-30b-a3b", gpus=16, expert_parallel=16, device="h100"))
    network = exchange.node.network
    met = 2 * (1 - (1 / 2) ** 8)
    assert exchange.expert_s() == pytest.approx(
        network.latency_s + 4096 * 2048 * 2 * met / 2 / network.bandwidth_bytes_s
    )


@pytest.mark.parametrize(
    ("change", "rank", "flights"),
    [
        ({}, 0, 4.0),
        ({}, 3, 1.0),
        ({"schedule": "gpipe"}, 3, 16.0),
        ({"virtual_stages": 2}, 0, (2 * 3 + 4 + 1) / 2),  # As Megatron-LM's interleaved warm-up, in chunks.
        ({"virtual_stages": 2}, 3, (0 + 4 + 1) / 2),
        ({"batch": 2}, 0, 2.0),
    ],
)
def test_micro_batches_in_flight(change: dict[str, Any], rank: int, flights: float) -> None:
    given = {"model": "llama-3-8b", "gpus": 4, "pipeline_parallel": 4, "batch": 16} | change
    assert in_flight(config(**given), rank) == pytest.approx(flights)


def test_state_by_sharding_and_precision() -> None:
    """Llama-3-8B on eight GPUs: two bytes of weights, four of gradients and twelve of optimizer per parameter."""
    stage = stages_of(catalog.model("llama-3-8b"), 1)[0]
    parameters = stage_parameters(config(gpus=8), stage)
    count = catalog.model("llama-3-8b").num_parameters
    assert parameters.total == count
    assert state_bytes(config(gpus=8), parameters) == {
        "weights": 2 * count, "gradients": 4 * count, "optimizer": pytest.approx(12 * count / 8)
    }  # fmt: skip
    low = state_bytes(config(gpus=8, precision="fp8", gradients="bf16", sharding="parameters"), parameters)
    assert low == {name: pytest.approx(each * count / 8) for name, each in zip(low, (1, 2, 12), strict=True)}
    lora = config(gpus=8, lora_rank=16, precision="fp8")
    assert state_bytes(lora, stage_parameters(lora, stage))["weights"] == pytest.approx(count, rel=0.01)


def test_many_micro_batches_take_what_a_few_more_of_them_show() -> None:
    """1F1B of equal stages: m + p - 1 passes forward and backward, exactly."""

    def total(count: int, chunks: int = 1) -> float:
        one, none = np.full(4 * chunks, 1.0 / chunks), np.zeros(4 * chunks)
        seconds = StageSeconds(one, one, one, 0.0, 0.0, none, none, none, none)
        given = config(gpus=4, pipeline_parallel=4, virtual_stages=chunks, batch=count, sequence=128)
        return span(given, seconds)[0]

    for count in (8, 16, 64, 200):
        assert total(count) == pytest.approx(3.0 * (count + 3), rel=1e-6)
    assert total(64, chunks=2) == pytest.approx(64 * 3.0 + 3 * 1.5, rel=1e-6)


def test_releases_and_devices_that_nobody_named() -> None:
    known = constants()
    assert known.release("") == known.releases["26.06"] == known.release("26.08")
    assert known.release("26.04.01") == known.releases["26.02"]
    assert known.release("25.11") == known.releases["25.09"]
    assert known.of("devices", "l40s") == known.devices["any"]


def test_without_cuda_graphs_a_layer_takes_no_less_than_its_launches() -> None:
    given = {"model": "llama-3.2-1b", "gpus": 8, "sequence": 128}
    graphs, alone = (train_step(config(**given, cuda_graphs=on)).phases for on in (True, False))
    least = constants().launch_layer_s
    assert graphs["forward"] < 16 * least < alone["forward"]
    assert alone["backward"] > 16 * 2 * least


def test_kernels_launched_one_by_one_wait_for_a_grace_longer() -> None:
    """48 layers with experts of a micro-batch that takes next to no time: their launches are all that counts."""
    given = {"model": "qwen3-30b-a3b", "gpus": 8, "expert_parallel": 8, "sequence": 64, "release": "25.09"}
    least = 48 * constants().release("25.09").expert_layer_least_s
    for device, factor in (("b200", 1.0), ("gb200", 2.75)):
        phases = train_step(config(**given, device=device, cuda_graphs=False), check=False).phases
        assert phases["forward"] == pytest.approx(factor * least, rel=0.02)
        assert phases["backward"] == pytest.approx(2 * factor * least, rel=0.02)
    assert train_step(config(**given, device="gb200"), check=False).phases["forward"] == pytest.approx(least, rel=0.02)
