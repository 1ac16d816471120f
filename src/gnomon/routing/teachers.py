"""Who shows how to route: the heuristics, and a teacher that tries every replica and looks what comes of it."""

from __future__ import annotations

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.jit import bound
from gnomon.routing.ensemble import Ensemble, copy_lane, opinions, roll_out
from gnomon.routing.environment import SPARE_REQUESTS, VectorClusters
from gnomon.serving.routers import ROUTERS, RouterSpec
from gnomon.serving.routers.observation import MEMORY_PER_REPLICA
from gnomon.serving.run.compilation import engine_of
from gnomon.serving.scenario.config import RouterConfig


def _router(name_or_file: str, envs: VectorClusters) -> tuple[RouterSpec, Floats]:
    """A router by its name, or `learned` by its policy file, and its parameters."""
    lengths = envs.router_config.lengths
    if name_or_file in ROUTERS:
        spec, config = ROUTERS[name_or_file], RouterConfig(name=name_or_file, lengths=lengths)
    else:
        spec, config = ROUTERS["learned"], RouterConfig(name="learned", lengths=lengths, checkpoint=name_or_file)
    assert spec.compiled and spec.memory <= MEMORY_PER_REPLICA, "routers of one's own do not teach"
    numbers = spec.numbers(config) if spec.numbers else np.zeros(0)
    return spec, np.array([*spec.options.values(), *numbers] or [0.0])


class HeuristicTeacher:
    """A built-in router as a teacher. One that keeps memory (round robin, unselfish) must be asked at every step."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._asked: VectorClusters | None = None

    def actions(self, envs: VectorClusters) -> Ints:
        """[environment]: where the router would send the pending requests."""
        chosen = np.zeros(envs.num_envs, np.int64)
        if self._asked is not envs:
            spec, self._parameters = _router(self.name, envs)
            self._engine, self._asked = engine_of(envs.traffic.policies, spec), envs
            self._opinions = bound(opinions, envs.many, self._engine, chosen)
            self._memory, self._lives = np.zeros_like(envs.many.router_memory), envs.lives.copy()
        self._memory[self._lives != envs.lives] = 0.0
        self._lives[:] = envs.lives
        fleets = envs.many.fleets._replace(parameters=self._parameters)
        many = envs.many._replace(fleets=fleets, router_memory=self._memory)
        self._opinions(many, self._engine, chosen)
        return chosen


class RolloutTeacher:
    """Tries every replica for the pending request: copies the cluster, lets a base policy route the next arrivals, runs
    it until all is done, and adds up the latencies of everybody.

    A policy that follows the least cost is never worse in expectation than its base (policy improvement); and unlike
    any router it counts what a choice does to others, those there and those to come.
    """

    def __init__(self, base: str = "unselfish", horizon: int = 64, ttft_weight: float = 0.2) -> None:
        assert horizon <= SPARE_REQUESTS - 2, "an episode does not go on for that long"
        self.base, self.horizon, self.ttft_weight = base, horizon, ttft_weight
        self._asked: VectorClusters | None = None

    def costs(self, envs: VectorClusters) -> Floats:
        """[environment, replica]: what sending the pending request there costs in seconds; inf where there is none."""
        if self._asked is not envs:
            self._spec, self._parameters = _router(self.base, envs)
            self._copies, self._asked = envs.new_ensemble(envs.max_replicas), envs
        engine, observes = engine_of(envs.traffic.policies, self._spec), self._spec.memory == MEMORY_PER_REPLICA
        copies = self._copies_for(envs)
        found, many = np.full((envs.num_envs, envs.max_replicas), np.inf), envs.many
        rolled = bound(roll_out, copies, engine, envs.log, 0, observes, 0.0, found[0])
        for env in range(envs.num_envs):
            count, pending = int(many.num_replicas[env]), int(many.pending[env])
            first = int(many.active[env, 0]) if many.num_active[env] else pending
            last = pending + 1 + self.horizon
            copy_lane(many, env, copies, slice(0, count), first, last + 1)
            if observes:
                copies.router_memory[:count] = many.fleets.memory[env]
            rolled(copies, engine, envs.log, last, observes, self.ttft_weight, found[env, :count])
        return found

    def actions(self, envs: VectorClusters) -> Ints:
        """[environment]: the replica of least cost."""
        return self.costs(envs).argmin(axis=1)

    def _copies_for(self, envs: VectorClusters) -> Ensemble:
        """Room for one copy of a cluster per replica, and for as many prefix hashes as there may be by now."""
        fleets = self._copies.fleets
        num_hashes = envs.many.fleets.cluster.prefix_hashes.shape[1]
        if fleets.cluster.prefix_hashes.shape[1] != num_hashes:
            cluster = fleets.cluster._replace(prefix_hashes=np.zeros((envs.max_replicas, num_hashes), np.int64))
            self._copies = self._copies._replace(fleets=fleets._replace(cluster=cluster))
        return self._copies._replace(fleets=self._copies.fleets._replace(parameters=self._parameters))
