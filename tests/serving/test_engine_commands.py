"""A scenario as the command that starts it, for each engine."""

from __future__ import annotations

import shlex

import pytest
import yaml

from gnomon.convert import convert, engine_commands, server_command
from gnomon.convert.commands import FILE, sglang_flags, trtllm_script
from gnomon.core.config import build, load
from gnomon.core.errors import ConfigError
from gnomon.serving.scenario import Scenario


def scenario(**given: object) -> Scenario:
    return build(Scenario, {"model": "llama-3-8b", **given})


def extra_of(script: str) -> dict:
    """The file that the script writes."""
    return yaml.safe_load(script.split("<<'EOF'\n")[1].split("\nEOF\n")[0])


def test_every_engine_gets_the_layout_and_the_limits():
    found = engine_commands(
        scenario(replica={"tensor_parallel": 2}, batching={"max_sequences": 48, "max_batch_tokens": 4096})
    )
    assert list(found) == ["vllm", "sglang", "trtllm"]
    for command in found.values():
        words = shlex.split(command.splitlines()[-1])
        assert {"2", "48", "4096"} <= set(words)
    assert "--tensor-parallel-size 2" in found["vllm"]
    assert "--tp-size 2" in found["sglang"]
    assert "--tp_size 2" in found["trtllm"]


def test_sglang():
    words = sglang_flags(
        scenario(
            engine="sglang",
            model="deepseek-r1",
            replica={
                "tensor_parallel": 1,
                "data_parallel": 8,
                "expert_parallel": True,
                "speculative": {"num_tokens": 2},
            },
            batching={"prefix_cache": False, "options": {"receive_interval": 30}},
            timing={"kv_dtype": "fp8"},
        )
    )
    text = " ".join(words)
    for flag in (
        "--tp-size 8", "--dp-size 8 --enable-dp-attention", "--ep-size 8", "--mem-fraction-static 0.82",
        "--chunked-prefill-size 32768", "--disable-radix-cache", "--kv-cache-dtype fp8_e4m3", "--stream-interval 10",
        "--scheduler-recv-interval 30", "--speculative-num-steps 2 --speculative-num-draft-tokens 3",
    ):  # fmt: skip
        assert flag in text


def test_trtllm_writes_a_file_for_what_has_no_flag():
    script = trtllm_script(
        scenario(
            engine="trtllm",
            model="deepseek-r1",
            replica={
                "data_parallel": 8,
                "expert_parallel": True,
                "memory_utilization": 0.8,
                "max_request_tokens": 9416,
            },
            batching={
                "prefix_cache": False,
                "options": {"balance": 1, "balance_wait_iterations": 0, "balance_timeout_iterations": 60},
            },
            timing={"kv_dtype": "fp8"},
            front_end={"stream_interval": 10},
        )
    )
    last = script.splitlines()[-1]
    assert "--tp_size 8 --ep_size 8" in last
    assert "--kv_cache_free_gpu_memory_fraction 0.8" in last
    assert "--max_seq_len 9416" in last
    assert extra_of(script) == {
        "kv_cache_config": {"enable_block_reuse": False, "dtype": "fp8"},
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": 128},
        "enable_attention_dp": True,
        "attention_dp_config": {"enable_balance": True, "batching_wait_iters": 0, "timeout_iters": 60},
        "stream_interval": 10,
    }


def test_trtllm_waits_and_evicts_as_the_options_say():
    options = {"wait_iterations": 20, "wait_tokens_ratio": 0.9, "max_utilization": 1, "chunked_prefill": 1}
    extra = extra_of(trtllm_script(scenario(engine="trtllm", batching={"options": options})))
    assert (extra["batch_wait_timeout_iters"], extra["batch_wait_max_tokens_ratio"]) == (20, 0.9)
    assert extra["scheduler_config"] == {"capacity_scheduler_policy": "MAX_UTILIZATION"}
    assert extra["enable_chunked_prefill"] is True


@pytest.mark.parametrize("tool", ["sglang", "trtllm"])
def test_a_command_converts_back(tool, tmp_path, monkeypatch):
    options = {"sglang": {"receive_interval": 30.0}, "trtllm": {"balance": 1.0, "chunked_prefill": 1.0}}[tool]
    if tool == "trtllm":
        options |= {"balance_wait_iterations": 0.0, "balance_timeout_iterations": 60.0}
    asked = scenario(
        engine=tool,
        model="deepseek-r1",
        device="h200",
        replica={"data_parallel": 8, "expert_parallel": True, "memory_utilization": 0.8},
        batching={"prefix_cache": False, "max_sequences": 256, "options": options},
        timing={"kv_dtype": "fp8"},
        front_end={"stream_interval": 10},
    )
    script = engine_commands(asked)[tool]
    if tool == "trtllm":
        (tmp_path / FILE).write_text(yaml.safe_dump(extra_of(script)))
    monkeypatch.chdir(tmp_path)
    found = convert(tool, script.splitlines()[-1], device="h200").scenario
    assert (found.replica, found.front_end) == (asked.replica, asked.front_end)
    assert found.batching.resolved() == asked.batching.resolved()
    assert (found.timing.kv_dtype, found.timing.graph_sizes) == ("fp8", asked.timing.graph_sizes)


@pytest.mark.parametrize("sizes", [(), (1, 2, 4, 8, 16, 20), (1, 8, 64)])
def test_trtllm_graphs_convert_back(sizes, tmp_path, monkeypatch):
    script = trtllm_script(scenario(engine="trtllm", timing={"graph_sizes": sizes}))
    (tmp_path / FILE).write_text(yaml.safe_dump(extra_of(script)))
    monkeypatch.chdir(tmp_path)
    assert convert("trtllm", script.splitlines()[-1]).scenario.timing.graph_sizes == sizes


def test_the_command_is_that_of_the_engine_that_was_simulated() -> None:
    for policy, engine in (("vllm_v1", "vllm"), ("sglang", "sglang"), ("trtllm", "trtllm")):
        assert server_command(load(Scenario, None, {"batching.policy": policy}))[0] == engine


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"batching.policy": "orca"}, "no engine schedules as orca"),
        ({"timing.dtype": "int4"}, "int4 weights"),
        ({"pools": [{"num_replicas": 1}, {"num_replicas": 1, "device": "h100"}]}, "replicas differ"),
        ({"batching.policy": "sglang", "workload.adapters": {"count": 4}}, "LoRA adapters are not written for SGLang"),
    ],
)
def test_what_no_command_starts_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        server_command(load(Scenario, None, changes))


def test_a_share_of_memory_is_written_for_the_engine_that_means_the_same_by_it() -> None:
    flags = {
        "vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static",
        "trtllm": "--kv_cache_free_gpu_memory_fraction",
    }  # fmt: skip
    for simulated in flags:
        found = engine_commands(scenario(engine=simulated, replica={"memory_utilization": 0.77}))
        assert [name for name, flag in flags.items() if f"{flag} 0.77" in found[name]] == [simulated]


def test_adapters_and_the_front_end_are_in_vllms_command() -> None:
    plain = server_command(load(Scenario, None, {}))[1]
    assert "lora" not in plain
    assert "stream" not in plain
    asked = {"workload.adapters": {"count": 4}, "lora.max_loaded": 3, "lora.ranks": [8, 32]}
    _, command = server_command(load(Scenario, None, {**asked, "front_end.stream_interval": 5}))
    assert "--max-loras 3" in command
    assert command.endswith("--stream-interval 5 --max-loras 3 --enable-lora --max-lora-rank 32")
    again = convert("vllm", command).scenario
    assert (again.lora.max_loaded, again.front_end.stream_interval) == (3, 5)
    columns = {"prompt": "in", "output": "out", "adapter": "lora"}
    column = load(Scenario, None, {"workload.trace": {"file": "x.csv", "columns": columns}})
    assert "--enable-lora" in server_command(column)[1]


def test_replicas_behind_a_router_are_no_data_parallelism() -> None:
    _, command = server_command(load(Scenario, None, {"num_replicas": 4, "router.name": "least_outstanding"}))
    assert command.startswith("# One of 4 replicas; least_outstanding was simulated in front of them.\nvllm serve")
    assert "data-parallel" not in command


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B-FP8"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("qwen3-32b-fp8", "Qwen/Qwen3-32B-FP8"),
        ("llama-3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("deepseek-r1", "deepseek-ai/DeepSeek-R1"),  # One entry with DeepSeek-V3.
        ("glm-4.7", "zai-org/GLM-4.7"),
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
    ],
)
def test_a_command_names_the_checkpoint_that_was_asked_for(engine: str, asked: str, named: str) -> None:
    _, command = server_command(scenario(model=asked, engine=engine))
    assert named in shlex.split(command.splitlines()[-1])
