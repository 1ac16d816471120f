"""A router that learns while one long simulation runs, beside a safe one that gets the same requests.

Where a block of decisions is worse than the safe router's by more than a margin, that one takes over for a block at
first, then twice as long each time; the policy is left as it was before that block.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.routing.config import RouteConfig
from gnomon.routing.demos import HeuristicTeacher
from gnomon.routing.environment import VectorClusters, kinds_of_traffic
from gnomon.routing.network import Scorer, log_probabilities
from gnomon.routing.ppo import Experience, Trainer, _tensors, advantages, merit
from gnomon.serving.routers import ROUTERS
from gnomon.serving.routers.observation import MEMORY_PER_REPLICA

MOST_BLOCKS_OUT = 8  # Blocks that the safe router decides at most before the policy is tried again.


@dataclass(frozen=True)
class Block:
    """What became of one block of decisions."""

    decisions: int
    """So far."""
    reward: float
    safe_reward: float
    """Means per decision: of the cluster that the policy learns in, and of the safe router's."""
    regret: float
    """What was lost against the safe router so far, per decision, as a share of its own reward; below 0: won."""
    is_safe: bool
    """Whether the safe router decided in both."""


def check(config: RouteConfig) -> None:
    """One kind of traffic, and a router that can stand in."""
    if len(config.scenarios) > 1 or config.domain_share:
        raise ConfigError("one long simulation has one load.", where="scenarios", fix="Give one --scenario, or none.")
    if config.online.safe not in ROUTERS:
        raise UnknownNameError("router", config.online.safe, ROUTERS, where="online.safe")
    if ROUTERS[config.online.safe].memory > MEMORY_PER_REPLICA or not ROUTERS[config.online.safe].compiled:
        raise ConfigError("this router cannot stand in.", where="online.safe", fix="Use least_outstanding.")


def learn(config: RouteConfig, scorer: Scorer) -> Iterator[Block]:
    """Blocks as they end; the policy changes in place."""
    online, steps = config.online, config.train.steps
    clusters = VectorClusters(
        kinds_of_traffic(config, online.decisions)[0], 2, horizon=online.decisions, lengths=config.lengths,
        queue_depth=config.queue_depth, reward=config.reward, group=2, lopsided=False,
    )  # fmt: skip
    trainer = Trainer(config.train.model_copy(update={"critic_warmup": 0}), clusters, clusters, scorer, config.seed)
    safe, memory = HeuristicTeacher(online.safe), torch.zeros(1, scorer.hidden)
    rows, mask = clusters.reset(config.seed)
    before = copy.deepcopy(scorer.state_dict())
    blocks_out = left_out = 0
    lost = earned = 0.0
    for number in range(online.decisions // steps):
        is_safe, collected = left_out > 0, []
        for _ in range(steps):
            seen, present = _tensors(rows[:1], mask[:1])
            with torch.no_grad():
                scores, remembered = scorer.step(seen, present, memory)
                log_p = log_probabilities(scores)
                action = torch.multinomial(log_p.exp() * present, 1, generator=trainer.generator).squeeze(1)
                value = trainer.critic(seen, present)
            actions = safe.actions(clusters)
            if not is_safe:
                actions[0] = int(action)
            rows, mask, rewards, _, _ = clusters.step(actions)
            with torch.no_grad():
                next_value = trainer.critic(*_tensors(rows[:1], mask[:1]))
            collected.append((seen, present, action, log_p.gather(1, action.unsqueeze(1)).squeeze(1), memory, value,
                              next_value, torch.tensor(rewards, dtype=torch.float32)))  # fmt: skip
            memory = remembered
        seen, present, action, acted_log_p, memories, value, next_value, both = (
            torch.stack(part) for part in zip(*collected, strict=True)
        )
        mean, safe_mean = float(both[:, 0].mean()), float(both[:, 1].mean())
        lost, earned = lost + safe_mean - mean, earned + abs(safe_mean)
        yield Block((number + 1) * steps, mean, safe_mean, lost / max(earned, 1e-12), is_safe)
        left_out -= is_safe
        if is_safe:
            continue
        if safe_mean - mean > online.margin * abs(safe_mean):
            scorer.load_state_dict(before, strict=True)
            blocks_out = min(MOST_BLOCKS_OUT, 2 * blocks_out or 1)
            left_out = blocks_out
            continue
        blocks_out, before = 0, copy.deepcopy(scorer.state_dict())
        experience = Experience(
            rows=seen, mask=present, actions=action, log_p=acted_log_p, memory=memories, values=value,
            next_values=next_value, rewards=both[:, :1], cut=torch.zeros(steps, 1, dtype=torch.bool), backlog=1.0,
            top_share=0.0,
        )  # fmt: skip
        found = advantages(experience, config.train.discount, config.train.trace_decay)
        trainer._learn(experience, merit(found, 1), found + value)
        trainer.update += 1
