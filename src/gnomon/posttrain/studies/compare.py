"""Policies on the same lengths, and what a clairvoyant would have done.

The oracle knows every length in advance. It deals prompts to instances by their true lengths, and chooses among all
policies and a grid of elastic plans the one that turns out shortest: no policy in the comparison is better, since each
is among its choices. It bounds these plans, not every conceivable one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from gnomon.posttrain.policies import COMPARED, Policy, make_policy
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.posttrain.scenario.placement import placement_of
from gnomon.posttrain.simulator.record import RunRecord
from gnomon.posttrain.simulator.simulate import cluster_options, run

BASELINE, ORACLE = "disaggregated", "oracle"
"""What speed-ups are over, the static placement side by side; and the best of all plans, with hindsight."""
_ORACLE_SHARES = (0.3, 0.5, 0.7)
_ORACLE_PACKING = (0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Outcome:
    """One policy of a comparison."""

    policy: str
    record: RunRecord
    speedup: float
    """Over `BASELINE` (tokens per second)."""
    regret: float
    """Share of the oracle's throughput that is missing."""


def policies_to_compare(config: Posttrain, names: tuple[str, ...] = COMPARED) -> list[Policy]:
    """Each by its name, with the configured options where it is the configured policy."""
    chosen = []
    for name in names:
        options = cluster_options(config, name)
        if name == config.policy.name:
            options |= config.policy.options
        chosen.append(make_policy(name, options))
    return chosen


def compare(
    config: Posttrain, policies: list[Policy], *, with_oracle: bool = True,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Outcome]:  # fmt: skip
    """Run every policy on the same lengths, the oracle last. `on_progress(done, total)` counts runs."""
    placement_of(config)
    plans = list(_plans(config)) if with_oracle else []
    records = []
    for number, policy in enumerate([*policies, *plans]):
        on_progress(number, len(policies) + len(plans))
        records.append(run(config, policy))
    if with_oracle:
        records = [*records[: len(policies)], _of_oracle(max(records, key=lambda one: one.tokens_s))]
    baseline = next((one for one in records if one.policy == BASELINE), None) or run(config, make_policy(BASELINE))
    best = max(one.tokens_s for one in records)
    return [Outcome(one.policy, one, one.tokens_s / baseline.tokens_s, 1.0 - one.tokens_s / best) for one in records]


def run_chosen(
    config: Posttrain, *, keep_decisions: bool, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> RunRecord:
    """The configured policy's run; the oracle's is that of the plan which turns out best."""
    if config.policy.name != ORACLE:
        return run(config, keep_decisions=keep_decisions, on_progress=on_progress)
    plans = [*policies_to_compare(config), *_plans(config)]
    best = max(plans, key=lambda plan: run(config, plan).tokens_s)
    return _of_oracle(run(config, best, keep_decisions=keep_decisions, on_progress=on_progress))


def _of_oracle(best: RunRecord) -> RunRecord:
    """The run that the oracle chose, under its name."""
    return replace(best, policy=ORACLE, follows=best.policy)


def _plans(config: Posttrain) -> Iterator[Policy]:
    """Plans that only a clairvoyant can choose rightly: they deal by true lengths."""
    yield make_policy("colocated", {"balance": True})
    placement, size = placement_of(config), config.rollout.num_gpus
    can_pre_process = len(placement.actor) % size == 0
    can_lend = can_pre_process and bool(placement.inference) and len(placement.inference) % size == 0
    lends, waits = (False, True)[: 1 + can_lend], (False, True)
    for lend, wait, share, packing in product(lends, waits, _ORACLE_SHARES, _ORACLE_PACKING):
        options = {
            "use_pre_process_policy": can_pre_process, "use_wait_before_last_iter_policy": wait,
            "lend_inference": lend, "start_share": share, "packing": packing, "balance": True,
        }  # fmt: skip
        yield make_policy("elastic", options)


def placed(config: Posttrain, actor: int, rollout: int, inference: int) -> Posttrain:
    """A configuration with components side by side in these sizes."""
    names = ("actor", "rollout", "inference")
    starts = (0, actor, actor + rollout)
    update = {
        name: f"{start}-{start + size - 1}" if size else None
        for name, start, size in zip(names, starts, (actor, rollout, inference), strict=True)
    }
    placement = config.cluster.component_placement.model_copy(update=update)
    cluster = config.cluster.model_copy(update={"component_placement": placement})
    return config.model_copy(update={"cluster": cluster})
