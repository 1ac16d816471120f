"""Behaviour cloning: a scorer that chooses as the teacher does, judged on clusters it has not learned from.

Two losses. `cross_entropy` follows the teacher's probabilities, decision by decision. `regret` is what the policy's
choice costs on average beyond the best one. It is linear in the costs: where the teacher's word is noisy, because it
has looked into one of many possible futures, the noise averages out and what remains is the best choice for what can be
known. Cross-entropy makes no difference between a choice that hardly matters and one that does, but it learns fast. The
loss is their weighted sum.
"""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gnomon.core.streams import stream
from gnomon.routing.config import CloneConfig
from gnomon.routing.demos import Demos
from gnomon.serving.routers.policy_file import CLIP, load_policy, save_policy

MIN_STD = 1e-3
"""A feature that hardly varies in the demonstrations is not blown up."""


class Normalizer(nn.Module):  # type: ignore[misc]
    """(x - mean) / std, clipped; fitted once and then held, so that old and new probabilities can be compared."""

    mean: Tensor
    std: Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("std", torch.ones(num_features))

    def fit(self, rows: NDArray[np.floating[Any]]) -> None:
        """Take mean and standard deviation from rows [n, features]."""
        self.mean.copy_(torch.from_numpy(rows.mean(0)))
        self.std.copy_(torch.from_numpy(np.maximum(rows.std(0), MIN_STD)))

    def forward(self, rows: Tensor) -> Tensor:
        """The normalised rows."""
        return ((rows - self.mean) / self.std).clamp(-CLIP, CLIP)


class Scorer(nn.Module):  # type: ignore[misc]
    """The policy: logits [batch, replica] from rows [batch, replica, feature]; -inf where there is no replica.

    A recurrent one carries a memory [batch, hidden] from decision to decision (a GRU over what all replicas have in
    common). It learns with the memory it acted with, one decision back in time.
    """

    def __init__(self, num_features: int, hidden: int, recurrent: bool = False) -> None:
        super().__init__()
        self.num_features, self.hidden = num_features, hidden
        self.normalizer = Normalizer(num_features)
        self.phi0 = nn.Linear(num_features, hidden)
        self.phi1 = nn.Linear(hidden, hidden)
        self.rho0 = nn.Linear((4 if recurrent else 3) * hidden, hidden)
        self.rho1 = nn.Linear(hidden, 1)
        self.gru = nn.GRUCell(2 * hidden, hidden) if recurrent else None

    def forward(self, rows: Tensor, mask: Tensor, memory: Tensor | None = None) -> Tensor:
        """Raw logits: nothing squashes them, so that a policy may become as sure as it needs to."""
        return self.step(rows, mask, memory)[0]

    def step(self, rows: Tensor, mask: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The logits, and the memory of the next decision; without one given, it is empty."""
        h = torch.relu(self.phi1(torch.relu(self.phi0(self.normalizer(rows)))))
        common = pooled(h, mask)
        memory = torch.zeros(len(rows), self.hidden) if memory is None else memory
        if self.gru is not None:
            memory = self.gru(common, memory)
            common = torch.cat([common, memory], -1)
        context = common.unsqueeze(1).expand(-1, h.shape[1], -1)
        scores: Tensor = self.rho1(torch.relu(self.rho0(torch.cat([h, context], -1)))).squeeze(-1)
        return scores.masked_fill(~mask, -torch.inf), memory


class Critic(nn.Module):  # type: ignore[misc]
    """The value of a state [batch], from the same rows; used in training only."""

    def __init__(self, num_features: int, hidden: int) -> None:
        super().__init__()
        self.normalizer = Normalizer(num_features)
        self.phi0 = nn.Linear(num_features, hidden)
        self.phi1 = nn.Linear(hidden, hidden)
        self.value0 = nn.Linear(2 * hidden, hidden)
        self.value1 = nn.Linear(hidden, 1)

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """Expected return from here, in scaled rewards."""
        h = torch.relu(self.phi1(torch.relu(self.phi0(self.normalizer(rows)))))
        value: Tensor = self.value1(torch.relu(self.value0(pooled(h, mask)))).squeeze(-1)
        return value


def pooled(h: Tensor, mask: Tensor) -> Tensor:
    """Mean and maximum over the replicas that exist: [batch, 2 x hidden]. `h` is at least zero (it left a relu)."""
    present = h * mask.unsqueeze(-1)
    mean = present.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
    return torch.cat([mean, present.amax(1)], -1)


def log_probabilities(logits: Tensor) -> Tensor:
    """Log of the masked softmax; 0 where there is no replica, so that p log p is 0 there."""
    return torch.log_softmax(logits, -1).masked_fill(torch.isneginf(logits), 0.0)


def initialize(module: nn.Module, seed: int) -> None:
    """PyTorch's own initialisation, drawn from our seed and without touching its global state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, "initial weights", type(module).__name__).integers(2**31)))
        for child in module.children():
            if isinstance(child, nn.Linear | nn.GRUCell):
                child.reset_parameters()


def save_scorer(scorer: Scorer, path: str | Path, lengths: str, made: Mapping[str, Any]) -> Path:
    """Write the scorer as a policy file, which the router `learned` reads without PyTorch."""
    arrays = {name: value.detach().numpy() for name, value in scorer.state_dict().items()}
    mean, std = arrays.pop("normalizer.mean"), arrays.pop("normalizer.std")
    return save_policy(path, arrays, mean, std, lengths, dict(made))


def load_scorer(path: str | Path) -> Scorer:
    """A scorer with exactly the weights of a policy file: nothing missing, nothing left over."""
    policy = load_policy(path)
    scorer = Scorer(len(policy.mean), policy.hidden, policy.recurrent)
    arrays = {**policy.arrays, "normalizer.mean": policy.mean, "normalizer.std": policy.std}
    scorer.load_state_dict({name: torch.tensor(array).float() for name, array in arrays.items()}, strict=True)
    return scorer


OnEpoch = Callable[[dict[str, float]], None]


def clone(demos: Demos, config: CloneConfig, scorer: Scorer, seed: int, on_epoch: OnEpoch) -> list[dict[str, float]]:
    """Fit `scorer` to the demonstrations; it keeps the weights of the epoch that did best in validation."""
    held_out = _held_out(demos, config, seed)
    learn, check = _tensors(demos, ~held_out), _tensors(demos, held_out)
    generator = torch.Generator().manual_seed(int(stream(seed, "clone").integers(2**31)))
    optimizer = torch.optim.Adam(scorer.parameters(), lr=config.learning_rate)
    steps = config.epochs * -(-len(learn["rows"]) // config.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    best, best_loss, waited, history = copy.deepcopy(scorer.state_dict()), float("inf"), 0, []
    for epoch in range(1, config.epochs + 1):
        total = 0.0
        for chosen in torch.randperm(len(learn["rows"]), generator=generator).split(config.batch):
            batch = {name: value[chosen] for name, value in learn.items()}
            loss = _loss(scorer, batch, config)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(chosen)
        metrics = {"epoch": epoch, "loss": total / len(learn["rows"]), **_judged(scorer, check, config)}
        history.append(metrics)
        on_epoch(metrics)
        waited += 1
        if metrics["validation_loss"] < best_loss:
            best, best_loss, waited = copy.deepcopy(scorer.state_dict()), metrics["validation_loss"], 0
        if waited >= config.patience:
            break
    scorer.load_state_dict(best, strict=True)
    return history


def _held_out(demos: Demos, config: CloneConfig, seed: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Decisions of the clusters that are kept for validation: at least one cluster, never all."""
    clusters = np.unique(demos.cluster)
    count = min(max(1, round(config.validation_share * len(clusters))), len(clusters) - 1)
    return np.isin(demos.cluster, stream(seed, "validation").permutation(clusters)[:count])


def _tensors(demos: Demos, chosen: Any) -> dict[str, Tensor]:
    return {name: torch.from_numpy(getattr(demos, name)[chosen]) for name in ("rows", "mask", "targets", "costs")}


def _loss(scorer: Scorer, batch: dict[str, Tensor], config: CloneConfig) -> Tensor:
    log_p = log_probabilities(scorer(batch["rows"], batch["mask"]))
    loss = -(batch["targets"] * log_p).sum(-1).mean() * config.cross_entropy_weight
    if config.regret_weight:
        loss = loss + config.regret_weight * _regret(log_p, batch).mean()
    return loss


def _regret(log_p: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Cost beyond the best choice, expected under the policy."""
    return (log_p.exp() * batch["mask"] * batch["costs"]).sum(-1)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _judged(scorer: Scorer, check: dict[str, Tensor], config: CloneConfig) -> dict[str, float]:
    """Loss, regret of the likeliest choice, how often it is the teacher's own, and how often the teacher prefers no
    replica to another: any choice is its own then."""
    logits = scorer(check["rows"], check["mask"])
    chosen = logits.argmax(1, keepdim=True)
    highest, lowest = check["targets"].amax(1), check["targets"].masked_fill(~check["mask"], 2.0).amin(1)
    return {
        "validation_loss": float(_loss(scorer, check, config)),
        "validation_regret": float(check["costs"].gather(1, chosen).mean()),
        "agreement": float((check["targets"].gather(1, chosen).squeeze(1) >= highest).float().mean()),
        "indifferent": float((lowest >= highest).float().mean()),
    }
