"""Routers on fleets that nothing was chosen on: 24 drawn at random, from other ranges than the training domain's.

`python -m benchmarks.routing_fleets`, a few minutes. Mean E2E and P99 TTFT against least outstanding requests, five
traces each, differences with half of their 95 % intervals. Not part of `python -m benchmarks`: it measures routing.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gnomon.core.config import build
from gnomon.core.parallel import map_ordered
from gnomon.routing.compare import one_row, paired
from gnomon.routing.traffic import ScenarioTraffic, total_capacity_per_s
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import RouterConfig
from gnomon.workload import generate

FLEETS, TRACES, REQUESTS, SEED = 24, 5, 6000, 77
BASELINE, ROUTERS = "least_outstanding", ("gateway", "unselfish", "predicted_latency")
SERVED = (
    ("mistral-7b", "a100-80gb", 1),
    ("qwen3-14b", "h100", 1),
    ("qwen3-32b", "h200", 2),
    ("llama-3-70b", "h100", 4),
)


def fleet(number: int) -> Scenario:
    """Model, GPU, size, speeds, batching, lengths, bursts and load, all drawn from the number."""
    random = np.random.default_rng([SEED, number])
    model, device, degree = SERVED[number % len(SERVED)]
    count = int(random.integers(2, 13))
    slow = int(random.integers(1, count)) if random.random() < 0.4 else 0
    pools = [{"num_replicas": count - slow, "timing": {"source": "roofline"}}]
    if slow:
        scale = float(random.uniform(1.3, 2.5))
        pools.append({"num_replicas": slow, "timing": {"source": "roofline", "scale": scale}})
    prompt, output = float(random.uniform(150, 1500)), float(random.uniform(60, 300))
    arrivals: dict[str, Any] = {"process": "gamma", "cv": float(random.uniform(1, 3))}
    if random.random() < 0.4:
        arrivals = {"process": "piecewise", "pieces": [[40, 1.0], [8, float(random.uniform(1.8, 3))]]}
    lengths = {"distribution": "lognormal", "prompt_median": prompt, "prompt_p90": prompt * random.uniform(2, 4),
               "output_median": output, "output_p90": output * random.uniform(1.5, 3.5)}  # fmt: skip
    given = {
        "model": model, "device": device, "pools": pools, "replica": {"tensor_parallel": degree},
        "timing": {"source": "roofline"},
        "batching": {"policy": str(random.choice(["vllm_v1", "sarathi"])), "max_batch_tokens": 2048},
        "workload": {"rate": 1.0, "num_requests": REQUESTS, "arrivals": arrivals, "lengths": lengths},
    }  # fmt: skip
    given["workload"]["rate"] = round(float(random.uniform(0.6, 0.95)) * _capacity(build(Scenario, given)), 2)
    return build(Scenario, given)


def _capacity(scenario: Scenario) -> float:
    traffic, sample = ScenarioTraffic(scenario, 500), generate(scenario.workload, 0)
    prompt, output = float(sample.prompt_tokens.mean()), float(sample.output_tokens.mean())
    return total_capacity_per_s(traffic.tables, traffic._pools, prompt, output)


def measured(item: tuple[int, int]) -> list[tuple[float, float]]:
    """Mean E2E and P99 TTFT of the baseline and of every router, on one trace of one fleet."""
    number, seed = item
    scenario = fleet(number)
    requests = generate(scenario.workload, seed)
    rows = [
        one_row(
            str(number), scenario.model_copy(update={"seed": seed, "router": RouterConfig(name=name)}), name, requests
        )
        for name in (BASELINE, *ROUTERS)
    ]
    return [(row.e2e_mean_s, row.ttft_p99_s) for row in rows]


def main(jobs: int | None = None) -> None:
    """Print one line per fleet."""
    items = [(number, 3000 + trace) for number in range(FLEETS) for trace in range(TRACES)]
    found = np.array([outcome.unwrap() for outcome in map_ordered(measured, items, jobs=jobs)])
    found = found.reshape(FLEETS, TRACES, 1 + len(ROUTERS), 2)
    more = found[:, :, 1:] / found[:, :, :1] - 1
    print("mean E2E and P99 TTFT against least outstanding: " + ", ".join(ROUTERS))
    for number in range(FLEETS):
        one = fleet(number)
        pools = one.all_pools()
        size = " + ".join(
            f"{pool.num_replicas}" + (f" at 1/{s:.1f}" if (s := pool.timing.scale) > 1 else "") for pool in pools
        )
        cells = []
        for router in range(len(ROUTERS)):
            mean, tail = (paired(more[number, :, router, figure]) for figure in (0, 1))
            cells.append(
                f"{mean.mean:+6.1%} ± {mean.high - mean.mean:.1%}  {tail.mean:+6.1%} ± {tail.high - tail.mean:.1%}"
            )
        load = f"{one.workload.arrivals.process}, {one.workload.rate:g}/s"
        title = f"{one.model} {one.device} {size}, {one.batching.policy}, {load}"
        print(f"  {title:72s} {'   '.join(cells)}", flush=True)
    worst = more.mean(1)[:, :, 1].max(0)
    print("  worst P99 TTFT: " + ", ".join(f"{name} {value:+.1%}" for name, value in zip(ROUTERS, worst, strict=True)))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
