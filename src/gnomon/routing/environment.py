"""Clusters to learn routing in: many at once, one decision per arrival."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats, Ints
from gnomon.core.streams import stream
from gnomon.jit import bound
from gnomon.routing import ensemble
from gnomon.routing.compare import find_scenario
from gnomon.routing.config import RouteConfig
from gnomon.routing.domain import DomainConfig, Episode, RewardConfig, Traffic, filled_up
from gnomon.routing.traffic import NUM_TROUBLES, RandomTraffic, ScenarioTraffic
from gnomon.serving.engine.allocation import new_cluster
from gnomon.serving.engine.context import Fleet
from gnomon.serving.engine.log import new_log
from gnomon.serving.engine.state import Cluster
from gnomon.serving.routers import KNOWN, ROUTERS, RouterSpec
from gnomon.serving.routers.known import at_first
from gnomon.serving.routers.observation import MEMORY_PER_REPLICA, NUM_FEATURES
from gnomon.serving.run.build import fill_replicas, fill_requests, prefix_keys
from gnomon.serving.run.compilation import engine_of
from gnomon.serving.run.simulate import predicted_outputs
from gnomon.serving.scenario.config import QUEUE_DEPTH, LengthsKnown, RouterConfig

Bools = NDArray[np.bool_]

SPARE_REQUESTS = 256  # Requests behind the last decision of an episode, for teachers that look ahead.


def _lopsided(fleet: Fleet, request_id: int) -> int:
    """Most requests to the first replicas: leaves a cluster out of balance."""
    return int(fleet.draws[request_id, 0] ** 3 * fleet.cluster.replicas.size)


LOPSIDED = RouterSpec("lopsided", _lopsided)
WARM_UP_ROUTERS = (*(ROUTERS[name] for name in ("least_outstanding", "random", "predicted_latency")), LOPSIDED)


class VectorClusters:
    """Clusters drawn from a domain (or of other traffic), stepped together; each waits for the replica of its pending
    request.

    `reset` and `step` return observations [environment, replica, feature] and a mask [environment, replica] of the
    replicas that exist. An environment whose episode is over (`done`) has started the next one; its last observation
    is in `info`, so that its value can be bootstrapped: traffic is cut, it does not end. Everything follows from the
    seed of `reset`. `episodes` counts the clusters that each environment has had.
    """

    def __init__(
        self, domain: DomainConfig | Traffic | None = None, num_envs: int = 16, *, horizon: int = 512,
        lengths: LengthsKnown = "none", queue_depth: int = QUEUE_DEPTH, reward: RewardConfig | None = None,
        group: int = 1, lopsided: bool = True, seed: int = 0,
    ) -> None:  # fmt: skip
        assert num_envs % group == 0, "environments come in whole groups"
        self.traffic: Traffic
        if domain is None or isinstance(domain, DomainConfig):
            self.traffic = RandomTraffic(domain or DomainConfig())
        else:
            self.traffic = domain
        self.reward = reward or RewardConfig()
        self.num_envs, self.horizon, self.group = num_envs, horizon, group
        self.num_features, self.max_replicas = NUM_FEATURES, self.traffic.max_replicas
        self.router_config, self.queue_depth = RouterConfig(lengths=lengths), queue_depth
        self.num_requests = self.traffic.max_warm_up + horizon + SPARE_REQUESTS
        self.log = new_log(64, 64)
        self._starts = WARM_UP_ROUTERS if lopsided else WARM_UP_ROUTERS[:-1]
        self._engine = engine_of(self.traffic.policies, ROUTERS["round_robin"])
        self._blank = new_cluster(
            num_replicas=self.max_replicas, num_requests=self.num_requests, max_stages=self.traffic.max_stages,
            max_running=self.traffic.max_running, block_size=self.traffic.block_size,
            max_in_batch=self.traffic.max_in_batch, cached_blocks=self.traffic.cached_blocks,
            blocks_per_request=self.traffic.blocks_per_request,
        )  # fmt: skip
        self.many = self.new_ensemble(num_envs)
        self._step_all = bound(ensemble.step_all, self.many, self._engine, self.log, np.zeros(num_envs, np.int64))
        self._warm_up = bound(ensemble.warm_up, self.many, self._engine, self.log, 0, 0)
        self._done_at = np.zeros(num_envs, np.int64)
        self._unit_s = np.ones(num_envs)
        self._episodes = np.zeros(num_envs, np.int64)
        self.episodes = np.zeros(num_envs, np.int64)
        self._seed = seed

    def reset(self, seed: int | None = None) -> tuple[Floats, Bools]:
        """Start all environments anew; with the same seed, in exactly the same way."""
        self._seed = self._seed if seed is None else seed
        self._episodes[:] = 0
        for env in range(0, self.num_envs, self.group):
            self._begin(env)
            rest = slice(env + 1, env + self.group)
            ensemble.copy_lane(self.many, env, self.many, rest, 0, self.num_requests)
            self._done_at[rest], self._unit_s[rest] = self._done_at[env], self._unit_s[env]
            self.episodes[rest] += 1
        return self.observation, self.mask

    def step(self, actions: Any) -> tuple[Floats, Bools, Floats, Bools, dict[str, Any]]:
        """Send each pending request to its chosen replica and go on to the next arrivals."""
        chosen = np.ascontiguousarray(actions, np.int64)
        assert chosen.shape == (self.num_envs,)
        assert (chosen >= 0).all() and (chosen < self.many.num_replicas).all(), "no such replica"
        before = self.many.accounts[:, ensemble.BACKLOG].copy()
        self._step_all(self.many, self._engine, self.log, chosen)
        reward = self._rewards(before)
        done = self.many.pending >= self._done_at
        observation, mask = self.observation, self.mask
        backlog, imbalance = (self.many.accounts[:, i].copy() for i in (ensemble.BACKLOG, ensemble.IMBALANCE))
        info = {"backlog": backlog, "imbalance": imbalance, "final_observation": observation, "final_mask": mask}
        if done.any():
            for env in np.flatnonzero(done):
                self._episodes[env] += 1
                self._begin(int(env))
            observation, mask = self.observation, self.mask
        return observation, mask, reward, done, info

    @property
    def observation(self) -> Floats:
        """[environment, replica, feature] of the pending requests, a copy."""
        return self.many.observation.copy()

    @property
    def mask(self) -> Bools:
        """[environment, replica]: which replicas exist."""
        return np.arange(self.max_replicas) < self.many.num_replicas[:, None]

    @property
    def trace(self) -> Ints:
        """[environment]: equal for environments that share cluster and traffic."""
        return np.arange(self.num_envs) // self.group

    def _rewards(self, before: Floats) -> Floats:
        weights, accounts = self.reward, self.many.accounts
        if weights.mode == "integral":
            in_system_s, unanswered_s = accounts[:, ensemble.IN_SYSTEM_S], accounts[:, ensemble.UNANSWERED_S]
            seconds = weights.latency_weight * in_system_s + weights.ttft_weight * unanswered_s
            tail = weights.tail_weight * accounts[:, ensemble.WAITED_SQUARED] / self._unit_s**2
            return -seconds / self._unit_s - tail - weights.slo_weight * accounts[:, ensemble.MISSED]
        replicas = self.many.num_replicas
        instant = -weights.latency_weight * np.log1p(accounts[:, ensemble.BACKLOG] / replicas)
        delta = -weights.latency_weight * (accounts[:, ensemble.BACKLOG] - before) / replicas
        shaped = {"instant": instant, "delta": delta, "hybrid": (instant + delta) / 2}[weights.mode]
        spread = weights.balance_penalty * accounts[:, ensemble.IMBALANCE]
        return shaped + weights.throughput_weight * accounts[:, ensemble.ENDED] - spread

    def _begin(self, env: int) -> None:
        """Draw the environment's next episode and bring it to its first decision."""
        random = stream(self._seed, "route", env // self.group, int(self._episodes[env]))
        episode = self.traffic.draw(self.horizon + SPARE_REQUESTS, random)
        self._fill(env, episode, int(random.integers(2**31)))
        self._done_at[env] = episode.warm_up + self.horizon
        self._unit_s[env] = episode.alone_s
        rule = self._starts[int(random.integers(len(self._starts)))]
        engine = engine_of(self.traffic.policies, rule)
        self._warm_up(self.many, engine, self.log, env, episode.warm_up)

    def _fill(self, env: int, episode: Episode, seed: int) -> None:
        requests, count = episode.requests, len(episode.requests)
        self._make_room_for_hashes(len(requests.prefix_hashes))
        many = self.many
        has_cache = bool(episode.pools[0][0].batching.prefix_cache)
        for name, whole, blank in zip(Cluster._fields, many.fleets.cluster, self._blank, strict=True):
            # What was in a cache's tables does not matter to an empty cache, but for the first column (below).
            if blank.size and (has_cache or name not in ensemble.OF_CACHES) and name not in ("tables", "slot_block"):
                whole[env] = blank
        lane = Cluster(*(array[env] for array in many.fleets.cluster))
        fill_requests(lane._replace(requests=lane.requests[:count]), requests, seed)
        lane.requests.arrival_s[count:] = np.inf
        lane.tables[:, :, :1] = 0
        lane.prefix_hashes[: len(requests.prefix_hashes)] = prefix_keys(requests, self.traffic.block_size)
        first = 0
        for pool, row in episode.pools:
            fill_replicas(lane, pool, requests, first, row, self.traffic.policies.index(pool.batching.policy))
            first += pool.num_ranks
        many.fleets.draws[env] = stream(seed, "router").random(many.fleets.draws.shape[1:])
        if many.fleets.predicted_output.shape[1]:
            many.fleets.predicted_output[env, :count] = predicted_outputs(self.router_config, requests, seed)
        known = at_first(lane.replicas.num_blocks[:first], *KNOWN.values())
        many.fleets.known[env, : known.size] = known
        for array in (many.fleets.memory, many.router_memory, many.observation):
            array[env] = 0.0
        self.episodes[env] += 1
        many.num_replicas[env] = first
        many.troubles[env] = 0.0
        many.troubles[env, : len(episode.troubles)] = episode.troubles
        many.pending[env] = many.unwoken[env] = many.num_active[env] = 0

    def _make_room_for_hashes(self, count: int) -> None:
        cluster = self.many.fleets.cluster
        if count > cluster.prefix_hashes.shape[1]:
            wider = np.zeros((cluster.prefix_hashes.shape[0], 2 * count), np.int64)
            wider[:, : cluster.prefix_hashes.shape[1]] = cluster.prefix_hashes
            fleets = self.many.fleets._replace(cluster=cluster._replace(prefix_hashes=wider))
            self.many = self.many._replace(fleets=fleets)

    def new_ensemble(self, lanes: int) -> ensemble.Ensemble:
        """Arrays for some clusters of this environment's size."""
        requests = self.num_requests
        arrays = (np.repeat(array[None], lanes, axis=0) for array in self._blank)
        cluster = Cluster(*(one.view(np.recarray) if one.dtype.names else one for one in arrays))
        predicted = 0 if self.router_config.lengths == "none" else requests
        fleets = Fleet(
            cluster, self.traffic.tables, np.zeros((lanes, requests, 2)), np.zeros(1),
            np.zeros((lanes, MEMORY_PER_REPLICA * self.max_replicas + 8)), np.zeros((lanes, predicted)),
            np.tile(at_first(np.zeros(self.max_replicas), *KNOWN.values()), (lanes, 1)),
            np.tile(np.arange(self.max_replicas), (lanes, 1)), np.zeros(1), np.zeros((lanes, 1, 2)),
        )  # fmt: skip
        return ensemble.Ensemble(
            fleets, num_replicas=np.ones(lanes, np.int64), pending=np.zeros(lanes, np.int64),
            unwoken=np.zeros(lanes, np.int64), active=np.zeros((lanes, requests), np.int64),
            num_active=np.zeros(lanes, np.int64), observation=np.zeros((lanes, self.max_replicas, NUM_FEATURES)),
            accounts=np.zeros((lanes, ensemble.NUM_ACCOUNTS)), slo_ttft_s=np.array([self.reward.slo_ttft_s or np.inf]),
            queue_depth=np.array([self.queue_depth]),
            troubles=np.zeros((lanes, NUM_TROUBLES, 4)),
            router_memory=np.zeros((lanes, MEMORY_PER_REPLICA * self.max_replicas + 8)),
        )  # fmt: skip


class SeveralClusters:
    """Environments of several `VectorClusters` in one row, as one learner sees them, each as wide as the largest."""

    def __init__(self, parts: list[VectorClusters]) -> None:
        self.parts = parts
        self.num_envs = sum(part.num_envs for part in parts)
        self.max_replicas = max(part.max_replicas for part in parts)
        self._edges = np.cumsum([part.num_envs for part in parts])[:-1]

    def reset(self, seed: int) -> tuple[Floats, Bools]:
        """Start all of them anew, each from a stream of its own."""
        seeds = stream(seed, "kinds of traffic").integers(2**31, size=len(self.parts))
        found = [part.reset(int(one)) for part, one in zip(self.parts, seeds, strict=True)]
        return self._joined([rows for rows, _ in found]), self._joined([mask for _, mask in found])

    def step(self, actions: Any) -> tuple[Floats, Bools, Floats, Bools, dict[str, Any]]:
        """`VectorClusters.step`, each part with its share of the actions."""
        each = np.split(np.asarray(actions), self._edges)
        found = [part.step(own) for part, own in zip(self.parts, each, strict=True)]
        rows, mask, rewards, cut, infos = zip(*found, strict=True)
        info = {name: self._joined([one[name] for one in infos]) for name in infos[0]}
        return (
            self._joined(list(rows)), self._joined(list(mask)), np.concatenate(rewards), np.concatenate(cut), info,
        )  # fmt: skip

    def _joined(self, arrays: list[Any]) -> Any:
        """The arrays behind each other; those by replica are filled up to the largest fleet with zeros."""
        return np.concatenate([array if array.ndim == 1 else filled_up(array, self.max_replicas) for array in arrays])


def kinds_of_traffic(config: RouteConfig, num_decisions: int) -> list[Traffic | DomainConfig]:
    """One for every scenario; the domain where there is none, or beside them."""
    found: list[Traffic | DomainConfig] = []
    found += [ScenarioTraffic(find_scenario(name), num_decisions) for name in config.scenarios]
    return [*found, config.domain] if not found or config.domain_share else found


def spread(config: RouteConfig, count: int, num_kinds: int, group: int = 1) -> list[int]:
    """How many of `count` environments each kind of traffic gets, in whole groups, at least one group each."""
    groups = max(count // group, num_kinds)
    if len(config.scenarios) in (0, num_kinds):
        shares = np.full(num_kinds, 1 / num_kinds)
    else:
        own = (1 - config.domain_share) / (num_kinds - 1)
        shares = np.array([*[own] * (num_kinds - 1), config.domain_share])
    ends = np.round(np.cumsum(shares) * (groups - num_kinds)).astype(int)
    return [group * (1 + int(more)) for more in np.diff(ends, prepend=0)]


def new_clusters(config: RouteConfig, count: int, *, horizon: int, group: int = 1) -> VectorClusters | SeveralClusters:
    """About `count` environments of all that the configuration trains on."""
    kinds = kinds_of_traffic(config, horizon)
    parts = [
        VectorClusters(
            kind, number, horizon=horizon, lengths=config.lengths, queue_depth=config.queue_depth, reward=config.reward,
            group=group,
        )
        for kind, number in zip(kinds, spread(config, count, len(kinds), group), strict=True)
    ]  # fmt: skip
    return parts[0] if len(parts) == 1 else SeveralClusters(parts)
