"""Policies over cluster sizes, the placement scaled along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnomon.core.errors import ConfigError
from gnomon.core.sizes import MAX_NODES
from gnomon.posttrain.advise import candidates
from gnomon.posttrain.compare import compare, placed, policies_to_compare
from gnomon.posttrain.config import Posttrain
from gnomon.posttrain.placement import placement_of


def scaled(config: Posttrain, num_nodes: int) -> Posttrain:
    """A configuration on another number of nodes, with the valid placement whose shares are nearest."""
    before, total = placement_of(config), config.cluster.num_gpus
    shares = [len(gpus) / total for gpus in before.by_name().values()]
    larger = config.model_copy(update={"cluster": config.cluster.model_copy(update={"num_nodes": num_nodes})})
    if before.is_shared:
        return larger

    def distance(sizes: tuple[int, int, int]) -> float:
        return sum(abs(size / larger.cluster.num_gpus - share) for size, share in zip(sizes, shares, strict=True))

    copy = config.rollout.num_gpus
    found = candidates(larger)
    whole = [sizes for sizes in found if sizes[0] % copy == 0]  # The actor's GPUs can be lent to rollout.
    return placed(larger, *min(whole or found, key=distance))


def sweep(
    config: Posttrain,
    nodes: list[int],
    policies: tuple[str, ...],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, Any]]:
    """One row per size and policy."""
    for num_nodes in nodes:
        if not 1 <= num_nodes <= MAX_NODES:
            raise ConfigError(f"a cluster of {num_nodes:,} nodes.", where="--nodes", fix=f"Give 1 to {MAX_NODES:,}.")
    rows = []
    for done, num_nodes in enumerate(nodes):
        on_progress(done, len(nodes))
        one = scaled(config, num_nodes)
        sizes = {name: len(gpus) for name, gpus in placement_of(one).by_name().items()}
        for outcome in compare(one, policies_to_compare(one, policies), with_oracle=False):
            record = outcome.record
            rows.append(
                {
                    "GPUs": one.cluster.num_gpus,
                    "actor/rollout/inference": "/".join(str(sizes[name]) for name in sizes),
                    "policy": outcome.policy,
                    "step s": record.step_s,
                    "tokens/s": record.tokens_s,
                    "tokens/s/GPU": record.tokens_s / record.num_gpus,
                    "ratio": outcome.speedup,
                    "idle %": 100 * (1 - record.shares()["busy"]),
                }
            )
    return rows
