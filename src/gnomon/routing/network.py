"""The networks: one scores every replica for one request, one judges the whole state.

Both look at the replicas as a set: neither depends on their order or number. The scorer's arithmetic is the same, layer
by layer, as that of the compiled router `learned`, which runs it without PyTorch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gnomon.core.streams import stream
from gnomon.serving.routers.observation import GATEWAY_VS, NUM_FEATURES
from gnomon.serving.routers.policy_file import CLIP, SHARPNESS, load_policy, save_policy

MIN_STD = 1e-3  # A feature that hardly varies in the demonstrations is not blown up.


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
        return ((rows - self.mean) / self.std).clamp(-CLIP, CLIP)


class Scorer(nn.Module):  # type: ignore[misc]
    """The policy: logits [batch, replica] from rows [batch, replica, feature]; -inf where there is no replica. A
    recurrent one carries a memory [batch, hidden]: it learns with the one it acted with, one decision back in time."""

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
        if self.num_features == NUM_FEATURES:  # Rows of anything else have no rule in them.
            scores = scores - SHARPNESS * rows[..., GATEWAY_VS]
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
        return self.value1(torch.relu(self.value0(pooled(h, mask)))).squeeze(-1)


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
        if isinstance(module, Scorer):  # It begins as the rule.
            nn.init.zeros_(module.rho1.weight)
            nn.init.zeros_(module.rho1.bias)


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
