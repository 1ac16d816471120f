"""The routing environment: decisions per second of one core, observation included, and what the parts cost.

CPU seconds of this process, compilation left out; the best of some rounds, because others use the machine too.
"""

from __future__ import annotations

import time

import numpy as np

from gnomon.core.config import build
from gnomon.routing.demos import HeuristicTeacher, RolloutTeacher
from gnomon.routing.environment import VectorClusters
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.workload import generate

AIM = 50_000


def environment(num_envs: int, rounds: int = 5, steps: int = 100) -> None:
    """Random clusters of the training domain, each decision by power of two choices (so that none fills up)."""
    envs = VectorClusters(num_envs=num_envs, horizon=rounds * steps + 1)
    envs.reset(0)
    random, best, alone = np.random.default_rng(0), float("inf"), float("inf")
    iterations = envs.many.fleets.cluster.replicas["num_iterations"].sum()
    for _ in range(rounds):
        start, routing = time.process_time(), 0.0
        for _ in range(steps):
            before = time.process_time()
            chosen = shorter_of_two(envs, random)
            routing += time.process_time() - before
            envs.step(chosen)
        best = min(best, time.process_time() - start - routing)
        alone = min(alone, time.process_time() - start)
    iterations = envs.many.fleets.cluster.replicas["num_iterations"].sum() - iterations
    each = best / steps / num_envs
    print(
        f"  {num_envs:4d} clusters of {envs.mask.sum(axis=1).mean():.1f} replicas: {1 / each:9,.0f} decisions/s"
        f" (aim: {AIM:,}), {each * 1e6:5.1f} µs each, {iterations / rounds / steps / num_envs:.1f} iterations each"
    )


def shorter_of_two(envs: VectorClusters, random: np.random.Generator) -> np.ndarray:
    queues = envs.many.fleets.cluster.replicas["num_outstanding"]
    a, b = (random.random((2, envs.num_envs)) * envs.many.num_replicas).astype(np.int64)
    rows = np.arange(envs.num_envs)
    return np.where(queues[rows, a] <= queues[rows, b], a, b)


def episodes(num_envs: int = 16) -> None:
    envs = VectorClusters(num_envs=num_envs)
    envs.reset(0)
    start = time.process_time()
    envs.reset(1)
    print(f"  a new episode: {(time.process_time() - start) / num_envs * 1e3:.1f} ms, its warm-up included")


def teachers(num_envs: int = 8) -> None:
    envs = VectorClusters(num_envs=num_envs)
    for name, teacher in (("unselfish", HeuristicTeacher("unselfish")), ("rollouts of 48", RolloutTeacher(horizon=48))):
        envs.reset(0)
        teacher.actions(envs)
        start = time.process_time()
        for _ in range(10):
            envs.step(teacher.actions(envs))
        print(f"  taught by {name}: {(time.process_time() - start) / 10 / num_envs * 1e6:,.0f} µs per decision")


def routers() -> None:
    """What a router costs in a simulation, against round robin in the same run."""
    spent = {}
    for name in ("round_robin", "least_outstanding", "predicted_latency", "lookahead", "learned"):
        fleet = {"device": "h100", "num_replicas": 4, "router": name}
        scenario = build(Scenario, {**fleet, "workload": {"rate": 60.0, "num_requests": 20_000}})
        requests = generate(scenario.workload, 0)
        run(scenario, requests=requests)
        start = time.process_time()
        run(scenario, requests=requests)
        spent[name] = (time.process_time() - start) / len(requests)
        more = (spent[name] - spent["round_robin"]) * 1e6
        print(f"  {name:18s} {spent[name] * 1e6:6.1f} µs per request, {more:+6.1f} against round robin")


def main() -> None:
    print("environment, one core:")
    for num_envs in (1, 16, 64):
        environment(num_envs)
    episodes()
    teachers()
    print("routers in a simulation of 4 replicas:")
    routers()


if __name__ == "__main__":
    main()
