"""Published results of RL post-training systems (data/posttrain.yaml, and the reference data), and the configurations
that stand for them."""

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon.convert.rl_commands import PROMPTS_PER_SERVER
from gnomon.core.config import build
from gnomon.core.text import own_yaml, read_text
from gnomon.posttrain.scenario.config import Posttrain

DATA: dict[str, Any] = own_yaml(Path(__file__).parent / "data" / "posttrain.yaml")
MAX_RUNNING, PROMPT_MEAN = 128, 256


def b_mean_tokens(num_gpus: int) -> float:
    """Tokens per sequence that B's throughput and stage seconds imply; they drift by 8 % between scales."""
    given = DATA["B"]
    return float(given["tokens_s"]["7B"][num_gpus] * sum(given["stages"][num_gpus].values()) / (512 * 16))


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
    size: str, num_gpus: int, mean_tokens: float, cluster: dict[str, Any], more: dict[str, Any]
) -> Posttrain:
    chosen = DATA["models"][size]
    data: dict[str, Any] = {
        "cluster": {"num_nodes": num_gpus // 8, **cluster}, "model": chosen["model"],
        "algorithm": {"rollout_batch_size": 512, "group_size": 16, "n_minibatches": 4},
        "rollout": {"tensor_parallel": chosen["rollout"], "max_running_requests": MAX_RUNNING},
        "actor": {"tensor_parallel": chosen["trainer"]}, "inference": {"tensor_parallel": chosen["trainer"]},
        "lengths": {"mean": mean_tokens - PROMPT_MEAN, "prompt_mean": PROMPT_MEAN},
    }  # fmt: skip
    return build(Posttrain, _merged(data, more))


def _merged(data: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    """With the sections of others over its own."""
    for other in others:
        for key, value in other.items():
            data = data | {key: data.get(key, {}) | value if isinstance(value, dict) else value}
    return data


@dataclass(frozen=True)
class VerlRun:
    """One row of verl's fully asynchronous tables, on H20."""

    name: str
    trainer: int
    rollout: int
    """0: colocated."""
    step_s: float
    training_s: float = 0.0
    staleness: float = 0.5
    fetch: int = 4
    role: str = "reported"
    same_lengths_as: str = ""
    """A run whose mean length it has; inferred from its own training time unless given."""
    of: str = "math"
    """Its set-up."""


VERL_RUNS = tuple(VerlRun(**one) for one in DATA["verl"]["runs"])


def verl_configuration(run: VerlRun, mean: float, seed: int, steps: int) -> Posttrain:
    """The run with responses of so many tokens."""
    given, constants = DATA["verl"], DATA["verl"]["constants"]
    total, setup = run.trainer + run.rollout, given["setups"][run.of]
    placement = dict.fromkeys(("actor", "rollout", "inference"), "all")
    algorithm: dict[str, Any] = {}
    if run.rollout:
        placement = {"actor": f"0-{run.trainer - 1}", "rollout": f"{run.trainer}-{total - 1}"}
        algorithm = {"fetch_minibatches": run.fetch, "recompute_logprobs": False}
        algorithm |= {"mode": "async" if run.staleness else "sync", "staleness": run.staleness}
        algorithm["in_flight"] = PROMPTS_PER_SERVER * run.rollout // given["base"]["rollout"]["tensor_parallel"]
    sharded = {"shard_gpus": 8 if run.rollout else 2} if "framework" in setup["actor"] else {}
    own = {
        "cluster": {"num_nodes": total // 8, "component_placement": placement}, "algorithm": algorithm,
        "actor": sharded | {"offload": not run.rollout}, "inference": sharded,
        "lengths": {"mean": mean, "shape": constants["shape"]},
        "transitions": {"dispatch_s": constants["dispatch_s"]}, "seed": seed, "num_steps": steps,
    }  # fmt: skip
    return build(Posttrain, _merged(given["base"], own, setup))


def verl_v1_rows(folder: Path) -> list[tuple[str, float, Posttrain]]:
    """verl's v1 trainer: mode, seconds of a step, configuration."""
    found = []
    for row in _csv(folder / "rl" / "verl_v1_async.csv"):
        batch, mode = int(row["train_batch"]), row["mode"]
        total = int(row["nodes"]) * int(row["gpus_per_node"])
        placement = {"actor": "all", "rollout": "all"}
        if mode == "separate_async":
            placement = {"actor": f"0-{total // 2 - 1}", "rollout": f"{total // 2}-{total - 1}"}
        algorithm: dict[str, Any] = {"rollout_batch_size": batch, "n_minibatches": batch // int(row["mini_batch"])}
        algorithm |= {"group_size": int(row["samples_per_prompt_implied"])}
        algorithm |= {"mode": "async", "staleness": 1.0} if mode != "sync" else {}
        own = {
            "cluster": {"num_nodes": int(row["nodes"]), "component_placement": placement},
            "algorithm": algorithm,
            "lengths": {"mean": int(row["mean_response"])},
            "policy": {"name": "switching" if mode == "separate_async" else None},
        }
        config = build(Posttrain, _merged(DATA["verl_v1"], own))
        found.append((mode, 3600 * float(row["hours"]) / int(row["steps"]), config))
    return found


@dataclass(frozen=True)
class NemoRow:
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
    text = read_text(folder / "rl" / "nemo_rl_perf.md")
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
    constants, chosen = DATA["nemo"]["constants"], DATA["nemo"]["models"][model]
    longest, mean, gpus, batch, update = (int(cell.replace(",", "")) for cell in cells[3:8])
    batch = 64 if kind == "SWE" else batch
    updates = batch // min(update, batch)
    rollout = int(re.findall(r"\d+", cells[8])[0])
    tensor, context, experts, stages = (int(cell) for cell in re.findall(r"\d+", cells[9])[:4])
    off = 0 if policy == "On policy" else int(policy.split("-")[0])
    per_node = 4 if gpu.startswith("GB") else 8
    size = chosen["samples"]
    algorithm: dict[str, Any] = {"rollout_batch_size": batch // size, "group_size": size, "recompute_logprobs": False}
    algorithm |= {"n_minibatches": updates, "fetch_minibatches": updates, "actor_passes": 2}
    placement = {"actor": "all", "rollout": "all"}
    if off:
        steps = f"{off} step{'s' if off > 1 else ''}"
        trainer = gpus - round(split.get((model, gpu, steps), 0.5) * gpus)
        placement = {"actor": f"0-{trainer - 1}", "rollout": f"{trainer}-{gpus - 1}"}
        algorithm |= {"keep_kv": True, "in_flight": off * batch // size}
        is_next = off == 1  # A batch is generated for one step, and trained there.
        algorithm |= {"mode": "one_step_off"} if is_next else {"mode": "async", "staleness": float(off), "max_lag": off}
    is_async = off > 0 or chosen["async_engine"]
    engine = {"max_running_requests": 128, "deal": "sequences"} if is_async else {"max_running_requests": 1024}
    prompt = int(constants["prompt"]) if kind == "GRPO" else 2000
    dtype = "fp8" if precision == "FP8" else "bf16"
    data = {
        "model": chosen["name"],
        "device": gpu.lower(),
        "cluster": {"num_nodes": gpus // per_node, "gpus_per_node": per_node, "component_placement": placement},
        "algorithm": algorithm,
        "rollout": engine | {
            "tensor_parallel": rollout, "preset": "vllm", "dtype": dtype, "memory_utilization": 0.8 if off else 0.6,
        },
        "actor": {
            "tensor_parallel": tensor, "context_parallel": context, "expert_parallel": experts,
            "pipeline_parallel": stages, "max_tokens": longest, "deal": "sequences", "precision": dtype,
            "recompute": chosen["recompute"], "offload": not off, "release": chosen["release"],
            "pass_tokens": longest * chosen["logprobs"], "efficiency": constants["efficiency"],
        },
        "lengths": {
            "mean": mean - prompt, "shape": constants["shape"], "prompt_mean": prompt, "max_prompt": 4 * prompt,
            "max_response": longest - prompt,
        },
        "environment": {"turns": 50, "tool_s": 2.0} if kind == "SWE" else {},
        "transitions": {"sync": "broadcast" if off else "shared_memory", "dispatch_s": constants["dispatch_s"]},
        "num_steps": 8,
    }  # fmt: skip
    name = f"{kind} {model} {gpu} {precision} {gpus} {policy}"
    return NemoRow(name, model, gpu, off, gpus, float(cells[11]), build(Posttrain, data))


def _csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(read_text(path).splitlines()))
