"""One cluster of `VectorClusters` as a Gymnasium environment, for learners from elsewhere."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from gnomon.core.streams import stream
from gnomon.routing.domain import DomainConfig, RewardConfig
from gnomon.routing.environment import VectorClusters
from gnomon.serving.scenario.config import LengthsKnown

BOUND = 50.0  # Features are logarithms and ratios: none comes near it, but the space must have bounds.

Observation = NDArray[np.float32]


class RoutingEnv(gymnasium.Env[Observation, np.int64]):  # type: ignore[misc]
    """Route one arrival per step. The observation is [replica, feature]; an episode is truncated after `horizon`
    arrivals, never terminated. Rows of missing replicas are zero, `info["action_mask"]` says which exist, and an action
    beyond them counts modulo their number."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  Gymnasium declares it so.

    def __init__(
        self, domain: DomainConfig | None = None, *, horizon: int = 512, lengths: LengthsKnown = "none",
        reward: RewardConfig | None = None,
    ) -> None:  # fmt: skip
        self._clusters = VectorClusters(domain, 1, horizon=horizon, lengths=lengths, reward=reward)
        shape = (self._clusters.max_replicas, self._clusters.num_features)
        self.observation_space = gymnasium.spaces.Box(-BOUND, BOUND, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(self._clusters.max_replicas)
        self._seeds = stream(0, "routing episodes")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Any]:
        """Draw a cluster and its traffic."""
        super().reset(seed=seed)
        if seed is not None:
            self._seeds = stream(seed, "routing episodes")
        observation, mask = self._clusters.reset(int(self._seeds.integers(2**31)))
        return _bounded(observation[0]), {"action_mask": mask[0]}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Send the pending request to replica `action`."""
        replica = int(action) % int(self._clusters.mask[0].sum())
        _, _, reward, done, info = self._clusters.step(np.array([replica]))
        seen = {"action_mask": info["final_mask"][0], "backlog": int(info["backlog"][0])}
        return _bounded(info["final_observation"][0]), float(reward[0]), False, bool(done[0]), seen


def _bounded(observation: Any) -> Observation:
    return np.clip(observation, -BOUND, BOUND).astype(np.float32)
