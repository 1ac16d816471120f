"""Small runs of the engine's features, alone and together, as recorded: fleets, hand-over, tiers, adapters, front ends,
dependent calls, ranks that step together, speculation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from combinations.checks import check_run
from gnomon.serving.autoscaling import capacity
from gnomon.serving.engine.state import FINISHED, LIMITS
from gnomon.serving.run.simulate import Run
from gnomon.workload import Requests
from recorded_kit import check_recorded
from serving_kit import requests_of, run, scenario

GB = 4 * 2 * 32 * 32 * 128 * 2 / 1e9
"""Of a block of four tokens of Llama-2-7B."""
SLOW = {"source": "table", "table": {"per_iteration": 0.02, "per_token": 3e-4, "per_decode_kv_token": 3e-6}}
COLD = {"weights_s": 0.05, "compile_s": 0.02, "warmup_s": 0.01}


def load(number: int, count: int = 16, span_s: float = 0.8, *, adapters: int = 0, shared: int = 5) -> Requests:
    """Prompts of blocks of four tokens, the first ones of which many share; some arrive together."""
    random = np.random.default_rng(700 + number)
    prompts, outputs = random.integers(3, 60, count), random.integers(1, 12, count)
    arrival_s = np.sort(np.round(random.random(count) * span_s, 2))
    family = random.integers(0, 3, count)
    rows = [
        [1000 * (1 + family[i]) + j if j < shared else 100_000 * (i + 1) + j for j in range(tokens // 4)]
        for i, tokens in enumerate(prompts)
    ]
    return replace(
        requests_of(arrival_s, prompts, outputs),
        prefix_hashes=np.array([key for row in rows for key in row], np.int64),
        prefix_offsets=np.cumsum([0, *map(len, rows)]).astype(np.int64),
        prefix_block_tokens=4,
        session=family.astype(np.int32),
        adapter=random.integers(-1, adapters, count).astype(np.int32) if adapters else np.empty(0, np.int32),
    )


def small(**changes: Any) -> dict[str, Any]:
    """Little memory, few places."""
    base = {"batching": {"block_size": 4, "max_sequences": 5, "max_batch_tokens": 48}, "replica": {"num_kv_blocks": 60}}
    for name, value in changes.items():
        base[name] = {**base[name], **value} if name in base else value
    return base


def changing(controller: Any = "fixed", interval_s: float = 0.1, **fleet: Any) -> dict[str, Any]:
    """A fleet whose replicas start within a moment."""
    named = controller if isinstance(controller, dict) else {"name": controller}
    return {"controller": {**named, "interval_s": interval_s}, "cold_start": COLD, **fleet}


def at(at_s: float, what: str, replica: int, **more: float) -> dict[str, Any]:
    return {"at_s": at_s, "what": what, "replica": replica, **more}


def apart(prefill: int = 1, decode: int = 1, both: int = 0, **changes: Any) -> dict[str, Any]:
    """Pools with roles; a block of KV takes a few milliseconds to move."""
    counts = {"prefill": prefill, "decode": decode, "both": both}
    pools: list[Any] = [{"num_replicas": n, "role": role} for role, n in counts.items() if n]
    moved = {"bandwidth_gb_s": 300 * GB, "latency_s": 0.002, "hop_s": 0.003, **changes.pop("disaggregation", {})}
    return small(pools=pools, disaggregation=moved, **changes)


def tier(blocks: float, **more: Any) -> dict[str, Any]:
    return {"size_gb": blocks * GB, "bandwidth_gb_s": 2000 * GB, "latency_s": 0.001, **more}


STRICT = {"ttft_s": 0.08, "tpot_s": 0.05, "e2e_s": 0.5}
SHORT = {"lengths": {"distribution": "uniform", "prompt": [5, 20], "output": [1, 4]}}
FAILS = [at(0.15, "fail", 0), at(0.4, "repair", 0), at(0.5, "fail", 1), at(0.7, "repair", 1)]
CALLS = {"lengths": {"distribution": "uniform", "prompt": [5, 60], "output": [1, 12]}, "num_requests": 18}
AGENTS = {"agents": {"calls": 3, "tool_s": 0.05, "sub_agents": 1, "sub_calls": 2, "shared_prefix_tokens": 16,
                     "block_tokens": 4}, **CALLS}  # fmt: skip
FRONT = {"per_request_s": 0.004, "per_prompt_token_s": 1e-4, "reply_s": 0.001, "per_message_s": 0.0005}

CASES: dict[str, tuple[dict[str, Any], Requests | None]] = {
    # Fleets.
    "fails, tokens kept": (small(num_replicas=2, fleet=changing(events=FAILS, failures={"detect_s": 0.03})), load(1)),
    "fails, starts over": (
        small(num_replicas=2, router="least_outstanding",
              fleet=changing(events=FAILS, failures={"detect_s": 0.03, "keeps_tokens": False})),
        load(2),
    ),
    "all fail": (
        small(num_replicas=2, fleet=changing(events=[at(0.1, "fail", 0), at(0.12, "fail", 1), at(0.5, "repair", 1)],
                                             failures={"detect_s": 0.01})),
        load(3),
    ),
    "fails at random": (
        small(num_replicas=3, replica={"num_kv_blocks": 40, "pipeline_parallel": 2},
              fleet=changing(failures={"mtbf_s": 1.0, "mttr_s": 0.1, "detect_s": 0.02},
                             stragglers={"mean_s": 1.0, "duration_s": 1.0, "factor": 2.0})),
        load(4, 20),
    ),
    "drains and starts": (
        small(num_replicas=2, fleet=changing(max_replicas=3, events=[
            at(0.1, "drain", 0), at(0.3, "start", 2), at(0.31, "drain", 2), at(0.5, "start", 0),
            at(0.2, "slow", 1, factor=3.0), at(0.6, "slow", 1)])),
        load(5),
    ),
    "queue driven": (
        small(fleet=changing({"name": "queue_driven", "options": {"waiting": 2, "running": 3, "stabilization_s": 0.3}},
                             0.05, max_replicas=4)),
        load(6, 24),
    ),
    "target utilization": (
        small(fleet=changing({"name": "target_utilization", "options": {"target": 0.6, "stabilization_s": 0.2}},
                             0.05, max_replicas=4)),
        load(7, 24),
    ),
    "schedule": (
        small(fleet=changing({"name": "schedule", "steps": [[0.1, 3], [0.4, 1]]}, 0.05, max_replicas=3,
                             min_replicas=0)),
        load(8, 20),
    ),
    "slo planner": (
        small(slo=STRICT, workload=SHORT, batching={"max_sequences": 1},
              fleet=changing("slo_planner", 0.1, max_replicas=4)),
        load(9, 24),
    ),
    "ranks fail": (
        small(model="mixtral-8x7b", num_replicas=2, replica={"num_kv_blocks": 40, "data_parallel": 2},
              fleet=changing(events=FAILS, failures={"detect_s": 0.02})),
        load(11),
    ),
    # Prefill and decode apart.
    **{
        f"apart, {policy}, first token by {first}": (
            apart(1, 2, batching={"policy": policy}, disaggregation={"first_token": first}), load(20 + number)
        )
        for number, (policy, first) in enumerate(
            [("vllm_v1", "prefill"), ("sarathi", "transfer"), ("vllm_v1", "decode"), ("sglang", "auto"),
             ("trtllm", "transfer")]
        )
    },
    "apart, layer by layer": (apart(2, 1, disaggregation={"moves": "by_layer"}), load(31)),
    "apart, little memory to decode": (
        apart(1, 1, replica={"num_kv_blocks": 22}, batching={"max_sequences": 3}, disaggregation={"timeout_s": 0.05}),
        load(25),
    ),
    "apart, links down": (apart(1, 1, disaggregation={"down_s": [0.2, 0.5], "decider": "long_prompts"}), load(26)),
    "apart, pipeline stages and an idle prefill": (
        apart(1, 1, 1, replica={"pipeline_parallel": 2}, disaggregation={"decider": "idle_prefill"}), load(27)
    ),
    "apart, fails": (
        apart(2, 2, fleet=changing(events=[at(0.1, "fail", 1), at(0.2, "fail", 2), at(0.4, "repair", 1),
                                           at(0.5, "repair", 2), at(0.6, "fail", 3)],
                                   failures={"detect_s": 0.02})),
        load(28, 20),
    ),
    "apart, fails and starts over": (
        apart(2, 1, 1, disaggregation={"first_token": "prefill", "bandwidth_gb_s": 60 * GB},
              fleet=changing(events=[at(0.12, "fail", 2), at(0.3, "repair", 2), at(0.35, "fail", 0),
                                     at(0.5, "repair", 0)], failures={"detect_s": 0.05, "keeps_tokens": False})),
        load(29, 20),
    ),
    "apart, drains": (
        apart(2, 2, fleet=changing(events=[at(0.1, "drain", 0), at(0.15, "drain", 3), at(0.5, "start", 3)])), load(30)
    ),
    # KV beyond the GPU.
    "host and disk": (
        small(replica={"num_kv_blocks": 24}, kv_tiers={"host": tier(12), "ssd": tier(30, write="back")}), load(40, 20)
    ),
    "disk first in first out": (
        small(replica={"num_kv_blocks": 24}, kv_tiers={
            "host": tier(6, eviction="fifo"), "ssd": tier(14, eviction="fifo", bandwidth_gb_s=200 * GB),
            "remote": tier(40, write="back")}),
        load(41, 20),
    ),
    "a store that all share": (
        small(num_replicas=3, replica={"num_kv_blocks": 24},
              kv_tiers={"host": tier(5), "remote": tier(40, down_s=[0.3, 0.5]), "load": "always"}),
        load(42, 20),
    ),
    "from each other": (
        small(num_replicas=3, replica={"num_kv_blocks": 40},
              kv_tiers={"peers": {"bandwidth_gb_s": 500 * GB, "latency_s": 0.001}}),
        load(43, 20),
    ),
    "a store, and replicas that fail": (
        small(num_replicas=2, kv_tiers={"host": tier(10), "remote": tier(60)},
              fleet=changing(events=[at(0.1, "fail", 0), at(0.3, "repair", 0), at(0.42, "fail", 1)],
                             failures={"detect_s": 0.03, "stores_kv": True})),
        load(44, 20, 0.5),
    ),
    "apart, with tiers": (
        apart(1, 2, replica={"num_kv_blocks": 30}, kv_tiers={"host": tier(20), "remote": tier(40)}), load(45, 20)
    ),
    # Adapters.
    "adapters": (small(lora={"max_loaded": 2, "ranks": [8, 64], "bandwidth_gb_s": 2.0, "latency_s": 0.004,
                             "slowdown": [[1, 0.1], [2, 0.3]]}), load(50, adapters=4)),
    "adapters of two replicas": (
        small(num_replicas=2, router="adapter_aware", lora={"max_loaded": 1, "bandwidth_gb_s": 1.0}),
        load(51, 20, adapters=5),
    ),
    "adapters that are lost": (
        small(num_replicas=2, lora={"max_loaded": 2, "bandwidth_gb_s": 1.0, "slowdown": [[1, 0.2], [2, 0.5]]},
              fleet=changing(events=FAILS, failures={"detect_s": 0.03})),
        load(52, 20, adapters=5),
    ),
    # Front ends and those who wait for answers.
    "front end": (small(num_replicas=2, front_end={**FRONT, "workers": 2}), load(60)),
    "front ends of replicas": (
        small(num_replicas=2, router="least_outstanding",
              front_end={**FRONT, "per_replica": True, "stream_interval": 3}),
        load(61),
    ),
    "agents": (small(num_replicas=2, front_end=FRONT, workload=AGENTS), None),
    "agents in a fleet that fails": (
        small(num_replicas=2, workload=AGENTS, fleet=changing(events=FAILS, failures={"detect_s": 0.03})), None
    ),
    "agents whose tools hold KV": (
        small(num_replicas=2, workload=AGENTS, tool_cache={"keep_s": 0.2}, front_end={**FRONT, "per_replica": True}),
        None,
    ),
    "agents who are turned away": (
        small(workload={**AGENTS, "rate": 300.0}, batching={"max_sequences": 1},
              admission={"name": "queue_limit", "options": {"max_waiting": 1}}), None
    ),
    "closed loop": (
        small(num_replicas=2, front_end=FRONT, workload={
            **CALLS, "rate": None, "warmup_requests": 3,
            "arrivals": {"process": "closed_loop", "concurrency": 5, "think_s": 0.02, "think": "exponential"}}),
        None,
    ),
    "closed loop, apart": (
        apart(1, 1, workload={**CALLS, "rate": None, "arrivals": {"process": "closed_loop", "concurrency": 4}}), None
    ),
    # Batches.
    "speculation": (
        small(replica={"num_kv_blocks": 60, "speculative": {"num_tokens": 3, "acceptance": 0.7}}), load(70)
    ),
    "ranks in step": (small(model="mixtral-8x7b", replica={"num_kv_blocks": 40, "data_parallel": 2}), load(71, 20)),
    "a batch ahead": (
        small(batching={"overlap": True, "surplus_token": True}, replica={"num_kv_blocks": 30}), load(72)
    ),
    "a batch ahead, stages": (
        small(batching={"overlap": True}, replica={"num_kv_blocks": 30, "pipeline_parallel": 2}), load(73)
    ),
    "a batch ahead, apart": (apart(1, 1, batching={"overlap": True}), load(74)),
    "some are too long": (small(replica={"num_kv_blocks": 12}), load(75)),
    "cut short": (small(num_replicas=2, time_limit_s=0.4), load(76)),
}  # fmt: skip


def found(done: Run) -> dict[str, Any]:
    """What became of every request and replica, and of what is outside them."""
    q, replicas = done.cluster.requests, done.cluster.replicas
    said: dict[str, Any] = {
        "status": "".join(str(int(one)) for one in q.status),
        "restarts": "".join(str(min(9, int(one))) for one in q.num_restarts),
        "tries": "".join(str(min(9, int(one))) for one in q.num_tries),
        "replica": "".join("-" if one < 0 else str(int(one)) for one in q.replica),
        "cached": q.cached_tokens,
    }
    for name in ("arrival_s", "front_s", "scheduled_s", "first_token_s", "finished_s", "last_reply_s"):
        said[name] = q[name]
    for name in (
        "num_iterations",
        "num_finished",
        "num_rejected",
        "num_taken",
        "num_produced",
        "peak_blocks",
        "busy_s",
    ):
        said[name] = replicas[name]
    gaps, counts = done.log.gap_s[: done.log.used[2]], done.log.gap_count[: done.log.used[2]]
    said["gaps"] = [float((gaps * counts).sum()), int(counts.sum())]
    if done.transfers is not None:
        said |= {name: done.transfers.flows[name] for name in ("bytes", "start_s", "end_s")}
        said |= {name: q[name] for name in ("prefilled_s", "moving_s", "landed_s")}
    if done.tiers is not None:
        said |= {"loaded": done.tiers.loaded_tokens.ravel(), "loaded_s": q.loaded_s}
    if done.fleet is not None:
        said["changes"] = [x for change in done.fleet.changes for x in change]
        said["decisions"] = [x for pool in done.fleet.decisions for one in pool for x in one]
        said["lost"] = [done.fleet.failures, done.fleet.retries]
        said["rates"] = [one for rates in done.fleet.rates for one in (rates or {1: 0.0}).values()]
        said["samples"] = done.fleet.samples.sum(axis=(0, 1)) if done.fleet.samples.size else []
    return said


@pytest.mark.parametrize("name", CASES)
def test_features(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "NUM_REQUESTS", 12)
    changes, offered = CASES[name]
    done = run(scenario(**changes), requests=offered)
    check_recorded("features", name, found(done))
    check_run(done)


@pytest.mark.parametrize("name", [name for name, (changes, _) in CASES.items() if "slo" not in changes])
def test_features_midway(name: str) -> None:
    """All books of replicas at a moment, and sums over requests, the later ones counted more often; with the parts of
    latencies. What is 0 everywhere is left out."""
    changes, offered = CASES[name]
    done = run(scenario(**{**changes, "time_limit_s": 0.35}), requests=offered, explained=True)
    q, replicas = done.cluster.requests, done.cluster.replicas
    said = {column: replicas[column] for column in replicas.dtype.names or () if column not in LIMITS}
    weights = np.arange(1, len(q) + 1)
    said |= {f"requests {column}": [float((weights * q[column]).sum())] for column in q.dtype.names or ()}
    ended = q.status == FINISHED  # Of others nothing is booked, or not all.
    said["parts"] = np.tensordot(weights[ended], done.cluster.parts_ns[ended], 1).ravel() * 1e-9
    check_recorded("midway", name, {column: value for column, value in said.items() if np.any(value)})
