"""Published results of RL post-training systems, and the configurations that stand for them.

B, C and D are Qwen2.5 under GRPO on H100s, 512 prompts x 16 samples, context 28,672; A is R1-Distill-Qwen-1.5B (the
shape of Qwen2.5-1.5B) on one node. What one source publishes stands in for the others too: parallelism from D (trainer
TP 2/4/8, rollout TP 1/2/4), `max_running_requests` 128 and 4 mini-batches from E. What none publishes is the
simulator's default: gamma-distributed responses with k = 3.1, correlation 0.5 inside a group, prompts of 256 tokens on
average, 85 % of the memory for rollout.

verl and NeMo-RL have one set of constants for each framework.
"""

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon.core.config import build
from gnomon.core.errors import DataError
from gnomon.posttrain.scenario.config import Posttrain

MODELS = {"1.5B": ("qwen2.5-1.5b", 2, 1), "7B": ("qwen2.5-7b", 4, 2), "32B": ("qwen2.5-32b", 8, 4)}
"""Model, trainer's and rollout's tensor parallelism."""
MAX_RUNNING = 128
PROMPT_MEAN = 256


@dataclass(frozen=True)
class Stages:
    """Seconds of the stages of a step."""

    rollout: float
    inference: float
    actor: float


# A: one node, 512 sequences.
A_STAGES = Stages(266.08, 17.78, 61.12)
A_MEAN_RESPONSE = 13_975
A_RECOMPUTED = 20 / 28

# B: components taking turns.
B_TOKENS_S = {
    "1.5B": {64: 217_870, 128: 292_060, 256: 399_460},
    "7B": {64: 118_170, 128: 196_159, 256: 303_929},
    "32B": {64: 23_040, 128: 41_780, 256: 66_060},
}
B_STAGES = {64: Stages(591.3, 102.3, 367.7), 128: Stages(367.5, 55.4, 200.3), 256: Stages(236.3, 30.3, 111.5)}

# C: taking turns against side by side, tokens/s.
C_TOKENS_S = {("7B", 64): (49_040, 59_140), ("32B", 128): (14_650, 17_100)}

# D: side by side without and with moving GPUs, tokens/s.
D_TOKENS_S = {
    ("1.5B", 64): (154_000, 238_000),
    ("1.5B", 128): (221_000, 311_000),
    ("7B", 64): (73_000, 105_000),
    ("7B", 128): (127_000, 192_000),
    ("32B", 64): (16_600, 21_200),
    ("32B", 128): (29_700, 41_600),
}
D_MEAN = 9_100
"""Tokens per sequence: tokens/s x seconds of the 7B time line, 8.8k static and 9.4k dynamic."""
D_OTHERWISE = (("32B", 64),)
"""Of these the system's own example files (RLinf, examples/reasoning/config/math) have another set-up than the others:
actor 32, rollout 24, inference 8 GPUs, and 0.40 of the memory for rollout. Which one was measured is not published."""
D_DECODE_MEDIAN_S = 59.8
"""Median time to the end of a response, 1.5B."""

# E: the placement rule.
E_PLACEMENT = {"actor": 32, "rollout": 80, "inference": 16}


def b_mean_tokens(num_gpus: int) -> float:
    """Tokens per sequence that B's throughput and stage seconds imply; they drift by 8 % between scales."""
    stages = B_STAGES[num_gpus]
    return B_TOKENS_S["7B"][num_gpus] * (stages.rollout + stages.inference + stages.actor) / (512 * 16)


def taking_turns(size: str, num_gpus: int, mean_tokens: float, **more: Any) -> Posttrain:
    """512 x 16 on `num_gpus` H100s that all components share."""
    placement = dict.fromkeys(("actor", "rollout", "inference"), "all")
    return _configuration(size, num_gpus, mean_tokens, {"component_placement": placement}, more)


def side_by_side(size: str, num_gpus: int, mean_tokens: float) -> Posttrain:
    """512 x 16 on `num_gpus` H100s, a quarter of them actor and an eighth inference, as in D's time line and E."""
    ends = (num_gpus // 4, num_gpus - num_gpus // 8)
    placement = {
        "actor": f"0-{ends[0] - 1}",
        "rollout": f"{ends[0]}-{ends[1] - 1}",
        "inference": f"{ends[1]}-{num_gpus - 1}",
    }
    cluster = {"auto_scheduler": True, "component_placement": placement}
    return _configuration(size, num_gpus, mean_tokens, cluster, {})


def _configuration(
    size: str, num_gpus: int, mean_tokens: float, cluster: dict[str, Any], more: dict[str, dict[str, Any]]
) -> Posttrain:
    model, trainer, rollout = MODELS[size]
    data: dict[str, Any] = {
        "cluster": {"num_nodes": num_gpus // 8, **cluster},
        "model": model,
        "algorithm": {"rollout_batch_size": 512, "group_size": 16, "n_minibatches": 4},
        "rollout": {"tensor_parallel": rollout, "max_running_requests": MAX_RUNNING},
        "actor": {"tensor_parallel": trainer},
        "inference": {"tensor_parallel": trainer},
        "lengths": {"mean": mean_tokens - PROMPT_MEAN, "prompt_mean": PROMPT_MEAN},
    }
    for key, value in more.items():
        data[key] = {**data[key], **value}
    return build(Posttrain, data)


VERL = {"dispatch_s": 20.0, "launch_per_layer_s": 3.4e-4, "shape": 0.7}
"""dispatch_s: a padded batch of 8,192 x 30,720 through the single controller, fitted to the log-probabilities' seconds
of the colocated runs and to what the asynchronous trainers wait. launch_per_layer_s: eager decoding (verl's default),
11 ms for 32 layers on an H100 host. shape (log-normal) and efficiency (H20, whose training was not measured): fitted to
the generation of the colocated runs."""
NEMO: dict[str, Any] = {"shape": 3.1, "prompt": 150, "release": "25.09", "efficiency": 0.75}
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
                "recompute": 1.0 if is_large else None, "offload": not off, "release": NEMO["release"], "efficiency": NEMO["efficiency"],
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
