"""Clusters that are small enough to reason about: the tests of training run on them."""

from __future__ import annotations

from typing import Any

import numpy as np

NUM_FEATURES = 4


class ToyClusters:
    """Each cluster has two to four replicas with queues; a request adds one, time takes some away, and the reward is
    minus what waits. Feature 0 is the queue; the others are noise. Everything follows from the seed of `reset`."""

    max_replicas = 4

    def __init__(self, num_envs: int = 8, horizon: int = 16, group: int = 1) -> None:
        self.num_envs, self.horizon, self.group = num_envs, horizon, group

    def reset(self, seed: int) -> tuple[Any, Any]:
        groups = self.num_envs // self.group
        self.random = [np.random.default_rng([seed, env // self.group]) for env in range(self.num_envs)]
        counts = np.random.default_rng(seed).integers(2, 5, groups).repeat(self.group)
        self.mask = np.arange(self.max_replicas) < counts[:, None]
        self.queues = np.zeros(self.mask.shape)
        self.noise = self._draw()
        self.step_number = 0
        return self._observed(), self.mask.copy()

    def _draw(self) -> Any:
        return np.stack([random.random((self.max_replicas, NUM_FEATURES)) for random in self.random])

    def _observed(self) -> Any:
        rows = self.noise.copy()
        rows[:, :, 0] = self.queues
        return rows * self.mask[:, :, None]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert self.mask[np.arange(self.num_envs), actions].all(), "no such replica"
        self.queues[np.arange(self.num_envs), actions] += 1.0
        self.queues = np.maximum(self.queues - self.noise[:, :, 1] * 1.2, 0.0) * self.mask
        self.noise = self._draw()
        self.step_number += 1
        rows, mask = self._observed(), self.mask.copy()
        rewards = -self.queues.sum(1) / self.mask.sum(1)
        cut = np.full(self.num_envs, self.step_number % self.horizon == 0)
        info = {"final_observation": rows.copy(), "final_mask": mask, "backlog": self.queues.sum(1)}
        if cut.any():
            self.queues[:] = 0.0
            rows = self._observed()
        return rows, mask, rewards, cut, info
