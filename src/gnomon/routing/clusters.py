"""The clusters that a configuration trains on: those of its domain, of its scenarios, or of both, stepped as one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats
from gnomon.core.streams import stream
from gnomon.routing.compare import find_scenario
from gnomon.routing.config import RouteConfig
from gnomon.routing.domain import DomainConfig, Traffic, filled_up
from gnomon.routing.environment import VectorClusters
from gnomon.routing.traffic import ScenarioTraffic

Bools = NDArray[np.bool_]


class SeveralClusters:
    """Environments of several `VectorClusters` in one row, as one learner sees them.

    Observations are as wide as the largest fleet needs; the mask says which replicas exist.
    """

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
    found: list[Traffic | DomainConfig] = [
        ScenarioTraffic(find_scenario(name), num_decisions) for name in config.scenarios
    ]
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
