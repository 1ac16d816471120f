"""How much a better router could win: rollouts, which know the arrivals to come, against the rule that teaches.

`python -m benchmarks.routing_bound [SCENARIO...]`, about ten minutes for all. At every arrival a rollout copies the
cluster, tries every replica, lets the rule route the next arrivals as they really come, and takes the replica with the
least latency of everybody: one step of policy improvement over the rule, with knowledge of arrivals and output lengths
that no router has. A policy that starts from the rule cannot learn more than that in one such step; what several steps
or an altogether different policy would gain it does not say. Not part of `python -m benchmarks`: it measures routing.
"""

from __future__ import annotations

import sys

import numpy as np

from gnomon.routing.compare import built_in_scenarios, find_scenario, paired
from gnomon.routing.demos import HeuristicTeacher, RolloutTeacher
from gnomon.routing.domain import RewardConfig
from gnomon.routing.ensemble import IN_SYSTEM_S
from gnomon.routing.environment import VectorClusters
from gnomon.routing.traffic import ScenarioTraffic

TRACES, ARRIVALS, SEED = 6, 400, 11
LOOKAHEAD = 48


def mean_latency_s(name: str, teacher: HeuristicTeacher | RolloutTeacher) -> np.ndarray:
    """[trace]: by Little's law, from the time-integral of requests in the system."""
    scenario = find_scenario(name)
    if name != "prefix_sessions":  # Nothing in the others uses prefix caches; copies are smaller without them.
        batching = scenario.batching.model_copy(update={"policy": "vllm_v1", "prefix_cache": False})
        scenario = scenario.model_copy(update={"batching": batching})
    envs = VectorClusters(ScenarioTraffic(scenario, ARRIVALS), TRACES, horizon=ARRIVALS, reward=RewardConfig())
    envs.reset(SEED)
    total = np.zeros(TRACES)
    for _ in range(ARRIVALS - 1):
        envs.step(teacher.actions(envs))
        total += envs.many.accounts[:, IN_SYSTEM_S]
    return total / ARRIVALS


def main(names: list[str]) -> None:
    """Print, for each scenario, the rule against least outstanding requests and rollouts over the rule against it."""
    print(f"{TRACES} traces of {ARRIVALS} arrivals; mean latency, differences with half of their 95 % intervals")
    for name in names or built_in_scenarios():
        base, rule = (mean_latency_s(name, HeuristicTeacher(one)) for one in ("least_outstanding", "unselfish"))
        bound = mean_latency_s(name, RolloutTeacher("unselfish", LOOKAHEAD, ttft_weight=0.0))
        first, second = paired(rule / base - 1), paired(bound / rule - 1)
        print(
            f"  {name:20s} unselfish against least_outstanding {first.mean:+6.1%} ± {first.high - first.mean:.1%}, "
            f"rollouts against unselfish {second.mean:+6.1%} ± {second.high - second.mean:.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
