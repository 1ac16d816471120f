"""A scenario as the command that starts such a server: with vLLM, SGLang or TensorRT-LLM."""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gnomon import catalog
from gnomon.convert.options import option_map
from gnomon.core.errors import ConfigError
from gnomon.core.text import to_yaml
from gnomon.search.config import UNITS
from gnomon.search.slo import shown
from gnomon.search.study import Found, winning_scenario
from gnomon.serving.policies import POLICIES
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import ReplicaConfig, ResolvedBatching
from gnomon.serving.scenario.engine_presets import engine
from gnomon.serving.scenario.pool import Pool
from gnomon.timing.config import captured_sizes


def vllm_flags(scenario: Scenario) -> list[str]:
    """The words of a `vllm serve` command that runs what `scenario` simulates, as far as vLLM has a word for it."""
    known = catalog.model(scenario.model)
    words = ["vllm", "serve", known.hf_id or scenario.model]
    pool = scenario.all_pools()[0]
    resolved = {
        "replica": pool.replica, "batching": pool.batching, "timing": pool.timing, "seed": scenario.seed,
        "front_end": scenario.front_end, "lora": scenario.lora if has_adapters(scenario) else None,
    }  # fmt: skip
    for name, option in option_map("vllm").options.items():
        if len(option.targets) != 1 or option.read == "speculative" or option.targets[0] == "model":
            continue
        if option.read and option.targets[0] == "timing.graph_sizes":
            continue
        if option.targets[0] == "replica.memory_utilization" and not plans_as("vllm", pool.replica):
            continue
        value = _at(resolved, option.targets[0].split("."))
        words += _flag(name, value, option.values, option.flag)
    if isinstance(sizes := pool.timing.graph_sizes, tuple) and sizes:
        is_usual = sizes == captured_sizes("vllm", sizes[-1])
        words += ["--max-cudagraph-capture-size", str(sizes[-1])] if is_usual else ["--cudagraph-capture-sizes"]
        words += [] if is_usual else map(str, sizes)
    if not known.is_moe and scenario.num_replicas > 1:
        words += ["--data-parallel-size", str(scenario.num_replicas)]
    if has_adapters(scenario):
        words += ["--enable-lora", "--max-lora-rank", str(max(scenario.lora.ranks))]
    speculative = pool.replica.speculative
    if speculative is not None:
        method = {"method": "mtp" if speculative.draft_layers else "ngram"}
        drafter = {"model": speculative.draft_model} if speculative.draft_model else method
        words += ["--speculative-config", json.dumps({**drafter, "num_speculative_tokens": speculative.num_tokens})]
    return words


def plans_as(name: str, replica: ReplicaConfig) -> bool:
    """Whether the replica's memory was planned as an engine does, so that its share means the same there."""
    return bool(replica.planner == engine(name).settings["replica.planner"].value)


def has_adapters(scenario: Scenario) -> bool:
    trace = scenario.workload.trace
    columns = None if trace is None else trace.columns
    return scenario.workload.adapters is not None or (columns is not None and columns.adapter is not None)


def _flag(name: str, value: Any, values: dict[str, Any] | None, is_flag: bool) -> list[str]:
    if values is not None:
        value = list(value) if isinstance(value, tuple) else value
        value = next((theirs for theirs, ours in values.items() if ours == value), None)
        value = value == "true" if is_flag and value is not None else value
    if is_flag and isinstance(value, float):  # Options of policies are numbers.
        value = bool(value)
    spelled = "--" + name.replace("_", "-")
    if value is None or value == option_map("vllm").unsaid.get(name):
        return []
    if isinstance(value, bool):
        return [spelled if value else "--no-" + name.replace("_", "-")]
    return [spelled, f"{value:g}" if isinstance(value, float) else str(value)]


def _at(section: Any, path: list[str]) -> Any:
    for part in path:
        section = section.get(part) if isinstance(section, dict) else getattr(section, part, None)
    return section


DYNAMO_FILE = "dynamo.yaml"
IMAGE = "vllm-runtime:my-tag"  # Of Dynamo's workers: the tag that is deployed is not the simulator's to say.
_WORKERS = {"prefill": "VllmPrefillWorker", "decode": "VllmDecodeWorker", "both": "VllmWorker"}
FILE = "trtllm.yaml"  # Where the command for TensorRT-LLM writes what has no flag.


@dataclass(frozen=True)
class Engine:
    """An engine whose servers can be started, with what its command has words for."""

    name: str
    command: Callable[[Scenario], str]
    weight_formats: tuple[str, ...] = ("auto", "bf16", "fp16")
    """Number formats into which it brings the weights of any checkpoint."""
    has_adapters: bool = False
    has_roles: bool = False
    """Its servers can be told apart into those that prefill and those that decode."""


def server_command(scenario: Scenario) -> tuple[str, str]:
    """The engine whose scheduler was simulated, and the command that starts such a server.

    ConfigError with the reason where there is none: a command must start what the figures are of.
    """
    pools = scenario.all_pools()
    policies = list(dict.fromkeys(pool.given_batching.policy for pool in pools))
    policy, dtype = policies[0], pools[0].timing.dtype
    name = POLICIES[policy].engine
    if not name:
        known = ", ".join(one for one in POLICIES if POLICIES[one].engine)
        raise ConfigError(f"no engine schedules as {policy} does.", fix=f"Simulate one that an engine has: {known}.")
    engine = ENGINES[name]
    if scenario.has_roles:
        if len(policies) > 1 or not engine.has_roles:
            raise ConfigError("only vLLM's scheduler is written as pairs of commands.", fix="Simulate vllm_v1.")
        # The layout as a file for Dynamo, first because servers do not return; then one `vllm serve` command for each
        # pool, with KV moved by NIXL.
        layout = to_yaml(dynamo_layout(scenario))
        text = [f"# For Dynamo:\ncat > {DYNAMO_FILE} <<'EOF'\n{layout}EOF"]
        for pool in scenario.all_pools():
            words = vllm_flags(scenario.model_copy(update={"pools": (pool.as_written,)}))
            words += ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})]
            text.append(f"# {pool.num_replicas} of these {pool.role}:\n{shlex.join(words)}")
        return name, "\n".join(text)
    if len(pools) > 1:
        raise ConfigError("its replicas differ: each pool needs a command of its own.")
    if dtype not in engine.weight_formats:
        what = f"{dtype} weights are a checkpoint of their own, not a flag."
        raise ConfigError(what, fix="Name that checkpoint as the model.")
    if has_adapters(scenario) and not engine.has_adapters:
        raise ConfigError(f"LoRA adapters are not written for {engine.name}.", fix="Simulate vllm_v1.")
    count, router = scenario.num_replicas, scenario.router.name
    note = f"# One of {count} replicas; {router} was simulated in front of them.\n" if count > 1 else ""
    return name, note + engine.command(scenario.model_copy(update={"num_replicas": 1}))


def dynamo_layout(scenario: Scenario) -> dict[str, Any]:
    """The pools as services of a Dynamo graph (DynamoGraphDeployment, v1alpha1): a front end, prefill workers, decode
    workers. Which image they run is left to fill in."""
    services: dict[str, Any] = {
        "Frontend": {"componentType": "frontend", "replicas": 1, "extraPodSpec": {"mainContainer": {"image": IMAGE}}}
    }
    for pool in scenario.all_pools():
        flags = vllm_flags(scenario.model_copy(update={"pools": (pool.as_written,)}))[3:]
        role = {} if pool.role == "both" else {"subComponentType": pool.role}
        mode = [] if pool.role == "both" else ["--disaggregation-mode", pool.role]
        container = {
            "image": IMAGE,
            "command": ["python3", "-m", "dynamo.vllm"],
            "args": ["--model", _model(scenario), *flags, *mode],
        }
        services[_WORKERS[pool.role]] = {
            "componentType": "worker", **role, "replicas": pool.num_replicas,
            "resources": {"limits": {"gpu": str(pool.replica.num_gpus)}}, "extraPodSpec": {"mainContainer": container},
        }  # fmt: skip
    return {
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment",
        "metadata": {"name": "disaggregated"}, "spec": {"services": services},
    }  # fmt: skip


def engine_commands(scenario: Scenario) -> dict[str, str]:
    """The scenario as a command of each engine, as far as the engine has a word for it. All get the same limits,
    whichever engine's scheduler was simulated."""
    return {name: engine.command(scenario) for name, engine in ENGINES.items()}


def sglang_flags(scenario: Scenario) -> list[str]:
    pool = scenario.all_pools()[0]
    replica, batching = pool.replica, pool.batching
    words = ["python", "-m", "sglang.launch_server", "--model-path", _model(scenario)]
    words += ["--tp-size", str(replica.tensor_parallel * replica.data_parallel)]
    if replica.data_parallel > 1:
        words += ["--dp-size", str(replica.data_parallel), "--enable-dp-attention"]
    elif scenario.num_replicas > 1:
        words += ["--dp-size", str(scenario.num_replicas)]
    if replica.pipeline_parallel > 1:
        words += ["--pp-size", str(replica.pipeline_parallel)]
    if replica.expert_parallel:
        words += ["--ep-size", str(replica.tensor_parallel * replica.data_parallel)]
    words += ["--max-running-requests", str(batching.max_sequences)]
    words += ["--chunked-prefill-size", str(batching.max_batch_tokens)]
    if plans_as("sglang", replica):
        words += ["--mem-fraction-static", f"{replica.memory_utilization:g}", "--page-size", str(batching.block_size)]
    if "max_prefill_tokens" in batching.options:
        words += ["--max-prefill-tokens", f"{batching.options['max_prefill_tokens']:.0f}"]
    if not batching.prefix_cache:
        words.append("--disable-radix-cache")
    if pool.timing.kv_dtype == "fp8":
        words += ["--kv-cache-dtype", "fp8_e4m3"]
    sizes = pool.timing.graph_sizes  # vLLM's default ones count tokens, not decodes, and are not written.
    if sizes == ():
        words.append("--disable-cuda-graph")
    elif isinstance(sizes, tuple):
        is_usual = sizes == captured_sizes("sglang", sizes[-1])
        words += ["--cuda-graph-max-bs", str(sizes[-1])] if is_usual else ["--cuda-graph-bs", *map(str, sizes)]
    if scenario.front_end.stream_interval > 1:
        words += ["--stream-interval", str(scenario.front_end.stream_interval)]
    if (interval := batching.options.get("receive_interval", 1)) > 1:
        words += ["--scheduler-recv-interval", f"{interval:g}"]
    if replica.speculative is not None:
        drafted = replica.speculative.num_tokens
        head = "EAGLE" if replica.speculative.draft_layers else "NGRAM"
        algorithm = "STANDALONE" if replica.speculative.draft_model else head
        words += ["--speculative-algorithm", algorithm, "--speculative-eagle-topk", "1"]
        words += ["--speculative-num-steps", str(drafted), "--speculative-num-draft-tokens", str(drafted + 1)]
        if replica.speculative.draft_model:
            words += ["--speculative-draft-model-path", replica.speculative.draft_model]
    return words


def trtllm_script(scenario: Scenario) -> str:
    """A `trtllm-serve` command, after the file with the options that it has no flag for."""
    pool = scenario.all_pools()[0]
    replica, batching = pool.replica, pool.batching
    ranks = replica.tensor_parallel * replica.data_parallel
    words = ["trtllm-serve", _model(scenario), "--backend", "pytorch", "--tp_size", str(ranks)]
    if replica.pipeline_parallel > 1:
        words += ["--pp_size", str(replica.pipeline_parallel)]
    if replica.expert_parallel:
        words += ["--ep_size", str(ranks)]
    words += ["--max_batch_size", str(batching.max_sequences), "--max_num_tokens", str(batching.max_batch_tokens)]
    if replica.max_request_tokens:
        words += ["--max_seq_len", str(replica.max_request_tokens)]
    if plans_as("trtllm", replica):
        words += ["--kv_cache_free_gpu_memory_fraction", f"{replica.memory_utilization:g}"]
    words += ["--extra_llm_api_options", FILE]
    extra = to_yaml(_trtllm_extra(scenario, pool, batching))
    return f"cat > {FILE} <<'EOF'\n{extra}EOF\n{shlex.join(words)}"


def _trtllm_extra(scenario: Scenario, pool: Pool, batching: ResolvedBatching) -> dict[str, Any]:
    options, sizes = batching.options, pool.timing.graph_sizes
    cache: dict[str, Any] = {"enable_block_reuse": batching.prefix_cache}
    if pool.timing.kv_dtype == "fp8":
        cache["dtype"] = "fp8"
    extra: dict[str, Any] = {"kv_cache_config": cache}
    if sizes == ():
        extra["cuda_graph_config"] = None
    elif isinstance(sizes, tuple):
        is_usual = sizes == captured_sizes("trtllm", sizes[-1])
        captured: dict[str, Any] = {"max_batch_size": sizes[-1]} if is_usual else {"batch_sizes": list(sizes)}
        extra["cuda_graph_config"] = {"enable_padding": True, **captured}
    # Without its own scheduler being simulated, prompts are chunked as the other engines do.
    if options.get("chunked_prefill", POLICIES[batching.policy].options.get("chunked_prefill", 1)):
        extra["enable_chunked_prefill"] = True
    if options.get("max_utilization"):
        extra["scheduler_config"] = {"capacity_scheduler_policy": "MAX_UTILIZATION"}
    if options.get("wait_iterations") or options.get("wait_tokens_ratio"):
        extra["batch_wait_timeout_iters"] = int(options.get("wait_iterations", 0))
        extra["batch_wait_max_tokens_ratio"] = options.get("wait_tokens_ratio", 0.0)
    if pool.replica.data_parallel > 1:
        extra["enable_attention_dp"] = True
        if options.get("balance"):
            extra["attention_dp_config"] = {
                "enable_balance": True,
                "batching_wait_iters": int(options.get("balance_wait_iterations", 10)),
                "timeout_iters": int(options.get("balance_timeout_iterations", 50)),
            }
    if scenario.front_end.stream_interval > 1:
        extra["stream_interval"] = scenario.front_end.stream_interval
    if (drafts := pool.replica.speculative) is not None and drafts.draft_model:
        extra["speculative_config"] = {
            "decoding_type": "Draft_Target", "max_draft_len": drafts.num_tokens,
            "speculative_model_dir": drafts.draft_model,
        }  # fmt: skip
    elif drafts is not None and drafts.draft_layers:
        extra["speculative_config"] = {"decoding_type": "MTP", "num_nextn_predict_layers": drafts.num_tokens}
    elif drafts is not None:
        extra["speculative_config"] = {"decoding_type": "NGram", "max_draft_len": drafts.num_tokens}
    return extra


def _model(scenario: Scenario) -> str:
    return catalog.model(scenario.model).hf_id or scenario.model


ENGINES = {
    "vllm": Engine(
        "vLLM", lambda one: shlex.join(vllm_flags(one)), weight_formats=("auto", "bf16", "fp16", "fp8"),
        has_adapters=True, has_roles=True,
    ),
    "sglang": Engine("SGLang", lambda one: shlex.join(sglang_flags(one))),
    "trtllm": Engine("TensorRT-LLM", trtllm_script),
}  # fmt: skip


def winning_commands(found: Found) -> dict[str, str]:
    """A command for each engine, that of the winner first; none where no engine starts any configuration.

    Of an engine that was searched it is its own best configuration. Any other gets the layout and the limits of the
    first, under a comment that says so.
    """
    commands: dict[str, str] = {}
    for record in found.ranked:
        policy = str(record.overrides.get("batching.policy", ""))
        engine = POLICIES[policy].engine if policy in POLICIES else ""
        if not engine or engine in commands:
            continue
        try:
            _, command = server_command(winning_scenario(found.search, record))
        except ConfigError:
            continue
        commands[engine] = command
        if record is not found.best:  # What the best of another engine than the winner's is worth.
            assert found.best is not None and found.best.score is not None and record.score is not None
            worth, winner = (shown(found.search.objective, one) for one in (record.score, found.best.score))
            unit, name = UNITS[found.search.objective], ENGINES[engine].name
            note = f"# The best with {name}: {record.label}, {worth:.3g} {unit} (the winner: {winner:.3g})."
            commands[engine] = f"{note}\n{command}"
        if len(commands) == 1:
            first = record
    if not commands:
        return {}
    scenario = winning_scenario(found.search, first)
    if not scenario.has_roles:
        alike = engine_commands(scenario.model_copy(update={"num_replicas": 1}))
        won = ENGINES[next(iter(commands))].name
        for engine in ENGINES:
            note = f"# Not simulated with {ENGINES[engine].name}: the layout and the limits that were best with {won}."
            commands.setdefault(engine, f"{note}\n{alike[engine]}")
    return commands
