"""A plan for a GPU budget: layouts, split, mode and staleness, by simulation.

Layouts are those that fit: the actor's fastest per GPU, rollout's smallest. The split follows the seconds that the
stages take on all GPUs. Every mode within the bound on lag is then simulated with the layouts and splits that are left.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

from gnomon import catalog
from gnomon.core.errors import ConfigError, GnomonError
from gnomon.posttrain.costs import Costs, check_actor_memory
from gnomon.posttrain.scenario.config import PolicyConfig, Posttrain
from gnomon.posttrain.scenario.placement import placement_of, valid_actor_sizes
from gnomon.posttrain.simulator.record import RunRecord
from gnomon.posttrain.simulator.rollout import check_memory
from gnomon.posttrain.simulator.simulate import run
from gnomon.posttrain.studies.compare import placed
from gnomon.posttrain.studies.stages import colocated_costs

Goal = Literal["samples", "dollars"]
TENSOR = (1, 2, 4, 8)
EXPERTS = (1, 8)
STALENESS = (0.5, 1.0, 2.0)
NUM_STEPS = 4  # Steps of each simulation; the first, which finds nothing generated, does not count where more follow.


@dataclass(frozen=True, eq=False)
class Planned:
    """One plan, simulated."""

    mode: str
    config: Posttrain
    record: RunRecord

    @property
    def steps(self) -> list[Any]:
        """Without the first, where others follow."""
        return self.record.steps[1:] or self.record.steps

    @property
    def step_s(self) -> float:
        return sum(step.duration_s for step in self.steps) / len(self.steps)

    @property
    def samples_s(self) -> float:
        return self.config.algorithm.num_sequences / self.step_s

    @property
    def dollars(self) -> float:
        """Of 1,000 steps."""
        gpus = self.record.num_gpus + self.record.num_judges
        return 1000.0 * gpus * self.record.price_per_hour * self.step_s / 3600.0

    @property
    def mean_lag(self) -> float:
        """Weight updates between a group's first token and its training."""
        return sum(lag * share for lag, share in self.record.lags().items())

    @property
    def limit(self) -> str:
        """What a step waits for most; side by side, the component that idles least."""
        if self.mode == "colocated":
            waited = [step.waited_for() for step in self.steps]
            return max(waited[0], key=lambda name: sum(one[name] for one in waited))
        bubbles = self.record.bubbles()
        return {"rollout": "generation", "actor": "training"}[min(bubbles, key=lambda name: bubbles[name])]

    def row(self) -> dict[str, Any]:
        c, sizes = self.config, placement_of(self.config)
        named = {"TP": c.actor.tensor_parallel, "PP": c.actor.pipeline_parallel, "EP": c.actor.expert_parallel}
        degrees = ", ".join(f"{name} {degree}" for name, degree in named.items() if degree > 1 or name == "TP")
        return {
            "mode": self.mode, "actor": f"{len(sizes.actor)} ({degrees})",
            "rollout": f"{len(sizes.rollout)} (TP {c.rollout.tensor_parallel})", "staleness": c.algorithm.staleness,
            "step s": self.step_s, "samples/s": self.samples_s, "dollars/1,000 steps": self.dollars,
            "lag": self.record.staleness, "MFU": f"{self.record.mfu:.1%}", "limit": self.limit,
        }  # fmt: skip


def plan(
    config: Posttrain, *, goal: Goal = "samples", max_lag: int = 1,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Planned]:  # fmt: skip
    """Every plan that runs, the best first; `config` gives model, algorithm, lengths and GPUs, not a placement."""
    config = config.model_copy(update={"policy": PolicyConfig()})  # That of the mode, whatever the file says.
    if config.algorithm.recompute_logprobs:  # Nobody but the actor has weights to compute them with.
        config = _with(config, "algorithm", recompute_logprobs=False, actor_passes=config.algorithm.actor_passes + 1)
    asked = [one for layout in _layouts(config) for one in _modes(layout, max_lag)]
    chosen = [one for one in asked if _passes(lambda c: check_actor_memory(c, len(placement_of(c).actor)), one[1])]
    found = []
    for done, (mode, one) in enumerate(chosen):
        on_progress(done, len(chosen))
        found.append(Planned(mode, one, run(one.model_copy(update={"num_steps": NUM_STEPS}))))
    return sorted(found, key=lambda one: one.dollars if goal == "dollars" else -one.samples_s)


def _with(config: Posttrain, section: str, **values: Any) -> Posttrain:
    part = getattr(config, section)
    return config.model_copy(update={section: type(part)(**{**part.model_dump(exclude_unset=True), **values})})


def _layouts(config: Posttrain) -> list[Posttrain]:
    """The actor's two fastest layouts per GPU, with rollout's two smallest."""
    total = config.cluster.num_gpus
    tokens = np.full(8, round(config.lengths.mean + config.lengths.prompt_mean))
    speeds: list[tuple[float, int, Posttrain]] = []
    experts = EXPERTS if catalog.model(config.model).is_moe else (1,)
    for tensor, stages, expert in product(TENSOR, (1, 2, 4, 8), experts):
        degrees = {"tensor_parallel": tensor, "pipeline_parallel": stages, "expert_parallel": expert}
        one = _with(config, "actor", **degrees, deal="sequences")
        if total % one.actor.num_gpus or not valid_actor_sizes(one):
            continue
        try:
            half = max(size for size in valid_actor_sizes(one) if size <= max(one.actor.num_gpus, total // 2))
            check_actor_memory(one, half)
            speeds.append((Costs(one, half).train_s(tokens) * one.actor.num_gpus, len(speeds), one))
        except GnomonError:
            continue
    rollouts = [_with(config, "rollout", tensor_parallel=t) for t in TENSOR]
    rollouts = [one for one in rollouts if total % one.rollout.num_gpus == 0 and _passes(check_memory, one)]
    if not speeds or not rollouts:
        what = "training" if not speeds else "generation"
        raise ConfigError(f"no layout of {what} fits {total} GPUs.", where="cluster", fix="Add nodes.")
    return [
        one.model_copy(update={"rollout": other.rollout}) for _, _, one in sorted(speeds)[:2] for other in rollouts[:2]
    ]


def _passes(check: Callable[..., Any], *given: Any) -> bool:
    try:
        check(*given)
    except GnomonError:
        return False
    return True


def _modes(config: Posttrain, max_lag: int) -> Iterator[tuple[str, Posttrain]]:
    """Taking turns; then each mode side by side, on the two splits nearest to the stages' needs that hold the actor."""
    turns = config.cluster.component_placement.model_copy(update={"actor": "all", "rollout": "all", "inference": None})
    shared = config.model_copy(
        update={"cluster": config.cluster.model_copy(update={"component_placement": turns, "auto_scheduler": False})}
    )
    yield "colocated", shared
    costs, total = colocated_costs(shared.model_copy(update={"num_steps": 1})), config.cluster.num_gpus
    share = costs.actor / (costs.actor + costs.rollout)
    sizes = [one for one in valid_actor_sizes(config) if (total - one) >= config.rollout.num_gpus]
    sizes = [n for n in sizes if (total - n) % config.rollout.num_gpus == 0 and _passes(check_actor_memory, config, n)]
    for actor in sorted(sizes, key=lambda one: abs(one / total - share))[:2]:
        apart = placed(shared, actor, total - actor, 0)
        yield "disaggregated", apart
        if max_lag >= 1:
            yield "one step off", _with(apart, "algorithm", mode="one_step_off")
        for staleness in STALENESS:
            if staleness <= max_lag:
                bounded = {"mode": "async", "staleness": staleness, "max_lag": max_lag}
                yield "asynchronous", _with(apart, "algorithm", **bounded)


def reasons(plans: list[Planned]) -> list[str]:
    """Why the first is the best, and what limits it."""
    best = plans[0]
    bubbles = best.record.bubbles()
    words = [f"{best.mode} is limited by {best.limit}; idle: {', '.join(f'{k} {v:.0%}' for k, v in bubbles.items())}."]
    others = {one.mode: one for one in reversed(plans) if one.mode != best.mode}
    for mode, one in others.items():
        words.append(
            f"{mode} takes {one.step_s / best.step_s:.2f} times as long at its best ({one.step_s:.1f} s), limited by"
            f" {one.limit}."
        )
    if {best.mode, *others} == {"colocated"}:
        words.append("No plan is side by side: on a part of the GPUs no copy of the actor fits, or none of rollout.")
    return words
