"""Published runs of verl and NeMo-RL as configurations, with one set of constants for each framework."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon.core.config import build
from gnomon.core.errors import DataError
from gnomon.posttrain.scenario.config import Posttrain

VERL = {"dispatch_s": 20.0, "launch_per_layer_s": 3.4e-4, "shape": 0.7, "efficiency": 1.3}
"""dispatch_s: a padded batch of 8,192 x 30,720 through the single controller, fitted to the log-probabilities' seconds
of the colocated runs and to what the asynchronous trainers wait. launch_per_layer_s: eager decoding (verl's default),
11 ms for 32 layers on an H100 host. shape (log-normal) and efficiency (H20, whose training was not measured): fitted to
the generation of the colocated runs."""
NEMO = {"shape": 3.1, "prompt": 150, "efficiency": 0.5}
"""efficiency of training and the refit of `shared_memory` are fitted to the five synchronous steps on H100, that of
`rdma` to three asynchronous ones; the shape is the simulator's default; prompts of OpenMathInstruct-2 an estimate."""
VERL_SYNCS = {
    ("qwen2.5-7b", 4): (0.12, 0.02), ("qwen3-30b-a3b", 16): (15.76, 4.38), ("qwen3-235b-a22b", 64): (58.57, 23.70),
}  # fmt: skip
"""Seconds tensor by tensor, and with the checkpoint engine."""


@dataclass(frozen=True)
class VerlRun:
    """One row of verl's fully asynchronous tables: 512 prompts x 16, Qwen2.5-Math-7B on H20."""

    name: str
    trainer: int
    rollout: int
    """0: colocated."""
    step_s: float
    training_s: float
    staleness: float = 0.5
    interrupt: bool = True
    fetch: int = 4
    role: str = "reported"
    same_lengths_as: str = ""
    """A run whose mean length it has; inferred from its own training time unless given."""


VERL_RUNS = (
    VerlRun("colocated 64", 64, 0, 365.28, 133.41, role="gate"),
    VerlRun("colocated 128", 128, 0, 356.30, 113.81, role="gate"),
    VerlRun("colocated 32, first 200 steps", 32, 0, 490.7, 0.0, role="gate", same_lengths_as="colocated 64"),
    VerlRun("colocated 32, all 400 steps", 32, 0, 790.10, 269.80),
    VerlRun("async 16:16", 16, 16, 294.77, 313.81, role="gate"),
    VerlRun("async 32:32", 32, 32, 189.26, 156.98, role="gate"),
    VerlRun("async 64:64", 64, 64, 150.63, 113.16, role="gate"),
    VerlRun("staleness 0", 64, 64, 231.34, 98.77, staleness=0.0),
    VerlRun("staleness 0.1", 64, 64, 171.30, 109.12, staleness=0.1),
    VerlRun("staleness 0.3", 64, 64, 146.11, 103.22, staleness=0.3),
    VerlRun("fetch 1", 64, 64, 203.47, 181.08, fetch=1),
    VerlRun("fetch 2", 64, 64, 158.72, 128.08, fetch=2),
)
"""Staleness 0.5 is the row async 64:64; the fetches' row of 4 is another average of the same run. By its total times,
colocated 32 took 494, 503, 1,067 and 1,142 s a step in its four quarters: its lengths doubled, which colocated 64 (373
to 376 s throughout) did not see. So its first half is predicted, 27 h 43 min for 200 steps less the 8.2 s of validation
that colocated 64 has a step, with the lengths of colocated 64; no mean length stands for the whole run."""


def verl_configuration(run: VerlRun, mean: float, seed: int, steps: int) -> Posttrain:
    """As verl's scripts set it up: FSDP2 with Ulysses over 4 GPUs, vLLM with TP 4, full recomputation."""
    total = run.trainer + run.rollout
    layout = {
        "framework": "fsdp",
        "context_parallel": 4,
        "shard_gpus": 8 if run.rollout else 2,
        "efficiency": VERL["efficiency"],
    }
    algorithm: dict[str, Any] = {"rollout_batch_size": 512, "group_size": 16, "n_minibatches": 16}
    if run.rollout:
        placement = {"actor": f"0-{run.trainer - 1}", "rollout": f"{run.trainer}-{total - 1}"}
        algorithm |= {"fetch_minibatches": run.fetch, "recompute_logprobs": False, "interrupt": run.interrupt}
        algorithm |= {"mode": "async" if run.staleness else "sync", "staleness": run.staleness}
    else:
        placement = dict.fromkeys(("actor", "rollout", "inference"), "all")
    return build(
        Posttrain,
        {
            "model": "qwen2.5-7b",
            "device": "h20",
            "cluster": {"num_nodes": total // 8, "component_placement": placement},
            "algorithm": algorithm,
            "rollout": {
                "tensor_parallel": 4, "max_running_requests": 1024, "memory_utilization": 0.8, "preset": "vllm",
                "host": {"launch_per_layer_s": VERL["launch_per_layer_s"]},
            },
            "actor": layout
            | {"max_tokens": 245_760, "recompute": 1.0, "offload": not run.rollout, "deal": "sequences"},
            "inference": layout | {"max_tokens": 368_640},
            "lengths": {
                "distribution": "lognormal", "mean": mean, "shape": VERL["shape"], "max_response": 28_672,
                "max_prompt": 2048, "prompt_mean": 150,
            },
            "transitions": {"dispatch_s": VERL["dispatch_s"]},
            "seed": seed,
            "num_steps": steps,
        },
    )  # fmt: skip


def verl_v1_rows(folder: Path) -> list[tuple[str, float, Posttrain]]:
    """verl's v1 trainer: mode, seconds of a step, configuration. Its GPU is not named: H100 here."""
    found = []
    for row in _csv(folder / "rl" / "verl_v1_async.csv"):
        batch, size = int(row["train_batch"]), int(row["samples_per_prompt_implied"])
        mode = row["mode"]
        total = int(row["nodes"]) * int(row["gpus_per_node"])
        placement: dict[str, str] = {"actor": "all", "rollout": "all"}
        if mode == "separate_async":
            placement = {"actor": f"0-{total // 2 - 1}", "rollout": f"{total // 2}-{total - 1}"}
        algorithm: dict[str, Any] = {"rollout_batch_size": batch, "group_size": size, "recompute_logprobs": False}
        algorithm |= {"n_minibatches": batch // int(row["mini_batch"]), "actor_passes": 1, "fetch_minibatches": 1}
        if mode != "sync":
            algorithm |= {"mode": "async", "staleness": 1.0}
        config = build(
            Posttrain,
            {
                "model": "qwen3.5-35b-a3b",
                "cluster": {"num_nodes": int(row["nodes"]), "component_placement": placement},
                "algorithm": algorithm,
                "rollout": {"tensor_parallel": 4, "preset": "vllm", "memory_utilization": 0.6},
                "actor": {
                    "tensor_parallel": 2, "pipeline_parallel": 2, "context_parallel": 2, "expert_parallel": 4,
                    "recompute": 1.0, "deal": "sequences", "max_tokens": 65_536, "offload": True,
                },
                "lengths": {"mean": int(row["mean_response"]), "max_response": 32_768, "max_prompt": 2048},
                "policy": {"name": "switching" if mode == "separate_async" else None},
                "num_steps": 6,
            },
        )  # fmt: skip
        found.append((mode, 3600 * float(row["hours"]) / int(row["steps"]), config))
    return found


NEMO_MODELS = {
    "DeepSeek V3": ("deepseek-v3", 16),
    "Qwen3-235B": ("qwen3-235b-a22b", 32),
    "Qwen3-30B3A": ("qwen3-30b-a3b", 32),
    "Nemotron-3-Nano-30B-A3B": ("nemotron-3-nano-30b-a3b", 32),
}
"""Name in Gnomon, samples per prompt in the recipe."""


@dataclass(frozen=True)
class NemoRow:
    """One row of NeMo-RL's table."""

    name: str
    model: str
    gpu: str
    off: int
    """Steps off policy."""
    gpus: int
    step_s: float
    config: Posttrain


def nemo_rows(folder: Path) -> list[NemoRow]:
    """Every row; the SWE recipe has 64 sequences a step, as its tokens per second say, not the table's 512."""
    text = _read(folder / "rl" / "nemo_rl_perf.md")
    split = {
        (row["model"], row["gpu"], row["off_policy"]): int(row["nodes_for_generation"]) / int(row["nodes"])
        for row in _csv(folder / "rl" / "nemo_rl_split.csv")
    }
    found = []
    for part in text.split("\n### ")[1:]:
        gpu, precision = part.split()[:2]
        for line in part.splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) == 12 and cells[0] in ("GRPO", "SWE"):
                found.append(_nemo_row(cells, gpu, precision, split))
    return found


def _nemo_row(cells: list[str], gpu: str, precision: str, split: dict[tuple[str, str, str], float]) -> NemoRow:
    kind, model, policy = cells[:3]
    longest, mean, gpus, batch, update = (int(cell.replace(",", "")) for cell in cells[3:8])
    batch = 64 if kind == "SWE" else batch
    update = min(update, batch)
    rollout = int(re.findall(r"\d+", cells[8])[0])
    tensor, context, experts, stages = (int(cell) for cell in re.findall(r"\d+", cells[9])[:4])
    off = 0 if policy == "On policy" else int(policy.split("-")[0])
    name, size = NEMO_MODELS[model]
    per_node = 4 if gpu.startswith("GB") else 8
    is_large = name in ("deepseek-v3", "qwen3-235b-a22b") or kind == "SWE"
    algorithm: dict[str, Any] = {"rollout_batch_size": batch // size, "group_size": size, "recompute_logprobs": False}
    algorithm |= {"n_minibatches": batch // update, "fetch_minibatches": batch // update, "actor_passes": 2}
    placement = {"actor": "all", "rollout": "all"}
    if off:
        steps = f"{off} step{'s' if off > 1 else ''}"
        share = split.get((model, gpu, steps), 0.5)
        trainer = gpus - round(share * gpus)
        placement = {"actor": f"0-{trainer - 1}", "rollout": f"{trainer}-{gpus - 1}"}
        algorithm |= {"mode": "async", "staleness": float(off), "max_lag": off, "keep_kv": True}
    prompt = int(NEMO["prompt"]) if kind == "GRPO" else 2000
    dtype = "fp8" if precision == "FP8" else "bf16"
    environment = {"turns": 50, "tool_s": 2.0} if kind == "SWE" else {}
    config = build(
        Posttrain,
        {
            "model": name,
            "device": gpu.lower(),
            "cluster": {"num_nodes": gpus // per_node, "gpus_per_node": per_node, "component_placement": placement},
            "algorithm": algorithm,
            "rollout": {
                "tensor_parallel": rollout, "max_running_requests": 1024, "preset": "vllm", "dtype": dtype,
                "memory_utilization": 0.8 if off else 0.6,
            },
            "actor": {
                "tensor_parallel": tensor, "context_parallel": context, "expert_parallel": experts,
                "pipeline_parallel": stages, "max_tokens": longest, "deal": "sequences", "precision": dtype,
                "recompute": 1.0 if is_large else None, "offload": not off, "efficiency": NEMO["efficiency"],
            },
            "lengths": {
                "mean": mean - prompt, "shape": NEMO["shape"], "prompt_mean": prompt, "max_prompt": 4 * prompt,
                "max_response": longest - prompt,
            },
            "environment": environment,
            "transitions": {"sync": "rdma" if off else "shared_memory"},
            "num_steps": 4 if off else 2,
        },
    )  # fmt: skip
    return NemoRow(f"{kind} {model} {gpu} {precision} {gpus} {policy}", model, gpu, off, gpus, float(cells[11]), config)


def _read(path: Path) -> str:
    if not path.is_file():
        raise DataError("no such file.", where=str(path), fix="Set GNOMON_REFERENCE to the reference data.")
    return path.read_text(encoding="utf-8")


def _csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(_read(path).splitlines()))
