"""The best static placement, by the rule and by simulation, and whether moving GPUs pays on top of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gnomon.core.errors import ConfigError
from gnomon.posttrain.advise import Advice, StageCosts, advise, candidates
from gnomon.posttrain.calibrate import colocated_costs
from gnomon.posttrain.compare import placed
from gnomon.posttrain.config import Posttrain
from gnomon.posttrain.policies import make_policy
from gnomon.posttrain.record import RunRecord
from gnomon.posttrain.simulate import cluster_options, run

ELASTIC_PAYS = 1.02
"""Elastic scheduling is advised from this speed-up over the best static choice on."""


@dataclass(frozen=True)
class Tried:
    """One placement, simulated."""

    actor: int
    rollout: int
    inference: int
    static: RunRecord
    elastic: RunRecord | None

    @property
    def speedup(self) -> float | None:
        """Of moving GPUs over this static placement."""
        return self.elastic.tokens_s / self.static.tokens_s if self.elastic else None


@dataclass(frozen=True)
class Report:
    """What the advisor found."""

    costs: StageCosts
    rule: Advice
    colocated: RunRecord
    tried: list[Tried]
    """The shortest static step first."""

    @property
    def best_static_s(self) -> float:
        """The shortest static step, side by side or taking turns."""
        return min(self.colocated.step_s, *(one.static.step_s for one in self.tried))

    @property
    def best_elastic(self) -> Tried:
        """The placement from which elastic scheduling is fastest."""
        with_elastic = [one for one in self.tried if one.elastic]
        return min(with_elastic or self.tried, key=lambda one: (one.elastic or one.static).step_s)

    @property
    def elastic_pays(self) -> bool:
        """Whether moving GPUs beats every static choice."""
        record = self.best_elastic.elastic
        return record is not None and self.best_static_s / record.step_s >= ELASTIC_PAYS


def place(
    config: Posttrain,
    *,
    costs: StageCosts | None = None,
    num_simulated: int = 6,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Ask the rule with stage costs (simulated unless given), then simulate its best candidates.

    `config` needs no valid placement: only its sizes matter.
    """
    start = placed(config, *candidates(config)[0])
    costs = costs or colocated_costs(start)
    rule = advise(config, costs)
    near = _nearest(config, costs, num_simulated)
    tried = []
    for done, sizes in enumerate(near):
        on_progress(done, len(near))
        tried.append(_try(placed(config, *sizes), sizes))
    tried.sort(key=lambda one: one.static.step_s)
    return Report(costs, rule, run(start, make_policy("colocated")), tried)


def _nearest(config: Posttrain, costs: StageCosts, count: int) -> list[tuple[int, int, int]]:
    """The best placement of each actor size by the GPUs that its stages need, the most balanced first."""
    if count < 1:
        raise ConfigError("at least one placement is simulated.", where="--top")
    total = config.cluster.num_gpus
    whole = costs.actor + costs.rollout + costs.inference

    def distance(sizes: tuple[int, int, int]) -> float:
        shares = (costs.actor / whole, costs.rollout / whole, costs.inference / whole)
        return sum(abs(size / total - share) for size, share in zip(sizes, shares, strict=True))

    rule = advise(config, costs)
    chosen = sorted(candidates(config), key=distance)[:count]
    advice = (rule.actor, rule.rollout, rule.inference)
    return chosen if rule.is_colocated or advice in chosen else [advice, *chosen[: count - 1]]


def _try(config: Posttrain, sizes: tuple[int, int, int]) -> Tried:
    static = run(config, make_policy("disaggregated"))
    can_lend = sizes[0] % config.rollout.num_gpus == 0
    options = cluster_options(config, "elastic") | ({} if can_lend else {"use_pre_process_policy": False})
    return Tried(*sizes, static, run(config, make_policy("elastic", options)))
