"""A measured server as a scenario: the client, the launch script's settings, the layout. Nothing here is fitted."""

from __future__ import annotations

from typing import Any

from gnomon.core.config import load
from gnomon.core.errors import ConfigError
from gnomon.serving.scenario import Scenario
from gnomon.verify.silicon.launch import launch_of
from gnomon.verify.silicon.servers import Layout, Server

WARM_UP_SINCE = "2026-01-05"
"""InferenceX's client sends warm-up requests in scripts younger than this."""

MODELS = {
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
    "deepseek-ai/DeepSeek-R1": "deepseek-r1",
    "deepseek-ai/DeepSeek-V3": "deepseek-r1",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "moonshotai/Kimi-K2.5": "kimi-k2.5",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-r1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3.1",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "zhipuai/GLM-5": "glm-5",
}
"""The file's models in the catalog. (Its DeepSeek-V3 rows are DeepSeek-R1 of another export: see their ids.)"""


def scenario_of(server: Server) -> Scenario:
    """The scenario that `gnomon simulate` would run for this server."""
    return load(Scenario, None, settings_of(server))


def settings_of(server: Server) -> dict[str, Any]:
    """The same as the few keys that differ from the defaults."""
    if server.problem:
        raise ConfigError(server.problem, where=server.id)
    launch = launch_of(_facts(server))
    return {
        "model": model_of(server),
        "device": server.device,
        "replica": parallelism_of(server.layout) | {"memory_utilization": launch.memory},
        "batching": {
            "policy": _POLICIES[server.engine],
            "max_batch_tokens": launch.max_batch_tokens,
            "max_sequences": launch.max_sequences,
            "prefix_cache": False,
        },
        "timing": {
            "source": "silicon",
            "path": server.engine,
            "dtype": _dtype(server),
            "kv_dtype": launch.kv_dtype,
            "graph_sizes": "vllm",
        },
        "workload": {"client": client_of(server)},
    }


_POLICIES = {"vllm": "vllm_v1", "sglang": "sglang", "trtllm": "vllm_v1"}


def model_of(server: Server) -> str:
    """The server's model in the catalog."""
    return MODELS.get(server.model, server.model)


def _facts(server: Server) -> dict[str, Any]:
    """What the rules of `launch.yaml` may ask."""
    return {
        "family": server.family,
        "engine": server.engine,
        "model": model_of(server),
        "device": server.device,
        "precision": server.precision,
        "date": server.date,
        "prompt": server.prompt_tokens,
        "output": server.output_tokens,
        "concurrency": server.concurrency,
        "gpus": server.layout.num_gpus,
    }


def _dtype(server: Server) -> str:
    return {"fp8": "fp8", "fp4": "fp4", "int4": "int4", "bf16": "bf16", "": "bf16"}[server.precision]


def client_of(server: Server) -> dict[str, Any]:
    """The load generator of the server's family. That of NVIDIA's own sweeps is not in the file: lengths are fixed."""
    name = "inferencex" if server.date >= WARM_UP_SINCE else "inferencex_2025"
    return {
        "name": name if server.family == "inferencex" else "genai_perf",
        "concurrency": server.concurrency,
        "prompt": server.prompt_tokens,
        "output": server.output_tokens,
    }


def parallelism_of(layout: Layout) -> dict[str, Any]:
    """The degrees of one worker."""
    degrees: dict[str, Any] = {"tensor_parallel": layout.tensor_parallel}
    if layout.attention_groups > 1:
        degrees["data_parallel"] = layout.attention_groups
    if layout.expert_parallel > 1:
        degrees["expert_parallel"] = True
    return degrees
