"""A training pass: one model for pipelines and post-training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gnomon import catalog
from gnomon.catalog import Parallelism
from gnomon.core.errors import ConfigError
from gnomon.posttrain.config import ActorConfig, Posttrain
from gnomon.posttrain.costs import LENGTHS, Costs
from gnomon.timing import HostConfig, TimingConfig
from gnomon.timing.operators import Gemm
from gnomon.timing.passes import stage_passes, training_timer
from gnomon.timing.timer import Timer

TOKENS = float(LENGTHS[120])


def timer_of(name: str = "llama-3-8b", config: TimingConfig | None = None, **degrees: int) -> Timer:
    device = catalog.device("h100")
    return training_timer(catalog.model(name), device, catalog.default_node(device), Parallelism(**degrees), config)


def test_backward_follows_the_forward_operator_by_operator() -> None:
    timer, tokens = timer_of(tensor_parallel=2), np.array([4096.0])
    forward = input_grad = weight_grad = 0.0
    for one in timer.operators(0):
        if one.name in ("kv_write", "attention_decode", "sampler", "logits_all_gather"):
            continue
        sizes = (tokens, np.zeros(1)) if one.kind == "attention_prefill" else (tokens,)
        if one.kind == "communication":
            sizes = (4096 * 2 * tokens,)
        seconds = one.count * float(timer.seconds(one, *sizes)[0])
        forward += seconds
        if one.kind == "attention_prefill":
            input_grad += 2.5 * seconds
        elif one.kind == "communication":
            input_grad += seconds
        elif isinstance(one.work, Gemm):
            n, k = one.work.n, one.work.k
            transposed, by_tokens = (replace(one, work=Gemm(*shape, one.work.format)) for shape in ((k, n), (n, 4096)))
            input_grad += one.count * float(timer.seconds(transposed, tokens)[0])
            weight_grad += one.count * float(timer.seconds(by_tokens, np.array([float(k)]))[0])
        else:
            input_grad += 1.5 * seconds
    passes = stage_passes(timer, 0, tokens)
    assert passes.forward[0] == pytest.approx(forward)
    assert passes.input_grad[0] == pytest.approx(input_grad)
    assert passes.weight_grad[0] == pytest.approx(weight_grad)
    assert passes.handover[0] == 0.0


def test_sequences_attend_to_themselves_only() -> None:
    timer = timer_of()
    two, double = stage_passes(timer, 0, np.array([2048.0]), sequences=2), stage_passes(timer, 0, np.array([4096.0]))
    pairs = 2 * 2 * 32 * 128 * 32  # Of every query and key: two products over all heads and layers.
    assert double.flops[0] - two.flops[0] == pytest.approx(pairs * (4096**2 / 2 - 2 * 2048**2 / 2))
    assert two.forward[0] < double.forward[0]


def test_stages_hand_over_in_both_directions() -> None:
    timer = timer_of("qwen2.5-7b", pipeline_parallel=2)
    first, last = (stage_passes(timer, stage, np.array([TOKENS])) for stage in (0, 1))
    link = catalog.default_node(catalog.device("h100")).link
    assert first.handover[0] == pytest.approx(link.latency_s + 3584 * 2 * TOKENS / link.bandwidth_bytes_s)
    assert last.handover[0] == 0.0
    two = Costs(Posttrain(model="qwen2.5-7b", device="h100", actor=ActorConfig(pipeline_parallel=2)))
    passes = sum(float((one.forward + one.input_grad + one.weight_grad)[0]) for one in (first, last))
    assert two.train_s(np.array([int(TOKENS)]))[0] == pytest.approx(passes + 2 * first.handover[0])


def test_training_is_in_bf16_whatever_the_checkpoint_is() -> None:
    assert timer_of("deepseek-v3", tensor_parallel=8).context.dtype == "bf16"
    assert timer_of(config=TimingConfig(dtype="fp8")).context.dtype == "fp8"


def test_slow_experts_take_longer_beyond_256_tokens_only() -> None:
    plain, slow = (timer_of("mixtral-8x7b", TimingConfig(expert_speed=speed)) for speed in (1.0, 0.5))
    tokens = np.array([1.0, 64.0, 256.0, 4096.0])
    for one in (o for o in plain.operators(0) if o.name in ("experts", "qkv_proj")):
        before, longer = plain.seconds(one, tokens), slow.seconds(one, tokens)
        assert longer[:3] == pytest.approx(before[:3]), "decodes stay as they are"
        factor = 2.0 if one.name == "experts" else 1.0
        assert longer[3] == pytest.approx(before[2] + factor * (before[3] - before[2]))
    both = timer_of("mixtral-8x7b", TimingConfig(expert_speed=0.5, clock=0.5))
    experts = next(o for o in plain.operators(0) if o.name == "experts")
    one, many = plain.seconds(experts, tokens[:1]), slow.seconds(experts, tokens[3:])
    assert both.seconds(experts, tokens[3:]) == pytest.approx(one + 2 * (many - one))


def test_the_cluster_says_how_many_gpus_a_node_has() -> None:
    """Eight copies in one node of eight, or in two of four: the network is slower."""
    one, two = (
        Costs(Posttrain.model_validate({"model": "qwen2.5-7b", "cluster": {"num_nodes": 8 // n, "gpus_per_node": n}}))
        for n in (8, 4)
    )
    tokens = np.full((8, 1), 100)
    assert two.train_at_once(tokens, 8)[0] > 1.5 * one.train_at_once(tokens, 8)[0]


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "qwen3-next-80b-a3b", "gpt-oss-20b"])
def test_a_pass_multiplies_every_active_weight_once_per_token(name: str) -> None:
    timer, tokens = timer_of(name), 16.0
    model = timer.context.model
    weights = model.num_active_parameters - (0 if model.tied_embeddings else model.num_embedding_parameters)
    assert stage_passes(timer, 0, np.array([tokens])).flops[0] == pytest.approx(2 * weights * tokens, rel=0.03)


@pytest.mark.parametrize(
    "given",
    [
        {"host": HostConfig(per_iteration_s=0.01)}, {"graph_sizes": "vllm"}, {"graph_attention": True},
        {"overlap_tokens": 64}, {"separate_attention": True}, {"expert_exchange": "all_gather"}, {"kv_dtype": "fp8"},
    ],
)  # fmt: skip
def test_what_only_engines_have_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"timing.{next(iter(given))}.*no serving engine"):
        timer_of(config=TimingConfig(**given))


def test_a_lower_clock_slows_what_computes() -> None:
    full, slow = (
        stage_passes(timer_of(config=TimingConfig(clock=clock)), 0, np.array([4096.0])) for clock in (1.0, 0.5)
    )
    assert 1.5 * full.forward[0] < slow.forward[0] < 2.0 * full.forward[0]
    assert 1.5 * full.weight_grad[0] < slow.weight_grad[0] < 2.1 * full.weight_grad[0]
    cut = {"tensor_parallel": 8}
    norms = [one for one in timer_of(**cut).operators(0) if one.name == "attn_norm"]
    at_half = timer_of(config=TimingConfig(clock=0.5), **cut)
    assert at_half.seconds(norms[0], np.array([64.0])) == timer_of(**cut).seconds(norms[0], np.array([64.0]))


def test_gradients_are_reduced_in_float32() -> None:
    link = catalog.default_node(catalog.device("h100")).link
    expected = link.latency_s + 2 * link.step_s + 2 * 3 / 4 * 7_615_616_512 * 4.0 / link.bandwidth_bytes_s
    costs = Costs(Posttrain(model="qwen2.5-7b", device="h100"))
    slowest = costs.train_s(np.array([1000]))[0]
    assert costs.train_at_once(np.full((4, 1), 1000), 4)[0] == pytest.approx(slowest + expected)
