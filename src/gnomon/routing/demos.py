"""Demonstrations: routers act in clusters, a teacher says what would have been best, and both are written down.

A label is a probability for every replica; a teacher that knows what choices cost has a cost for each beside it. The
file is an npz of arrays with a JSON description; nothing in it is ever unpickled.
"""

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import DataError, UnknownNameError
from gnomon.core.files import write_frame, written_whole
from gnomon.core.streams import stream
from gnomon.jit import bound
from gnomon.routing.config import RouteConfig
from gnomon.routing.domain import filled_up
from gnomon.routing.ensemble import Ensemble, copy_lane, opinions, roll_out
from gnomon.routing.environment import SPARE_REQUESTS, VectorClusters, kinds_of_traffic, spread
from gnomon.serving.routers import ROUTERS, RouterSpec
from gnomon.serving.routers.observation import FEATURES, MEMORY_PER_REPLICA, SCHEMA_HASH
from gnomon.serving.run.compilation import engine_of
from gnomon.serving.scenario.config import QUEUE_DEPTH, RouterConfig


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
            self._memory, self._episodes = np.zeros_like(envs.many.router_memory), envs.episodes.copy()
        self._memory[self._episodes != envs.episodes] = 0.0
        self._episodes[:] = envs.episodes
        fleets = envs.many.fleets._replace(parameters=self._parameters)
        many = envs.many._replace(fleets=fleets, router_memory=self._memory)
        self._opinions(many, self._engine, chosen)
        return chosen


class RolloutTeacher:
    """Tries every replica for the pending request: copies the cluster, lets a base policy route the next arrivals, runs
    it until all is done, and adds up the latencies of everybody (policy improvement)."""

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


Floats32 = NDArray[np.float32]
ROLLOUT, OWN = "rollout", "own"
"""Teachers that are no routers: the one that tries every replica, and the driver itself."""


@dataclass(frozen=True)
class Demos:
    """Decisions with their labels; the first axis of every array."""

    rows: Floats32
    """[decision, replica, feature]"""
    mask: NDArray[np.bool_]
    """[decision, replica]: which replicas exist."""
    targets: Floats32
    """[decision, replica]: the teacher's probabilities."""
    costs: Floats32
    """[decision, replica]: what each choice costs beyond the best one: for `unselfish` the log of the added latency
    over the least, for `rollout` in units of what an average choice in that cluster costs more than the best; 0 where
    the teacher knows no costs."""
    cluster: NDArray[np.int64]
    """[decision]: the cluster in which it was taken."""

    def __len__(self) -> int:
        return len(self.rows)


def joined(parts: list[Demos]) -> Demos:
    """All decisions of several collections; their clusters stay different ones."""
    offsets = np.cumsum([0, *(int(part.cluster.max()) + 1 for part in parts[:-1])])
    widest = max(part.mask.shape[1] for part in parts)
    names = ("rows", "mask", "targets", "costs")
    arrays = {name: np.concatenate([filled_up(getattr(part, name), widest) for part in parts]) for name in names}
    cluster = np.concatenate([part.cluster + offset for part, offset in zip(parts, offsets, strict=True)])
    return Demos(**arrays, cluster=cluster)


@dataclass(frozen=True)
class Collection:
    """One driver in clusters of its own: what a worker process is asked for."""

    config: RouteConfig
    driver: str
    """A router, or the name of a DAgger collection."""
    policy: Path | None = None
    """The policy that acts, instead of a router (DAgger)."""
    round: int = 0
    kind: int = 0
    """Which kind of traffic of the configuration."""


def collections(config: RouteConfig, policy: Path | None = None, round_: int = 0) -> list[Collection]:
    """The drivers of a collection in every kind of traffic; with a policy, as many in which it drives."""
    names = config.demos.drivers if policy is None else [f"policy {i}" for i in range(len(config.demos.drivers))]
    num_kinds = len(config.scenarios) + bool(config.domain_share) or 1
    return [Collection(config, name, policy, round_, kind) for name in names for kind in range(num_kinds)]


def check_names(config: RouteConfig) -> None:
    """Refuse drivers and teachers that nobody knows, before anything is collected."""
    for name in config.demos.drivers:
        if name not in ROUTERS:
            raise UnknownNameError("driver", name, ROUTERS, where="demos.drivers")
    teachers = (*ROUTERS, ROLLOUT, OWN)
    if config.demos.teacher not in teachers:
        raise UnknownNameError("teacher", config.demos.teacher, teachers, where="demos.teacher")


def collect(order: Collection) -> Demos:
    """Let the driver act, and label every decision."""
    config, demos = order.config, order.config.demos
    kinds = kinds_of_traffic(config, demos.steps_per_driver)
    count = spread(config, demos.num_environments, len(kinds))[order.kind]
    clusters = VectorClusters(
        kinds[order.kind], count, horizon=demos.steps_per_driver, lengths=config.lengths,
        queue_depth=config.queue_depth, reward=config.reward, lopsided=demos.include_imbalanced,
    )  # fmt: skip
    random = stream(config.seed, "demos", order.driver, order.round, *([order.kind] if order.kind else []))
    rows, mask = clusters.reset(int(random.integers(2**31)))
    act, label = _driver(order, random), _Labels(config, order.driver)
    recorded: dict[str, list[Any]] = {"rows": [], "mask": [], "targets": [], "costs": []}
    for _ in range(demos.steps_per_driver):
        actions = act(clusters, rows, mask)
        targets, costs = label(clusters, rows, mask)
        for name, value in (("rows", rows), ("mask", mask), ("targets", targets), ("costs", costs)):
            recorded[name].append(np.array(value, dtype=bool if name == "mask" else np.float32))
        rows, mask, _, _, _ = clusters.step(actions)
    stacked = {name: np.stack(values) for name, values in recorded.items()}
    if label.rollout is not None:
        stacked |= _in_units_of_their_spread(stacked["costs"], stacked["mask"], config.clone.softness)
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in stacked.items()}
    return Demos(**flat, cluster=np.tile(np.arange(count), demos.steps_per_driver))


def _driver(order: Collection, random: np.random.Generator) -> Callable[[VectorClusters, Any, Any], Any]:
    if order.policy is None:
        heuristic = HeuristicTeacher(order.driver)
        return lambda clusters, rows, mask: heuristic.actions(clusters)
    from gnomon.routing.network import load_scorer

    scorer, demos = load_scorer(order.policy), order.config.demos
    done = order.round / max(1, demos.dagger_rounds)
    temperature = demos.temperature + (demos.min_temperature - demos.temperature) * done
    return lambda clusters, rows, mask: _sampled(scorer, rows, mask, temperature, random)


class _Labels:
    """The teacher of a collection: probabilities and raw costs for the decision that every cluster waits for."""

    def __init__(self, config: RouteConfig, driver: str) -> None:
        name = driver if config.demos.teacher == OWN else config.demos.teacher
        self.sharpness = config.demos.sharpness
        self.rollout: RolloutTeacher | None = None
        if name == ROLLOUT:
            self.rollout = RolloutTeacher(base=config.demos.base, horizon=config.demos.lookahead)
        self.spec = ROUTERS.get(name)
        self.heuristic = HeuristicTeacher(name)

    def __call__(self, clusters: VectorClusters, rows: Any, mask: Any) -> tuple[Any, Any]:
        if self.rollout is not None:
            return mask, self.rollout.costs(clusters)  # Targets follow once the spread of the costs is known.
        if self.spec is not None and self.spec.cost_feature is not None:
            costs = rows[:, :, FEATURES.index(self.spec.cost_feature)]
            return soft_targets(costs * self.sharpness, mask), costs
        # A choice that is no function of what the policy sees teaches nothing.
        if self.spec is None or self.spec.draws or not self.spec.sees_state:
            return mask / mask.sum(1, keepdims=True), np.zeros(mask.shape)
        return np.eye(mask.shape[1])[self.heuristic.actions(clusters)], np.zeros(mask.shape)


def soft_targets(costs: Any, mask: Any) -> Any:
    """Probabilities that fall by a factor e for every unit of cost."""
    weights = np.exp(-costs) * mask
    return weights / weights.sum(-1, keepdims=True)


def _in_units_of_their_spread(costs: Any, mask: Any, softness: float) -> dict[str, Any]:
    """Costs beyond the best choice, divided by each cluster's own scale, and the soft targets that follow from them."""
    known = np.where(mask, costs, np.inf)
    beyond = np.where(mask, known - known.min(-1, keepdims=True), 0.0)
    scale = (beyond.sum(-1) / mask.sum(-1)).mean(0)
    beyond = (beyond / np.maximum(scale, 1e-9)[None, :, None]).astype(np.float32)
    return {"costs": beyond, "targets": soft_targets(beyond / softness, mask)}


def _sampled(scorer: Any, rows: Any, mask: Any, temperature: float, random: np.random.Generator) -> NDArray[np.int64]:
    """Choices of the policy at a temperature (Gumbel's trick: the maximum of noisy scores)."""
    import torch

    with torch.no_grad():
        logits = scorer(torch.tensor(rows, dtype=torch.float32), torch.tensor(mask)).numpy()
    return np.asarray((logits / temperature + random.gumbel(size=logits.shape)).argmax(1), dtype=np.int64)


def write(demos: Demos, path: Path, config: RouteConfig) -> Path:
    """Write the arrays and their description as one npz."""
    description = {
        "features": list(FEATURES), "schema": SCHEMA_HASH, "lengths": config.lengths, "queue_depth": config.queue_depth,
        "seed": config.seed, "config": config.demos.model_dump(mode="json"), "decisions": len(demos),
    }  # fmt: skip
    arrays = {field.name: getattr(demos, field.name) for field in fields(Demos)}
    with written_whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, description=np.array(json.dumps(description)), **arrays)
    return path


def read(path: Path, config: RouteConfig) -> Demos:
    """Read demonstrations; refuse those of other features, of another length mode or queue depth."""
    try:
        with np.load(path, allow_pickle=False) as file:
            description = json.loads(str(file["description"]))
            demos = Demos(**{field.name: file[field.name] for field in fields(Demos)})
    except FileNotFoundError:
        fix = "Run `gnomon route demos` first."
        raise DataError("there are no demonstrations.", where=str(path), fix=fix) from None
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"these are no demonstrations: {error}.", where=str(path)) from None
    if description["schema"] != SCHEMA_HASH:
        fix = "Collect them again."
        raise DataError("the demonstrations have other features than this version observes.", where=str(path), fix=fix)
    for name in ("lengths", "queue_depth"):
        theirs, ours = {"queue_depth": QUEUE_DEPTH, **description}[name], getattr(config, name)
        if theirs != ours:
            option = name.replace("_", "-")
            what = f"the demonstrations were made with {name} {theirs!r}, asked for is {ours!r}."
            raise DataError(what, where=str(path), fix=f"Collect them again, or change --{option}.")
    return demos


def dump_state(demos: Demos, path: Path, most: int = 10_000) -> Path:
    """Write what was observed, one row per decision and replica, with the teacher's word beside it."""
    import polars as pl

    decision, replica = np.nonzero(demos.mask[:most])
    columns: dict[str, Any] = {"decision": decision, "cluster": demos.cluster[decision], "replica": replica}
    columns |= {name: demos.rows[decision, replica, i] for i, name in enumerate(FEATURES)}
    columns |= {"target": demos.targets[decision, replica], "cost": demos.costs[decision, replica]}
    frame = pl.DataFrame(columns)
    return write_frame(path, frame)
