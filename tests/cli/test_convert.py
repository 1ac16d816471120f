"""Other tools' command lines as scenarios, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gnomon import catalog
from gnomon.convert import TOOLS, as_yaml, convert, vllm_flags
from gnomon.convert.commands import sglang_flags
from gnomon.convert.options import option_map
from gnomon.convert.readers import READERS, tokens
from gnomon.core.config import build, fields, load
from gnomon.core.errors import ConfigError, GnomonError
from gnomon.serving.policies import POLICIES
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.engine_presets import engine, engine_names

# The example of Vidur's README.
VIDUR = r"""python -m vidur.main \
--replica_config_device a100 \
--replica_config_model_name meta-llama/Meta-Llama-3-8B \
--cluster_config_num_replicas 1 \
--replica_config_tensor_parallel_size 1 \
--replica_config_num_pipeline_stages 1 \
--request_generator_config_type synthetic \
--synthetic_request_generator_config_num_requests 512 \
--length_generator_config_type trace \
--trace_request_length_generator_config_max_tokens 16384 \
--trace_request_length_generator_config_trace_file TRACE \
--interval_generator_config_type poisson \
--poisson_request_interval_generator_config_qps 6.45 \
--replica_scheduler_config_type sarathi \
--sarathi_scheduler_config_batch_size_cap 512 \
--sarathi_scheduler_config_chunk_size 256 \
--random_forrest_execution_time_predictor_config_prediction_max_prefill_chunk_size 16384 \
--random_forrest_execution_time_predictor_config_prediction_max_batch_size 512 \
--random_forrest_execution_time_predictor_config_prediction_max_tokens_per_request 16384
"""


def known_keys() -> set[str]:
    return {leaf.dotted for leaf in fields(Scenario)}


@pytest.mark.parametrize("tool", TOOLS)
def test_every_target_is_a_key_of_the_scenario(tool):
    known = option_map(tool)
    options = known.all_options().values()
    keys = {key for option in options for key in (*option.targets, *option.sets, *option.finishes)}
    keys |= set(known.scenario)
    is_engine = tool in engine_names()
    policies = [engine(tool).settings["batching.policy"].value] if is_engine else POLICIES.names()
    for key in keys:
        plain, _, of_policy = key.removesuffix(".0").removesuffix(".1").partition("options.")
        plain = plain.rstrip(".") + (".options" if of_policy else "")
        assert not of_policy or any(of_policy in POLICIES[name].options for name in policies)
        assert any(leaf == plain or leaf.startswith(plain + ".") for leaf in known_keys()), key


@pytest.mark.parametrize("tool", TOOLS)
def test_every_reader_exists(tool):
    for option in option_map(tool).all_options().values():
        assert option.read is None or option.read in READERS


def test_vidur_readme_example():
    result = convert("vidur", VIDUR)
    scenario = result.values
    assert scenario["model"] == "meta-llama/Meta-Llama-3-8B"
    assert scenario["batching"] == {
        "policy": "sarathi", "max_sequences": 512, "max_batch_tokens": 256, "block_size": 16, "watermark": 0.01,
    }  # fmt: skip
    assert scenario["workload"]["lengths"] == {"distribution": "empirical", "file": "TRACE"}
    assert scenario["workload"]["rate"] == 6.45
    assert scenario["workload"]["max_tokens"] == scenario["replica"]["max_request_tokens"] == 16384
    assert scenario["replica"]["planner"] == "vidur"
    assert scenario["node"] == "a100_pairwise_nvlink"
    assert len(result.mapped) + len(result.without) == 18
    assert {given.split()[0].rsplit("_prediction_")[-1] for given, _ in result.without} == {
        "max_prefill_chunk_size",
        "max_batch_size",
        "max_tokens_per_request",
    }


def test_vidur_defaults_are_written_out():
    scenario = convert("vidur", "python -m vidur.main").scenario
    assert scenario.model == "meta-llama/Llama-2-7b-hf"
    assert (scenario.workload.rate, scenario.workload.num_requests, scenario.seed) == (0.5, 128, 42)
    assert (scenario.workload.lengths.prompt, scenario.workload.lengths.output) == (2048, 512)
    assert (scenario.batching.policy, scenario.batching.max_batch_tokens) == ("sarathi", 512)


@pytest.mark.parametrize("policy", ["vllm", "sarathi", "orca", "faster_transformer", "lightllm", "vllm_v1"])
def test_vidur_schedulers(policy):
    result = convert(
        "vidur",
        f"python -m vidur.main --replica_scheduler_config_type {policy} "
        f"--{policy}_scheduler_config_batch_size_cap 7 --{policy}_scheduler_config_num_blocks 99",
    )
    assert result.scenario.batching.policy == policy
    assert result.scenario.batching.max_sequences == 7
    assert result.scenario.replica.num_kv_blocks == 99
    assert not result.without


def test_vidur_options_of_what_is_not_in_use_are_named():
    result = convert("vidur", "vidur.main --vllm_scheduler_config_batch_size_cap 7 --log_level debug")
    assert result.without[0] == (
        "--vllm_scheduler_config_batch_size_cap 7",
        "not in use: replica_scheduler_config_type is sarathi",
    )
    assert result.without[1][0] == "--log_level debug"


def test_vidur_workloads():
    def workload(options: str):
        return convert("vidur", f"python -m vidur.main {options}").scenario.workload

    uniform = workload("--length_generator_config_type UNIFORM --uniform_request_length_generator_config_min_tokens 10")
    assert (uniform.lengths.total, uniform.lengths.prompt_to_output) == ((10, 4096), 20)
    zipf = workload("--length_generator_config_type zipf --zipf_request_length_generator_config_scramble")
    assert (zipf.lengths.theta, zipf.lengths.scramble) == (0.6, True)
    gamma = workload("--interval_generator_config_type gamma --gamma_request_interval_generator_config_cv 2")
    assert (gamma.arrivals.cv, gamma.rate) == (2, 0.2)
    assert workload("--interval_generator_config_type static").arrivals.process == "batch"
    replay = workload(
        "--request_generator_config_type trace_replay --trace_request_generator_config_trace_file t.csv "
        "--trace_request_generator_config_time_scale_factor 2"
    )
    assert (replay.arrivals.process, replay.trace.file, replay.trace.time_scale, replay.rate) == (
        "trace", "t.csv", 2, None,
    )  # fmt: skip


def test_vidur_interval_traces_are_refused_by_name():
    result = convert("vidur", "vidur.main --interval_generator_config_type trace")
    assert "poisson at the default rate is used instead" in result.without[0][1]
    assert result.scenario.workload.arrivals.process == "poisson"


def test_vidur_router_network_and_measurements():
    result = convert(
        "vidur",
        "vidur.main --global_scheduler_config_type lor --cluster_config_num_replicas 4 --replica_config_device h100 "
        "--replica_config_memory_margin_fraction 0.2 --time_limit 60 "
        "--random_forrest_execution_time_predictor_config_compute_input_file "
        "./data/profiling/compute/{DEVICE}/{MODEL}/mlp.csv --no-metrics_config_store_plots",
    )
    scenario = result.scenario
    assert (scenario.router.name, scenario.num_replicas, scenario.node) == ("vidur_lor", 4, None)
    assert scenario.replica.memory_utilization == 0.8
    assert (scenario.timing.source, scenario.timing.path) == ("profile", "./data/profiling")
    assert scenario.time_limit_s == 60
    assert result.without == [("--no-metrics_config_store_plots", "plots are in the report")]


def test_vllm_options():
    result = convert(
        "vllm",
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 --max-num-seqs=128 "
        "--max_num_batched_tokens 2048 --max-model-len 32K --gpu-memory-utilization 0.85 --no-enable-prefix-caching "
        "--kv-cache-dtype fp8 --enforce-eager --trust-remote-code --port 8000 --num-gpu-blocks-override 500",
        device="rtx-pro-6000",
    )
    scenario = result.scenario
    assert (scenario.model, scenario.device) == ("Qwen/Qwen3-32B", "rtx-pro-6000")
    assert (scenario.batching.max_sequences, scenario.batching.max_batch_tokens) == (128, 2048)
    assert scenario.batching.prefix_cache is False
    assert scenario.replica.max_request_tokens == 32768
    assert scenario.replica.memory_utilization == 0.85
    assert scenario.replica.num_kv_blocks == 500
    assert (scenario.timing.kv_dtype, scenario.timing.graph_sizes) == ("fp8", ())
    assert [given for given, _ in result.without] == ["--trust-remote-code", "--port 8000"]


@pytest.mark.parametrize(
    ("device", "expected"), [("h100", (1024, 8192)), ("a100-80gb", (256, 2048)), ("rtx-4090", (256, 2048))]
)
def test_vllm_batch_defaults_follow_the_gpu(device, expected):
    batching = convert("vllm", "vllm serve meta-llama/Llama-3.1-8B", device=device).scenario.batching
    assert (batching.max_sequences, batching.max_batch_tokens) == expected


def test_vllm_data_parallel_dense_and_experts():
    dense = convert("vllm", "vllm serve meta-llama/Llama-3.1-8B -dp 4 --enable-expert-parallel").scenario
    assert (dense.num_replicas, dense.replica.data_parallel, dense.router.name) == (4, 1, "vllm_dp")
    experts = convert("vllm", "vllm serve mistralai/Mixtral-8x7B-v0.1 -dp 4 --enable-expert-parallel").scenario
    assert (experts.num_replicas, experts.replica.data_parallel, experts.replica.expert_parallel) == (1, 4, True)


def test_vllm_speculation():
    json_form = convert("vllm", """vllm serve llama-3-8b --speculative-config '{"num_speculative_tokens": 3}'""")
    dotted = convert("vllm", "vllm serve llama-3-8b --speculative-config.num_speculative_tokens 3")
    assert json_form.values == dotted.values
    assert dotted.scenario.replica.speculative.num_tokens == 3
    eagle = convert(
        "vllm", """vllm serve llama-3-8b -sc '{"num_speculative_tokens": 2, "method": "eagle", "model": "some/head"}'"""
    )
    assert (eagle.scenario.replica.speculative.draft_model, eagle.scenario.replica.speculative.draft_layers) == (
        None,
        1,
    )
    unknown = convert("vllm", """vllm serve llama-3-8b -sc '{"num_speculative_tokens": 2, "model": "some/draft"}'""")
    assert unknown.scenario.replica.speculative.draft_model is None
    assert any("some/draft" in note for note in unknown.notes)
    with pytest.raises(ConfigError, match="num_speculative_tokens"):
        convert("vllm", "vllm serve llama-3-8b --speculative-config '{}'")


_EAGLE = "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3"


@pytest.mark.parametrize(
    ("tool", "command", "drafts"),
    [
        ("vllm", """vllm serve deepseek-r1 -sc '{"num_speculative_tokens": 2, "method": "mtp"}'""", (2, 1, None)),
        (
            "vllm",
            """vllm serve deepseek-r1 -sc '{"num_speculative_tokens": 2, "method": "deepseek_mtp",
            "model": "deepseek-ai/DeepSeek-R1"}'""",
            (2, 1, None),
        ),
        (
            "vllm",
            """vllm serve qwen3-32b -sc '{"num_speculative_tokens": 2, "model": "qwen3-0.6b"}'""",
            (2, 0, "qwen3-0.6b"),
        ),
        ("vllm", """vllm serve qwen3-32b -sc '{"num_speculative_tokens": 2, "method": "ngram"}'""", (2, 0, None)),
        ("sglang", f"sglang.launch_server --model deepseek-r1 --speculative-algorithm EAGLE {_EAGLE}", (2, 1, None)),
        ("sglang", f"sglang.launch_server --model deepseek-r1 --speculative-algorithm NGRAM {_EAGLE}", (2, 0, None)),
        (
            "sglang",
            "sglang.launch_server --model qwen3-32b --speculative-algorithm STANDALONE "
            f"--speculative-draft-model-path qwen3-0.6b {_EAGLE}",
            (2, 0, "qwen3-0.6b"),
        ),
    ],
)
def test_what_drafts_is_a_head_a_model_or_free(tool, command, drafts):
    found = convert(tool, command).scenario.replica.speculative
    assert (found.num_tokens, found.draft_layers, found.draft_model) == drafts


@pytest.mark.parametrize(
    ("config", "drafts"),
    [
        ("{decoding_type: MTP, num_nextn_predict_layers: 3}", (3, 1, None)),
        ("{decoding_type: Eagle, max_draft_len: 4, speculative_model_dir: some/head}", (4, 1, None)),
        ("{decoding_type: Draft_Target, max_draft_len: 4, speculative_model_dir: qwen3-0.6b}", (4, 0, "qwen3-0.6b")),
    ],
)
def test_what_drafts_in_trtllm(config, drafts, tmp_path):
    (tmp_path / "extra.yml").write_text(f"speculative_config: {config}\n")
    found = convert("trtllm", f"trtllm-serve qwen3-32b --config {tmp_path}/extra.yml").scenario.replica.speculative
    assert (found.num_tokens, found.draft_layers, found.draft_model) == drafts


def test_the_commands_memory_share_counts_before_the_files(tmp_path):
    (tmp_path / "extra.yml").write_text("kv_cache_config: {free_gpu_memory_fraction: 0.5}\n")
    command = f"trtllm-serve qwen3-32b --config {tmp_path}/extra.yml"
    assert convert("trtllm", command).scenario.replica.memory_utilization == 0.5
    both = convert("trtllm", f"{command} --kv_cache_free_gpu_memory_fraction 0.7")
    assert both.scenario.replica.memory_utilization == 0.7


@pytest.mark.parametrize("end", ["> server.log 2>&1 &", "2>&1 | tee server.log", "&& echo ready", "; sleep 1"])
def test_what_the_shell_does_after_the_command_is_no_option(end):
    plain = "vllm serve qwen3-32b -tp 2"
    assert convert("vllm", f"{plain} {end}").values == convert("vllm", plain).values


def test_short_spellings_of_nested_options():
    found = convert("vllm", "vllm serve qwen3-32b -O3 -cc.cudagraph_mode=NONE")
    assert found.scenario.timing.graph_sizes == ()
    assert (
        convert("vllm", "vllm serve qwen3-32b -sc.num_speculative_tokens 3").scenario.replica.speculative.num_tokens
        == 3
    )


def test_sglang_without_chunks_takes_whole_prompts():
    command = "sglang.launch_server --model-path llama-3-8b --chunked-prefill-size -1"
    assert convert("sglang", command, device="h100").scenario.batching.max_batch_tokens == 16384
    wider = convert("sglang", f"{command} --max-prefill-tokens 40000", device="h100")
    assert wider.scenario.batching.max_batch_tokens == 40000
    assert any("not chunked" in note for note in wider.notes)


def test_a_converted_name_gets_its_models_variant_of_the_preset():
    command = "sglang.launch_server --model-path {} --tp 8"
    short, full = (convert("sglang", command.format(name), device="b200").scenario for name in
                   ("deepseek-r1", "deepseek-ai/DeepSeek-R1-0528"))  # fmt: skip
    assert full.batching == short.batching and full.timing == short.timing
    assert full.timing.all_reduce == "flashinfer"


def test_unknown_options_are_named_with_a_guess():
    result = convert("vllm", "vllm serve llama-3-8b --max-num-seq 4 --brand-new 1 2")
    assert result.without[0][1].endswith("did you mean max_num_seqs?")
    assert result.without[1][0] == "--brand-new [1, 2]"


def test_quantization_is_read_from_the_option_or_the_checkpoint():
    def dtype(command):
        return convert("vllm", f"vllm serve {command}").scenario.timing.dtype

    assert dtype("llama-3-8b --quantization awq") == "int4"
    assert dtype("llama-3-8b -q fp8 --dtype float16") == "fp8"
    assert dtype("llama-3-8b --dtype float16") == "fp16"
    assert dtype("deepseek-ai/DeepSeek-R1 --dtype float16") == "auto", "that is the format of activations"
    named = convert("vllm", "vllm serve nvidia/DeepSeek-V3.1-NVFP4 -q modelopt_fp4")
    assert catalog.model(named.scenario.model).precision(named.scenario.timing.dtype).name == "nvfp4_mlp_and_output"
    assert named.scenario.timing.dtype == "auto", "the option only says how the checkpoint is quantised"
    own = convert("vllm", "vllm serve Qwen/Qwen3-32B-AWQ -q awq_marlin --kv-cache-dtype fp8_ds_mla")
    assert own.scenario.timing.kv_dtype == "fp8"
    assert "weights are in int4, the checkpoint's own precision." in own.notes
    assert convert("vllm", "vllm serve llama-3-8b -q gguf").without[0][0] == "-q gguf"


def test_a_quantised_expert_parallel_deployment_fits_and_runs():
    from gnomon.serving.run.simulate import run

    result = convert("vllm", "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --enable-expert-parallel")
    assert (result.scenario.engine.name, result.scenario.replica.expert_parallel) == ("vllm", True)
    workload = {"num_requests": 20, "rate": 2.0}
    done = run(build(Scenario, {**result.values, "workload": workload}))
    assert (done.cluster.requests.finished_s > 0).all()
    assert any("fp8_block, the checkpoint's own precision" in note for note in done.notes)


def test_sglang_options():
    result = convert(
        "sglang",
        "PYTHONNOUSERSITE=1 python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1-0528 --host 0.0.0.0 "
        "--tensor-parallel-size=8 --data-parallel-size=1 --cuda-graph-max-bs 128 --max-running-requests 512 "
        "--mem-fraction-static 0.82 --kv-cache-dtype fp8_e4m3 --chunked-prefill-size 32768 --max-prefill-tokens 32768 "
        "--disable-radix-cache --stream-interval 10 --attention-backend flashinfer --trust-remote-code",
        device="h200",
    )
    scenario = result.scenario
    assert (scenario.engine.name, scenario.batching.policy, scenario.replica.planner) == ("sglang", "sglang", "sglang")
    assert (scenario.batching.max_sequences, scenario.batching.max_batch_tokens) == (512, 32768)
    assert (scenario.batching.prefix_cache, scenario.replica.memory_utilization) == (False, 0.82)
    assert (scenario.timing.kv_dtype, scenario.timing.engine) == ("fp8", "sglang")
    assert (scenario.timing.graph_sizes[0], scenario.timing.graph_sizes[-1]) == (1, 128)
    assert scenario.front_end.stream_interval == 10
    assert scenario.batching.options == {"max_prefill_tokens": 32768}
    assert [given for given, _ in result.without] == [
        "--host 0.0.0.0",
        "--attention-backend flashinfer",
        "--trust-remote-code",
    ]


@pytest.mark.parametrize(
    ("flags", "sizes"),
    [
        ("", tuple(engine("sglang").settings["timing.graph_sizes"].value)),
        ("--cuda-graph-max-bs 20", (1, 2, 4, 8, 12, 16, 20)),
        ("--cuda-graph-max-bs-decode 4", (1, 2, 4)),
        ("--cuda-graph-bs 1 8 64", (1, 8, 64)),
        ("--disable-cuda-graph", ()),
        ("--disable-cuda-graph --cuda-graph-max-bs 64", ()),
    ],
)
def test_sglang_graphs(flags, sizes):
    found = convert("sglang", f"sglang serve --model-path llama-3-8b {flags}").scenario
    assert found.timing.graph_sizes == sizes
    again = convert("sglang", " ".join(sglang_flags(found))).scenario
    assert again.timing.graph_sizes == sizes


def test_sglang_graphs_above_512_come_every_32():
    sizes = convert(
        "sglang", "sglang serve --model-path llama-3-8b --cuda-graph-max-bs 600"
    ).scenario.timing.graph_sizes
    assert sizes[-5:] == (496, 512, 544, 576, 600)


@pytest.mark.parametrize(
    ("flags", "sizes"),
    [
        ("--max-cudagraph-capture-size 20", (1, 2, 4, 8, 16, 20)),
        ("--cudagraph-capture-sizes 1 8 64", (1, 8, 64)),
        ("""--compilation-config '{"cudagraph_capture_sizes": [1, 8], "mode": 3}'""", (1, 8)),
        ("""--compilation-config '{"cudagraph_mode": "NONE"}'""", ()),
        ("""--compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}'""", "vllm"),
        ("-O 3", "vllm"),
        ("", "vllm"),
        ("--enforce-eager --max-cudagraph-capture-size 64", ()),
    ],
)
def test_vllm_graphs(flags, sizes):
    found = convert("vllm", f"vllm serve llama-3-8b {flags}").scenario
    assert found.timing.graph_sizes == sizes
    again = convert("vllm", " ".join(vllm_flags(found))).scenario
    assert again.timing.graph_sizes == sizes


def test_vllm_configuration_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "kv-cache-dtype: fp8\nno-enable-prefix-caching: true\nmax-num-batched-tokens: 8192\nmax-num-seqs: 4\n"
        """compilation-config: '{"cudagraph_capture_sizes": [1, 8]}'\n"""
    )
    result = convert("vllm", f"vllm serve llama-3-8b --config={path} --max-num-seqs 64")
    batching, timing = result.scenario.batching, result.scenario.timing
    assert (batching.prefix_cache, batching.max_batch_tokens, batching.max_sequences) == (False, 8192, 64)
    assert (timing.kv_dtype, timing.graph_sizes) == ("fp8", (1, 8))
    assert result.without == []


def test_options_of_the_launch_scripts_of_real_servers():
    vllm = convert(
        "vllm",
        "vllm serve sgl-project/DeepSeek-V4-Pro-FP8 -dp 8 --enable-expert-parallel --prefill-schedule-interval 4 "
        "--quantization deepseek_v4_fp8 --moe-backend deep_gemm_mega_moe --linear-backend flashinfer_cutlass",
    )
    assert vllm.scenario.batching.options == {"prefill_interval": 4}
    assert vllm.scenario.timing.dtype == "auto"
    assert not any("not an option" in why for _, why in vllm.without)
    sglang = convert("sglang", "sglang serve --model-path deepseek-v4-pro --tp 8 --moe-a2a-backend megamoe")
    assert sglang.scenario.replica.expert_parallel is True
    other = convert("sglang", "sglang serve --model-path deepseek-v4-pro --tp 8 --moe-a2a-backend brand_new")
    assert other.without == [("--moe-a2a-backend brand_new", "one model of the expert exchange")]


def test_sglang_data_parallelism_is_attention_groups_or_copies():
    groups = convert(
        "sglang", "sglang.launch_server --model deepseek-r1 --tp 8 --dp 8 --enable-dp-attention --ep-size 8"
    )
    replica = groups.scenario.replica
    assert (replica.tensor_parallel, replica.data_parallel, replica.expert_parallel) == (1, 8, True)
    copies = convert("sglang", "sglang.launch_server --model deepseek-r1 --tp 8 --dp 2").scenario
    assert (copies.num_replicas, copies.replica.tensor_parallel, copies.replica.data_parallel) == (2, 8, 1)
    partial = convert("sglang", "sglang.launch_server --model deepseek-r1 --tp 8 --ep 4")
    assert any("spread over all" in note for note in partial.notes)
    blocks = convert("sglang", "sglang.launch_server --model llama-3-8b --max-total-tokens 6400 --page-size 64")
    assert blocks.scenario.replica.num_kv_blocks == 100


TRTLLM = """
cuda_graph_config:
    enable_padding: true
    max_batch_size: 256
enable_attention_dp: true
kv_cache_config:
    dtype: fp8
    enable_block_reuse: false
    free_gpu_memory_fraction: 0.75
attention_dp_config:
    batching_wait_iters: 10
    enable_balance: true
    timeout_iters: 60
moe_config: {backend: CUTLASS}
speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 3}
stream_interval: 10
novelty: {depth: 2}
max_num_tokens: 4096
"""


def test_trtllm_command_with_its_file(tmp_path):
    path = tmp_path / "extra.yml"
    path.write_text(TRTLLM)
    result = convert(
        "trtllm",
        "mpirun -n 1 --oversubscribe --allow-run-as-root trtllm-serve deepseek-ai/DeepSeek-R1-0528 --port=8888 "
        "--trust_remote_code --backend=pytorch --max_batch_size 512 --max_seq_len=9416 --max_num_tokens=8192 "
        f"--tp_size=8 --ep_size=8 --extra_llm_api_options={path}",
        device="b200",
    )
    scenario = result.scenario
    replica = scenario.replica
    assert (replica.tensor_parallel, replica.data_parallel, replica.expert_parallel) == (1, 8, True)
    assert (replica.planner, replica.memory_utilization, replica.max_request_tokens) == ("trtllm", 0.75, 9416)
    assert replica.speculative.num_tokens == 3
    assert (scenario.batching.policy, scenario.batching.max_sequences) == ("trtllm", 512)
    assert scenario.batching.max_batch_tokens == 8192, "the command counts more than its file"
    assert scenario.batching.prefix_cache is False
    assert scenario.batching.options == {
        "balance": 1,
        "balance_wait_iterations": 10,
        "balance_timeout_iterations": 60,
    }
    assert scenario.timing.graph_sizes == (1, 2, 4, *range(8, 129, 8), 256)
    assert (scenario.timing.kv_dtype, scenario.timing.engine) == ("fp8", "trtllm")
    without = dict(result.without)
    assert without["novelty.depth: 2"].startswith("not an option that is known here")
    assert "moe_config.backend: CUTLASS" in without
    assert ("kv_cache_config.enable_block_reuse: False", "batching.prefix_cache") in result.mapped


def test_trtllm_mistakes_in_the_file_are_named(tmp_path):
    path = tmp_path / "extra.yml"
    command = f"trtllm-serve llama-3-8b --extra_llm_api_options {path}"
    with pytest.raises(GnomonError, match="no such file"):
        convert("trtllm", command)
    for text, message in (
        ("[1, 2]", "keys and values"),
        ("a: [", "extra.yml"),
        ("cuda_graph_config: {max_batch_size: many}", "'many' is not a whole number"),
        ("speculative_config: {decoding_type: MTP}", "num_nextn_predict_layers"),
        ("kv_cache_config: {max_tokens: lots}", "'lots' is not a whole number"),
    ):
        path.write_text(text)
        with pytest.raises(GnomonError, match=message):
            convert("trtllm", command)


@pytest.mark.parametrize(("text", "number"), [("4096", 4096), ("32k", 32000), ("32K", 32768), ("1.5m", 1_500_000)])
def test_short_numbers(text, number):
    assert tokens(text) == number


@pytest.mark.parametrize(
    ("tool", "command", "message"),
    [
        ("vidur", "ls -l", "does not start the tool"),
        ("vllm", "vllm serve 'open", "cannot be read"),
        ("vllm", "vllm serve a b", "belongs to no option"),
        ("vllm", "vllm serve no-such-model", "no-such-model"),
        ("vllm", "vllm serve llama-3-8b -tp two", "tensor_parallel"),
        ("vllm", "vllm serve llama-3-8b -dp two", "data_parallel"),
        ("vllm", "vllm serve llama-3-8b --max-model-len long", "not a number of tokens"),
        ("vllm", "vllm serve llama-3-8b --tensor-parallel-size", "--tensor-parallel-size needs a value"),
        ("vllm", "vllm serve llama-3-8b -tp --port 8000", "-tp needs a value"),
        ("dynamo", "dynamo serve", "unknown tool"),
        (
            "sglang",
            "sglang.launch_server --model-path llama-3-8b --tp 4 --dp 3 --enable-dp-attention",
            "does not divide",
        ),
        ("sglang", "sglang.launch_server --model-path llama-3-8b --ep-size many", "'many' is not a whole number"),
        ("sglang", "sglang.launch_server --model-path llama-3-8b --chunked-prefill-size ''", "'' is not a number"),
    ],
)
def test_mistakes_are_named(tool, command, message):
    with pytest.raises(GnomonError, match=message):
        convert(tool, command)


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2 --max-num-seqs 64 --max-num-batched-tokens 4096",
        "vllm serve Qwen/Qwen3-32B --no-enable-prefix-caching --dtype float16 --quantization fp8 --block-size 32",
        "vllm serve mistralai/Mixtral-8x7B-v0.1 -dp 2 --enable-expert-parallel --max-model-len 4096 --seed 3",
        "vllm serve meta-llama/Llama-3.1-8B -dp 2 --enforce-eager --async-scheduling --num-gpu-blocks-override 900",
        """vllm serve llama-3-8b --speculative-config '{"num_speculative_tokens": 3}'""",
    ],
)
def test_there_and_back(command):
    scenario = convert("vllm", command).scenario
    back = vllm_flags(scenario)
    quoted = " ".join(f"'{word}'" for word in back)
    assert convert("vllm", quoted).scenario.model_copy(update={"model": scenario.model}) == scenario


def test_default_scenario_as_a_vllm_command():
    words = vllm_flags(Scenario())
    assert words[:3] == ["vllm", "serve", "meta-llama/Meta-Llama-3-8B"]
    assert "--enforce-eager" not in words
    assert "--watermark" not in words


def test_command(cli, tmp_path):
    out = tmp_path / "scenario.yaml"
    command = "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2 --max-num-seqs 256 --port 80"
    printed = cli("convert", "vllm", command).output
    assert yaml.safe_load(printed)["replica"]["tensor_parallel"] == 2
    assert "#   --port 80: of the server's front end" in printed
    cli("convert", "vllm", command, "--out", str(out))
    assert load(Scenario, out) == build(Scenario, yaml.safe_load(printed))
    told = json.loads(cli("convert", "vllm", command, "--json").output)
    assert told["without_counterpart"] == [{"option": "--port 80", "why": "of the server's front end"}]
    assert "does not start" in cli("convert", "vidur", "ls", code=2).output


def test_converted_scenarios_simulate(tmp_path):
    from gnomon.serving.run.simulate import run

    trace = tmp_path / "lengths.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n300,20\n40,8\n")
    vidur = convert("vidur", VIDUR.replace("TRACE", str(trace)).replace("num_requests 512", "num_requests 30"))
    out = tmp_path / "scenario.yaml"
    out.write_text(as_yaml(vidur))
    assert (run(load(Scenario, out)).cluster.requests.finished_s > 0).all()
    vllm = convert("vllm", "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2 --max-num-seqs 256")
    out.write_text(as_yaml(vllm))
    small = load(Scenario, out, {"workload.num_requests": 30})
    assert (run(small).cluster.requests.finished_s > 0).all()


def test_the_page_names_every_option():
    page = (Path(__file__).parents[2] / "docs" / "coming-from-elsewhere.md").read_text()
    vidur = option_map("vidur")
    for name in vidur.options:
        assert f"`{name.removeprefix('metrics_config_').removeprefix('replica_config_')}`" in page, name
    for name in (name for group in vidur.groups for name in group.options):
        assert f"`{name}`" in page, name
    for tool, dash in (("vllm", "-"), ("sglang", "-"), ("trtllm", "_")):
        for name in option_map(tool).options:
            spelled = name if "." in name else "--" + name.replace("_", dash)
            assert f"`{spelled}`" in page, (tool, name)
            option, rows = option_map(tool).options[name], [row for row in page.splitlines() if f"`{spelled}`" in row]
            keys = [f"`{key}`" for key in (*option.targets, *option.finishes)]
            meant = [f"| {option.none} |"] if option.none is not None else keys
            assert any(all(part in row for part in meant) for row in rows), (tool, name)


POWERSHELL = r"""python -m vidur.main `
  --cluster_config_num_replicas 4 `
  --global_scheduler_config_type ppoonline `
  --p_p_o_global_scheduler_online_config_max_queue_requests_per_replica 8 `  # how many requests of a queue are seen
  --p_p_o_global_scheduler_online_config_balance_penalty_weight 0.3 `
  --poisson_request_interval_generator_config_qps 2 `
  *> .\run.log
"""


@pytest.mark.parametrize("command", [POWERSHELL, POWERSHELL.replace("`", "^"), POWERSHELL.replace("\n", "\r\n")])
def test_commands_as_powershell_and_cmd_break_them(command):
    found = convert("vidur", command)
    assert (found.scenario.num_replicas, found.scenario.router.name, found.scenario.workload.rate) == (4, "learned", 2)
    assert found.training == {"reward.balance_penalty": 0.3, "queue_depth": 8, "reward.mode": "hybrid"}
    assert not found.without


def test_options_without_effect_bring_what_they_need():
    prefix = "--p_p_o_global_scheduler_modular_config_"
    command = (
        f"python -m vidur.main --global_scheduler_config_type ppo_modular {prefix}alpha 0.2 {prefix}min_temperature 0.5"
    )
    found = convert("vidur", command)
    assert found.training == {
        "reward.throughput_weight": 0.2,
        "demos.min_temperature": 0.5,
        "reward.mode": "hybrid",
        "demos.dagger_rounds": 2,
    }
    assert any("demos.dagger_rounds 2 is set too" in note for note in found.notes)
    said = convert("vidur", f"{command} {prefix}reward_mode delta")
    assert said.training["reward.mode"] == "delta"


def test_the_forks_first_stages():
    demos = convert(
        "vidur",
        "python -m src.demo_collection.mixed_collector --output demo.pkl --policies round_robin lor random "
        "--steps_per_policy 700 --num_replicas 4 --qps 2.5 --include_imbalanced",
    )
    assert demos.training_command == (
        "gnomon route demos --scenario SCENARIO.yaml --demos.drivers round_robin,vidur_lor,random "
        "--demos.steps-per-driver 700 --demos.include-imbalanced true --demos.teacher own"
    )
    assert (demos.scenario.num_replicas, demos.scenario.workload.rate) == (4, 2.5)
    clone = convert("vidur", "python scripts/pretrain_actor.py --demo demo.pkl --epochs 30 --batch_size 256 --lr 5e-4")
    assert clone.training_command == (
        "gnomon route clone --scenario SCENARIO.yaml --clone.epochs 30 --clone.batch 256 --clone.learning-rate 5e-4"
    )


def test_a_converted_command_runs_with_what_is_installed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gnomon.convert.readers.find_spec", lambda name: None)
    command = VIDUR.replace("TRACE", "data/processed_traces/splitwise_conv.csv")
    found = convert("vidur", command)
    assert "estimator" not in found.values["timing"]
    assert found.values["workload"]["preset"] == "azure-conv"
    assert "lengths" not in found.values["workload"]
    told = [note for note in found.notes if "takes its place" in note or "[forest]" in note]
    assert len(told) == 2
    other = convert("vidur", command.replace("splitwise_conv", "mine"))
    assert any("mine.csv is not here: set workload.lengths.file" in note for note in other.notes)
