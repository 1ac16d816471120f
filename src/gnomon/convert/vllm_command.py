"""A scenario as a `vllm serve` command."""

from __future__ import annotations

import json
from typing import Any

from gnomon import catalog
from gnomon.convert.options import option_map
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import ReplicaConfig
from gnomon.serving.scenario.engine_presets import engine
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
    """Whether requests ask for LoRA adapters."""
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
    if value is None or value == _UNSAID.get(name):
        return []
    if isinstance(value, bool):
        return [spelled if value else "--no-" + name.replace("_", "-")]
    return [spelled, f"{value:g}" if isinstance(value, float) else str(value)]


# vLLM's own defaults, which need no word.
_UNSAID = {
    "enable_prefix_caching": True, "scheduler_reserve_full_isl": True, "enable_expert_parallel": False,
    "enforce_eager": False, "async_scheduling": False, "watermark": 0.0,
    "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1, "gpu_memory_utilization": 0.9,
    "block_size": 16, "seed": 0, "prefill_schedule_interval": 1, "dtype": "bfloat16", "kv_cache_dtype": "bfloat16",
    "stream_interval": 1,
}  # fmt: skip


def _at(section: Any, path: list[str]) -> Any:
    for part in path:
        section = section.get(part) if isinstance(section, dict) else getattr(section, part, None)
    return section
