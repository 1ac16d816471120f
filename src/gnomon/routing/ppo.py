"""PPO over clusters: collect decisions, estimate their advantages, improve the policy on a leash.

One file, read from top to bottom: the schedules, what is collected, advantages, the loss, the update, the trainer. What
differs from the textbook, and why, is in docs/routing.md (the mean over clusters with the same arrivals: Mao et al.,
"Variance Reduction for Reinforcement Learning in Input-Driven Environments", ICLR 2019).
"""

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from gnomon.core.errors import GnomonError
from gnomon.core.streams import stream
from gnomon.routing.config import TrainConfig
from gnomon.routing.network import Critic, Scorer, initialize, log_probabilities

Array = NDArray[Any]


class Clusters(Protocol):
    """What the trainer needs of its environments; `gnomon.routing.environment.VectorClusters` has it."""

    num_envs: int

    def reset(self, seed: int) -> tuple[Array, Array]:
        """Fresh clusters that follow from the seed alone: rows [environment, replica, feature] and which exist."""

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Route the waiting request of every cluster; next rows and mask, rewards, cuts, and what else is known."""


# Schedules: functions of the number of gradient steps, so that resuming needs nothing else.
def kl_weight(config: TrainConfig, gradient_steps: int) -> float:
    """The leash: falls from its first to its last value, and holds that."""
    done = min(1.0, gradient_steps / config.kl_decay_steps)
    return config.kl_start + (config.kl_end - config.kl_start) * done


def entropy_weight(config: TrainConfig, gradient_steps: int) -> float:
    """The warm-up value for a while; then from the first to the last value, which holds."""
    after_warmup = gradient_steps - config.entropy_warmup_steps
    if after_warmup < 0:
        return config.entropy_warmup
    done = min(1.0, after_warmup / config.entropy_decay_steps)
    return config.entropy_start + (config.entropy_end - config.entropy_start) * done


@dataclass(frozen=True)
class Experience:
    """Decisions [step, environment] of one update, and what followed."""

    rows: Tensor
    mask: Tensor
    actions: Tensor
    log_p: Tensor
    """Log-probability of the action under the policy that acted."""
    memory: Tensor
    """What a recurrent policy remembered when it acted."""
    values: Tensor
    """The critic's word on the state."""
    rewards: Tensor
    cut: Tensor
    """Whether the episode was cut after this decision."""
    next_values: Tensor
    """The critic's word on the state that followed, before any reset."""
    backlog: float
    """Requests in the system at the end, over those at the start."""
    top_share: float
    """Share of the decisions that went to the busiest replica, mean over environments."""


@torch.no_grad()  # type: ignore[untyped-decorator]
def collect(
    clusters: Clusters, scorer: Scorer, critic: Critic, generator: torch.Generator, num_steps: int, seed: int
) -> Experience:
    """Act for `num_steps` decisions in fresh clusters, sampling from the policy as it is (temperature 1)."""
    rows, mask = _tensors(*clusters.reset(seed))
    memory = torch.zeros(clusters.num_envs, scorer.hidden)
    steps: list[dict[str, Tensor]] = []
    backlogs = []
    for _ in range(num_steps):
        scores, remembered = scorer.step(rows, mask, memory)
        log_p = log_probabilities(scores)
        actions = torch.multinomial(log_p.exp() * mask, 1, generator=generator).squeeze(1)
        next_rows, next_mask, rewards, cut, info = clusters.step(actions.numpy())
        followed, followed_mask = next_rows, next_mask
        if cut.any():
            followed = np.where(cut[:, None, None], info["final_observation"], next_rows)
            followed_mask = np.where(cut[:, None], info["final_mask"], next_mask)
        backlogs.append(float(np.mean(info["backlog"])))
        steps.append(
            {
                "rows": rows, "mask": mask, "actions": actions, "memory": memory,
                "log_p": log_p.gather(1, actions.unsqueeze(1)).squeeze(1), "values": critic(rows, mask),
                "rewards": torch.as_tensor(rewards, dtype=torch.float32), "cut": torch.as_tensor(cut),
                "next_values": critic(*_tensors(followed, followed_mask)),
            }
        )  # fmt: skip
        rows, mask = _tensors(next_rows, next_mask)
        memory = remembered * ~torch.as_tensor(cut).unsqueeze(1)
    stacked = {name: torch.stack([step[name] for step in steps]) for name in steps[0]}
    quarter = max(1, num_steps // 4)
    growth = fmean(backlogs[-quarter:]) / max(1.0, fmean(backlogs[:quarter]))
    chosen = functional.one_hot(stacked["actions"], stacked["mask"].shape[-1]).float().mean(0)
    return Experience(**stacked, backlog=growth, top_share=float(chosen.amax(-1).mean()))


def _tensors(rows: Array, mask: Array) -> tuple[Tensor, Tensor]:
    """Copies: the environments reuse their arrays."""
    return torch.tensor(rows, dtype=torch.float32), torch.tensor(mask, dtype=torch.bool)


def advantages(experience: Experience, discount: float, trace_decay: float) -> Tensor:
    """GAE. Every step is bootstrapped with the value of what followed it; a cut only ends the sum."""
    e = experience
    surprises = e.rewards + discount * e.next_values - e.values
    found, running = torch.zeros_like(surprises), torch.zeros_like(surprises[0])
    for t in reversed(range(len(surprises))):
        running = surprises[t] + discount * trace_decay * running * ~e.cut[t]
        found[t] = running
    return found


def merit(advantage: Tensor, group: int) -> Tensor:
    """Advantages [step, environment] less their mean over the clusters with the same arrivals, per decision; then of
    unit spread per group, so that a crowded cluster counts no more than a calm one."""
    steps, environments = advantage.shape
    grouped = advantage.view(steps, environments // group, group)
    if group > 1:
        grouped = grouped - grouped.mean(-1, keepdim=True)
    spread = grouped.pow(2).mean((0, 2), keepdim=True).sqrt()
    return (grouped / (spread + 1e-6)).reshape(steps, environments)


def loss_terms(
    logits: Tensor, reference_log_p: Tensor, actions: Tensor, old_log_p: Tensor, merits: Tensor, clip: float
) -> dict[str, Tensor]:
    """The parts of PPO's loss that concern the policy, and what tells how far it moved."""
    log_p = log_probabilities(logits)
    p = log_p.exp().masked_fill(torch.isneginf(logits), 0.0)
    log_ratio = log_p.gather(1, actions.unsqueeze(1)).squeeze(1) - old_log_p
    ratio = log_ratio.exp()
    return {
        "policy": -torch.min(ratio * merits, ratio.clamp(1 - clip, 1 + clip) * merits).mean(),
        "kl_reference": (p * (log_p - reference_log_p)).sum(-1).mean(),
        "entropy": -(p * log_p).sum(-1).mean(),
        "kl_old": ((ratio - 1) - log_ratio).mean(),
        "ratio": ratio.mean(),
        "clipped": ((ratio - 1).abs() > clip).float().mean(),
    }


class CollapseError(GnomonError):
    """The policy sends nearly everything to one replica and the backlog grows."""


@dataclass
class Alarm:
    """Watches for a collapse: one replica gets nearly everything, and the queue grows, several updates in a row."""

    share: float
    growth: float = 1.5
    patience: int = 3
    strikes: int = 0

    def watch(self, experience: Experience) -> None:
        """Count this update; raise where it was one too many."""
        collapsed = experience.top_share > self.share and experience.backlog > self.growth
        self.strikes = self.strikes + 1 if collapsed else 0
        if self.strikes >= self.patience:
            raise CollapseError(
                f"the policy has collapsed: {experience.top_share:.0%} of the requests go to one replica, and the "
                f"backlog grows {experience.backlog:.1f}-fold within an update.",
                fix="Raise train.kl_end or train.entropy_start, lower train.learning_rate, and start from the clone.",
            )


@dataclass
class Trainer:
    """A training run: everything that a checkpoint must hold is in `state()`."""

    config: TrainConfig
    clusters: Clusters
    validation: Clusters
    """Clusters of their own: it may be their turn in the middle of training."""
    scorer: Scorer
    seed: int
    critic: Critic = field(init=False)
    reference: Scorer = field(init=False)
    update: int = 0
    gradient_steps: int = 0
    decisions: int = 0

    def __post_init__(self) -> None:
        """Start from the scorer as it is: it is the reference too, and lends the critic its normaliser."""
        self.generator = torch.Generator().manual_seed(_number(self.seed, "sampling"))
        self.critic = Critic(self.scorer.num_features, self.scorer.hidden)
        initialize(self.critic, self.seed)
        self.critic.normalizer.load_state_dict(self.scorer.normalizer.state_dict())
        self.reference = copy.deepcopy(self.scorer).requires_grad_(False)
        self.best, self.best_gain = copy.deepcopy(self.scorer.state_dict()), 0.0
        self.start_scores: Tensor | None = None
        self.alarm = Alarm(self.config.collapse_share)
        parameters = [*self.scorer.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=self.config.learning_rate, eps=1e-5)

    def state(self) -> dict[str, Any]:
        """All that the rest of the run depends on, as tensors and plain values."""
        modules = {name: getattr(self, name).state_dict() for name in ("scorer", "critic", "reference", "optimizer")}
        counts = {name: getattr(self, name) for name in ("update", "gradient_steps", "decisions")}
        others = {"generator": self.generator.get_state(), "strikes": self.alarm.strikes}
        kept = {"best": self.best, "best_gain": self.best_gain, "start_scores": self.start_scores}
        return copy.deepcopy({**modules, **counts, **others, **kept})

    def load_state(self, state: dict[str, Any]) -> None:
        for name in ("scorer", "critic", "reference"):
            getattr(self, name).load_state_dict(state[name], strict=True)
        self.optimizer.load_state_dict(state["optimizer"])
        for name in ("update", "gradient_steps", "decisions", "best", "best_gain", "start_scores"):
            setattr(self, name, state[name])
        self.generator.set_state(state["generator"])
        self.alarm.strikes = state["strikes"]

    def train(self) -> Iterator[dict[str, float]]:
        while self.update < self.config.updates:
            yield self.one_update()

    def one_update(self) -> dict[str, float]:
        c, began = self.config, time.perf_counter()
        traces = _number(self.seed, "traces", self.update)
        e = collect(self.clusters, self.scorer, self.critic, self.generator, c.steps, traces)
        collected_s = time.perf_counter() - began
        self.alarm.watch(e)
        found = advantages(e, c.discount, c.trace_decay)
        returns = found + e.values
        metrics = self._learn(e, merit(found, c.trace_group), returns)
        self.update += 1
        self.decisions += e.actions.numel()
        unexplained = float((returns - e.values).var() / returns.var().clamp(min=1e-12))
        return {
            "update": self.update, "decisions": self.decisions, "gradient_steps": self.gradient_steps,
            "reward/mean": float(e.rewards.mean()), "cluster/top_share": e.top_share,
            "cluster/backlog_growth": e.backlog, **metrics, "critic/explained": 1.0 - unexplained, **self._validate(),
            "speed/decisions_per_s": e.actions.numel() / collected_s, "speed/update_s": time.perf_counter() - began,
        }  # fmt: skip

    def _learn(self, e: Experience, merits: Tensor, returns: Tensor) -> dict[str, float]:
        """Epochs of minibatches, until the policy has moved far enough."""
        c, count = self.config, e.actions.numel()
        flat = {
            "rows": e.rows.flatten(0, 1), "mask": e.mask.flatten(0, 1), "actions": e.actions.flatten(),
            "memory": e.memory.flatten(0, 1), "log_p": e.log_p.flatten(), "merits": merits.flatten(),
            "returns": returns.flatten(),
        }  # fmt: skip
        sums: dict[str, float] = {}
        passes, stopped = 0, False
        for _ in range(c.epochs):
            order = torch.randperm(count, generator=self.generator)
            for chosen in order.split(c.minibatch):
                terms = self._gradient_step({name: value[chosen] for name, value in flat.items()})
                for name, value in terms.items():
                    sums[name] = sums.get(name, 0.0) + value
                passes += 1
                stopped = terms["policy/kl_old"] > c.target_kl
                if stopped:
                    break
            if stopped:
                break
        return {name: value / passes for name, value in sums.items()} | {"policy/passes": passes}

    def _gradient_step(self, batch: dict[str, Tensor]) -> dict[str, float]:
        c = self.config
        leads = 1.0 if self.update >= c.critic_warmup else 0.0
        kl, entropy = leads * kl_weight(c, self.gradient_steps), leads * entropy_weight(c, self.gradient_steps)
        with torch.no_grad():
            reference = log_probabilities(self.reference(batch["rows"], batch["mask"], batch["memory"]))
        scores = self.scorer(batch["rows"], batch["mask"], batch["memory"])
        terms = loss_terms(scores, reference, batch["actions"], batch["log_p"], batch["merits"], c.clip)
        error = functional.smooth_l1_loss(self.critic(batch["rows"], batch["mask"]), batch["returns"])
        of_policy = leads * terms["policy"] + kl * terms["kl_reference"] - entropy * terms["entropy"]
        loss = of_policy + c.value_weight * error
        self.optimizer.zero_grad()
        loss.backward()
        for module in (self.scorer, self.critic):
            torch.nn.utils.clip_grad_norm_(module.parameters(), c.max_gradient)
        self.optimizer.step()
        self.gradient_steps += 1
        return {
            **{f"policy/{name}": float(value.detach()) for name, value in terms.items()},
            "critic/error": float(error.detach()), "weights/kl": kl, "weights/entropy": entropy,
        }  # fmt: skip

    def _validate(self) -> dict[str, float]:
        """Every now and then: the likeliest choices on traces never trained on, against those of the start."""
        c = self.config
        if self.start_scores is None:
            self.start_scores = self._scores(self.reference)
        if self.update % c.validate_every and self.update != c.updates:
            return {}
        scores = self._scores(self.scorer)
        gain = float(((scores - self.start_scores) / self.start_scores.abs().clamp(min=1e-9)).mean())
        if gain > self.best_gain:
            self.best_gain, self.best = gain, copy.deepcopy(self.scorer.state_dict())
        return {"validation/reward": float(scores.mean()), "validation/gain": gain}

    def _scores(self, scorer: Scorer) -> Tensor:
        return greedy_scores(self.validation, scorer, self.config.validation_steps, _number(self.seed, "validation"))

    def best_scorer(self) -> Scorer:
        """The policy that did best in validation; the one it started from if none did better."""
        best = copy.deepcopy(self.scorer)
        best.load_state_dict(self.best, strict=True)
        return best


@torch.no_grad()  # type: ignore[untyped-decorator]
def greedy_scores(clusters: Clusters, scorer: Scorer, num_steps: int, seed: int) -> Tensor:
    """Mean reward of every cluster where always the likeliest replica is taken, on the traces of one seed."""
    rows, mask = _tensors(*clusters.reset(seed))
    memory = torch.zeros(clusters.num_envs, scorer.hidden)
    total = torch.zeros(clusters.num_envs, dtype=torch.float64)
    for _ in range(num_steps):
        scores, memory = scorer.step(rows, mask, memory)
        next_rows, next_mask, rewards, cut, _ = clusters.step(scores.argmax(1).numpy())
        total += torch.as_tensor(rewards, dtype=torch.float64)
        rows, mask = _tensors(next_rows, next_mask)
        memory = memory * ~torch.as_tensor(cut).unsqueeze(1)
    return total / num_steps


def _number(seed: int, *names: str | int) -> int:
    return int(stream(seed, "ppo", *names).integers(2**31))
