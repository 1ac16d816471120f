"""Train somebody else's PPO (Stable-Baselines3) to route, on Gnomon's Gymnasium environment.

    pip install 'gnomon-sim[learn]' stable-baselines3
    python examples/routing/third_party_ppo.py [STEPS]

Three replicas, some of them three times slower than others, and short answers. A flat network has to learn about each
replica separately, which is why `gnomon route` trains one that scores all replicas alike; but it learns, and any other
learner can be tried here.
"""

from __future__ import annotations

import sys

import numpy as np
from gymnasium.wrappers import FlattenObservation
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from gnomon.routing.domain import DomainConfig
from gnomon.routing.gym import RoutingEnv

DOMAIN = DomainConfig(
    num_replicas=(3, 3),
    devices=("h100",),
    unequal_share=1.0,
    slowdowns=(1.0, 3.0),
    max_sequences=(16,),
    load=(0.7, 0.9),
    cv=(1.0, 1.5),
    output_median=(20.0, 40.0),
    long_traces=0.0,
    spike_share=0.0,
    session_share=0.0,
    warm_up=(20, 50),
)
HORIZON = 256


def make() -> FlattenObservation:
    return FlattenObservation(RoutingEnv(DOMAIN, horizon=HORIZON))


def mean_reward(choose, episodes: int = 8) -> float:
    """Mean reward per decision on traffic that training does not see: minus the latency, in lone requests' times."""
    env, total = make(), 0.0
    for seed in range(10_000, 10_000 + episodes):
        observation, _ = env.reset(seed=seed)
        truncated = False
        while not truncated:
            observation, reward, _, truncated, _ = env.step(choose(observation))
            total += float(reward)
    return total / episodes / HORIZON


def main(steps: int) -> None:
    random = np.random.default_rng(0)
    envs = VecNormalize(DummyVecEnv([make] * 4), gamma=0.95)
    model = PPO("MlpPolicy", envs, n_steps=512, batch_size=512, gamma=0.95, learning_rate=1e-3, seed=0, device="cpu")

    def learned(seen: np.ndarray) -> int:
        return int(model.predict(envs.normalize_obs(seen), deterministic=True)[0])

    print(f"at random: {mean_reward(lambda _: random.integers(3)):.3f}", flush=True)
    print(f"fewest requests: {mean_reward(lambda seen: seen.reshape(3, -1)[:, 0].argmin()):.3f}", flush=True)
    model.learn(steps)
    print(f"after {steps:,} steps: {mean_reward(learned):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
