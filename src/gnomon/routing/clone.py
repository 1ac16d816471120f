"""Behaviour cloning: a scorer that chooses as the teacher does, judged on clusters it has not learned from.

The loss is a weighted sum: `cross_entropy` follows the teacher's probabilities and learns fast; `regret`, what choices
cost on average beyond the best, is linear in the costs, so that the noise of a teacher's word averages out.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnomon.core.streams import stream
from gnomon.routing.config import CloneConfig
from gnomon.routing.demos import Demos
from gnomon.routing.network import Scorer, log_probabilities

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
        loss = loss + config.regret_weight * (log_p.exp() * batch["mask"] * batch["costs"]).sum(-1).mean()
    return loss


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
