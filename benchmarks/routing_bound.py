"""How much there is to win by routing: teachers on two of the scenarios, against least outstanding requests.

`python -m benchmarks.routing_bound`, some minutes. Not part of `python -m benchmarks`: it measures routing, not Gnomon.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from gnomon.core.config import load
from gnomon.routing.domain import RewardConfig
from gnomon.routing.ensemble import IN_SYSTEM_S
from gnomon.routing.environment import VectorClusters
from gnomon.routing.teachers import HeuristicTeacher, RolloutTeacher
from gnomon.routing.traffic import ScenarioTraffic
from gnomon.serving.scenario import Scenario

TRACES, ARRIVALS, SEED = 4, 400, 11


def mean_latency_s(name: str, teacher: HeuristicTeacher | RolloutTeacher) -> np.ndarray:
    """[trace]: by Little's law, from the time-integral of requests in the system."""
    path = str(files("gnomon.routing") / "scenarios" / f"{name}.yaml")
    # Without prefix caches, which nothing in these scenarios uses: copies are smaller.
    scenario = load(Scenario, path, {"batching.policy": "vllm_v1", "batching.prefix_cache": "false"})
    envs = VectorClusters(ScenarioTraffic(scenario, ARRIVALS), TRACES, horizon=ARRIVALS, reward=RewardConfig())
    envs.reset(SEED)
    total = np.zeros(TRACES)
    for _ in range(ARRIVALS - 1):
        envs.step(teacher.actions(envs))
        total += envs.many.accounts[:, IN_SYSTEM_S]
    return total / ARRIVALS


def main() -> None:
    teachers = {
        "predicted_latency": HeuristicTeacher("predicted_latency"),
        "unselfish": HeuristicTeacher("unselfish"),
        "rollouts over predicted_latency, 64": RolloutTeacher("predicted_latency", 64, ttft_weight=0.0),
        "rollouts over unselfish, 48": RolloutTeacher("unselfish", 48, ttft_weight=0.0),
    }
    for name in ("mixed_bursty", "unequal"):
        base = mean_latency_s(name, HeuristicTeacher("least_outstanding"))
        print(f"{name}: least_outstanding {base.mean():.3f} s")
        for title, teacher in teachers.items():
            ratio = mean_latency_s(name, teacher) / base
            print(f"  {title:36s} {100 * (ratio.mean() - 1):+.1f} %", flush=True)


if __name__ == "__main__":
    main()
