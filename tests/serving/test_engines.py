"""Engine presets: what they set, that the scenario wins, and that every number has a source."""

from __future__ import annotations

import pytest
import yaml

from gnomon import catalog
from gnomon.catalog import Parallelism
from gnomon.core.config import build, dump, load
from gnomon.core.errors import UnknownNameError
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.engine_presets import engine, engine_names
from gnomon.serving.scenario.engine_versions import order_of
from gnomon.serving.scenario.pools import resolve
from serving_kit import TABLE, run


def scenario(**given: object) -> Scenario:
    return build(Scenario, given)


def test_every_number_has_a_source_and_every_key_exists():
    for name in engine_names():
        preset = engine(name)
        assert all(setting.source for setting in preset.settings.values())
        assert all(variant.source for variant in preset.variants)
        for settings in (
            {key: one.value for key, one in preset.settings.items()},
            *(v.settings for v in preset.variants),
        ):
            load(Scenario, None, settings)


@pytest.mark.parametrize(("name", "policy"), [("vllm", "vllm_v1"), ("sglang", "sglang"), ("trtllm", "trtllm")])
def test_a_preset_sets_policy_memory_graphs_and_kernels_together(name, policy):
    plain = scenario(engine=name, model="llama-3-8b", device="h200")
    assert plain.batching.policy == policy
    assert (plain.timing.engine, plain.timing.graph_sizes is not None) == (name, True)
    assert plain.replica.planner == {"vllm": "gnomon"}.get(name, name)
    assert resolve(plain)[0].num_kv_blocks > 0


def test_the_device_and_the_model_decide_variants():
    assert scenario(engine="vllm", device="h100").batching.max_batch_tokens == 8192
    assert scenario(engine="vllm", device="a100").batching.max_batch_tokens == 2048
    assert scenario(engine="vllm", device="l4").batching.max_sequences == 256
    assert scenario(engine="sglang", device="b200").batching.max_batch_tokens == 16384
    for spelled in ("deepseek-r1", "DeepSeek-R1", "deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-V3.2"):
        assert scenario(engine="sglang", device="h200", model=spelled).batching.max_batch_tokens == 32768
    assert (
        scenario(engine="sglang", device="NVIDIA B200", model="openai/gpt-oss-120b").timing.all_reduce == "flashinfer"
    )


@pytest.mark.parametrize(("name", "launch_s"), [("vllm", 33e-6), ("sglang", 70e-6), ("trtllm", 70e-6)])
def test_a_grace_launches_more_slowly(name, launch_s):
    """By 23.6 microseconds, as was measured."""
    for device, more_s in (("b200", 0.0), ("gb200", 23.6e-6), ("gb300", 23.6e-6)):
        host = scenario(engine=name, device=device, model="deepseek-r1").timing.host
        assert host.launch_per_kernel_s == pytest.approx(launch_s + more_s)


def test_the_family_of_attention_decides_the_time_per_layer():
    def per_layer_s(model: str, version: str = "", **given: object) -> float:
        found = scenario(engine={"name": "sglang", "version": version}, model=model, **given)
        return found.timing.host.exposed_per_layer_s

    families = {"qwen3-32b": "grouped", "deepseek-r1": "latent", "glm-5": "sparse", "qwen3.5-397b-a17b": "linear"}
    assert {name: catalog.model(name).attention_family for name in families} == families
    assert per_layer_s("qwen3-32b") == per_layer_s("deepseek-r1") == 0.0
    assert per_layer_s("qwen3.5-397b-a17b", "0.5.9") == per_layer_s("glm-5") == 2.5e-5
    assert per_layer_s("qwen3.5-397b-a17b", "0.5.10") == per_layer_s("qwen3.5-397b-a17b") == 0.0, (
        "projections are fused"
    )
    assert per_layer_s("kimi-linear-48b-a3b", "0.5.9") == 2.5e-5, "latent too, but most layers are not"
    assert per_layer_s("deepseek-r1", timing={"host": {"exposed_per_layer_s": 1e-3}}) == 1e-3
    assert catalog.model("gpt-oss-120b").attention_family == "window"


def test_the_scenario_wins_key_by_key():
    given = scenario(
        engine={"name": "sglang", "version": "0.5.9"},
        batching={"max_batch_tokens": 1234},
        replica={"tensor_parallel": 2},
        timing={"graph_attention": False},
    )
    assert (given.batching.max_batch_tokens, given.batching.policy, given.batching.block_size) == (1234, "sglang", 1)
    assert (given.replica.tensor_parallel, given.replica.planner) == (2, "sglang")
    assert given.timing.graph_attention is False
    assert given.timing.engine_version == "0.5.9"


@pytest.mark.parametrize(("version", "options"), [("0.5.8", {"joins_at_once": 0}), ("0.5.10", {})])
def test_a_pools_options_join_those_of_the_engine(version, options):
    pools = [{"role": "prefill"}, {"role": "decode", "batching": {"options": {"receive_interval": 10}}}]
    given = {"name": "sglang", "version": version}
    found = scenario(engine=given, model="llama-3-8b", device="h200", pools=pools).all_pools()
    assert [one.batching.options for one in found] == [options, options | {"receive_interval": 10}]


def test_another_policy_keeps_its_own_defaults():
    other = scenario(engine="trtllm", batching="vllm_v1")
    assert other.batching.resolved().block_size == 16
    assert other.replica.planner == "trtllm"


def test_pools_and_saved_scenarios_keep_the_engine():
    one = scenario(engine="trtllm", pools=[{"num_replicas": 2, "replica": {"tensor_parallel": 2}}])
    pool = one.all_pools()[0]
    assert (pool.replica.planner, pool.batching.policy) == ("trtllm", "trtllm")
    assert build(Scenario, yaml.safe_load(dump(one))) == one


def test_unknown_engine():
    with pytest.raises(UnknownNameError, match="sglang"):
        scenario(engine="sglan")


def test_planners_share_memory_as_their_engines_say():
    model, device = catalog.model("llama-3-8b"), catalog.device("h100")

    def plan(planner: str, share: float):
        return catalog.plan_memory(model, device, Parallelism(), planner=planner, memory_utilization=share)

    vllm, sglang, trtllm = plan("gnomon", 0.9), plan("sglang", 0.9), plan("trtllm", 0.9)
    assert sglang.kv_bytes == pytest.approx(0.9 * device.memory_bytes - sglang.weight_bytes)
    assert vllm.kv_bytes == pytest.approx(sglang.kv_bytes - vllm.reserve_bytes)
    free = device.memory_bytes - trtllm.weight_bytes - vllm.reserve_bytes
    assert trtllm.kv_bytes == pytest.approx(0.9 * free)


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
def test_an_engine_serves(name):
    small = {"num_requests": 20, "rate": 50.0, "lengths": {"distribution": "fixed", "prompt": 100, "output": 20}}
    done = run(scenario(engine=name, timing=TABLE, workload=small))
    assert (done.cluster.requests.finished_s > 0).all()


@pytest.mark.parametrize(
    ("name", "version", "overlap", "surplus"),
    [
        ("vllm", "", True, False),
        ("vllm", "0.19.0", True, False),
        ("vllm", "0.14.0", True, False),
        ("vllm", "0.13.0", False, False),
        ("vllm", "0.11.1", False, True),
        ("sglang", "0.5.9", True, True),
        ("trtllm", "1.3.0rc20", True, False),
        ("trtllm", "1.2.0rc2.post2", True, True),
        ("trtllm", "0.19.0", False, True),
    ],
)
def test_the_version_decides_whether_batches_are_formed_ahead(name, version, overlap, surplus):
    batching = scenario(engine={"name": name, "version": version}).batching
    assert (batching.overlap, batching.surplus_token) == (overlap, surplus)
    assert scenario(engine={"name": name, "version": version}, batching={"overlap": not overlap}).batching.overlap != (
        overlap
    )


@pytest.mark.parametrize(
    ("device", "version", "all_reduce"),
    [("h100", "0.16.0", ""), ("h100", "0.17.0", "flashinfer"), ("b200", "0.15.1", ""), ("b200", "0.17.0", "flashinfer"),
     ("b300", "0.18.0", ""), ("b300", "0.19.0", "flashinfer"), ("gb300", "0.18.0", ""), ("a100-80gb", "0.19.0", "")],
)  # fmt: skip
def test_vllm_fuses_all_reduces_from_0_17_and_on_b300_from_0_19(device, version, all_reduce):
    """Pull requests 34299 and 37755."""
    scenario = load(Scenario, None, {"device": device, "engine": {"name": "vllm", "version": version}})
    assert scenario.timing.all_reduce == all_reduce


@pytest.mark.parametrize(
    ("device", "version", "converted"),
    [
        ("b200", "0.10.1", False),
        ("b200", "0.10.2", True),
        ("gb200", "0.11.1", True),
        ("b200", "0.12.0", False),
        ("b200", "", False),
        ("h100", "0.11.1", False),
    ],
)
def test_deepgemm_converts_scales_on_blackwell_from_0_10_2_to_0_11(device, version, converted):
    chosen = scenario(device=device, engine={"name": "vllm", "version": version})
    assert chosen.timing.scale_conversion == converted


@pytest.mark.parametrize(
    ("model", "version", "drafting", "has_graphs"),
    [
        ("llama-3.1-8b", "0.5.9", {}, False),
        ("llama-3.1-8b", "0.5.10", {}, True),
        ("llama-3.1-8b", "", {}, True),
        ("llama-3.1-8b", "0.5.10", {"speculative": {"num_tokens": 2, "acceptance": 0.6}}, False),
        ("llama-3.1-8b", "0.5.11", {"speculative": {"num_tokens": 2, "acceptance": 0.6}}, True),
        ("gemma-3-12b", "", {}, False),
        ("deepseek-r1", "", {}, False),
        ("qwen3.5-27b", "", {}, False),
    ],
)
def test_sglang_captures_prompts_from_0_5_10(model, version, drafting, has_graphs):
    chosen = scenario(model=model, engine={"name": "sglang", "version": version}, replica=drafting)
    assert chosen.timing.prompt_graphs == has_graphs


@pytest.mark.parametrize(
    ("model", "dtype", "version", "exposed_s"),
    [
        ("deepseek-r1", "auto", "1.1.0", 50e-6),
        ("deepseek-r1", "auto", "1.2.0", 25e-6),
        ("deepseek-r1", "nvfp4_mlp_and_output", "1.1.0", 25e-6),
        ("deepseek-r1", "nvfp4_mlp_and_output", "", 0.0),
        ("llama-3-8b", "auto", "1.1.0", 0.0),
    ],
)
def test_scaled_products_and_gaps_between_kernels_take_time_over_latents(model, dtype, version, exposed_s):
    """TensorRT-LLM starts a kernel while the one before ends from 1.2 on."""
    chosen = scenario(model=model, timing={"dtype": dtype}, engine={"name": "trtllm", "version": version})
    assert chosen.timing.host.exposed_per_layer_s == exposed_s


@pytest.mark.parametrize(
    ("name", "version", "drafts", "overlap"),
    [
        ("vllm", "", {"draft_layers": 1}, True),
        ("vllm", "", {"draft_model": "llama-3.2-1b"}, False),
        ("vllm", "", {}, False),
        ("sglang", "0.5.9", {"draft_layers": 1}, False),
        ("sglang", "", {"draft_layers": 1}, True),
        ("trtllm", "", {"draft_layers": 1}, True),
    ],
)
def test_drafting_decides_too(name, version, drafts, overlap):
    replica = {"speculative": {"num_tokens": 2, **drafts}}
    assert scenario(engine={"name": name, "version": version}, replica=replica).batching.overlap is overlap


def test_the_a100_lost_its_large_budget_in_vllm_0_9():
    budgets = [
        scenario(engine={"name": "vllm", "version": version}, device="a100").batching.max_batch_tokens
        for version in ("0.8.5", "0.9.0", "")
    ]
    assert budgets == [8192, 2048, 2048]


@pytest.mark.parametrize("version", ["0.99.0", "1.0", "latest", "0.19.0+cu128x"])
def test_a_version_that_nobody_knows_is_refused_with_those_known(version):
    with pytest.raises(UnknownNameError, match=r"0\.19\.x"):
        scenario(engine={"name": "vllm", "version": version})


def test_versions_have_an_order():
    versions = ["0.9.2", "0.10.0", "1.1.0", "1.2.0rc2", "1.2.0rc2.post2", "1.2.0rc6.post3", "1.2.0", "1.2.0.post1", ""]
    mixed = [versions[i] for i in (4, 8, 0, 6, 2, 7, 1, 5, 3)]
    assert sorted(mixed, key=order_of) == versions


def test_a_model_that_nobody_named_is_the_default_one():
    """Llama-3-8B, whose prompts SGLang runs in graphs."""
    unnamed, named = ({"engine": "sglang"} | more for more in ({}, {"model": "llama-3-8b"}))
    assert load(Scenario, None, unnamed) == load(Scenario, None, named)
    assert load(Scenario, None, unnamed).timing.prompt_graphs
