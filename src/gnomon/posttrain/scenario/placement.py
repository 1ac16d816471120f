"""Placements: who owns which GPUs at the start, and every rule that can be checked before anything runs."""

from dataclasses import dataclass
from itertools import combinations

from gnomon.core.errors import ConfigError
from gnomon.posttrain.scenario.config import GpuRange, Posttrain


@dataclass(frozen=True)
class Placement:
    """GPUs of each component; colocated components own the same ones in turn."""

    actor: tuple[int, ...]
    rollout: tuple[int, ...]
    inference: tuple[int, ...]

    @property
    def is_shared(self) -> bool:
        """Whether some GPU has more than one component (in turn)."""
        return len({*self.actor, *self.rollout, *self.inference}) < sum(map(len, self.by_name().values()))

    def by_name(self) -> dict[str, tuple[int, ...]]:
        return {"actor": self.actor, "rollout": self.rollout, "inference": self.inference}


def valid_actor_sizes(config: Posttrain) -> list[int]:
    """GPUs that the actor may have: whole copies, over which what a mini-batch deals out divides evenly."""
    algorithm, copy = config.algorithm, config.actor.num_gpus
    dealt = algorithm.rollout_batch_size // algorithm.n_minibatches
    if config.actor.deal == "sequences":
        dealt *= algorithm.group_size
    return [d * copy for d in range(1, config.cluster.num_gpus // copy + 1) if dealt % d == 0]


def placement_of(config: Posttrain) -> Placement:
    """Check every rule; raises ConfigError with the nearest valid choice."""
    cluster, algorithm = config.cluster, config.algorithm
    n, r = algorithm.n_minibatches, algorithm.rollout_batch_size
    if r % n:
        near = _nearest(n, [d for d in range(1, r + 1) if r % d == 0])
        what = f"{r} prompts x {algorithm.group_size} samples do not divide into {n} mini-batches of whole groups."
        fix = f"Use {near}, or a rollout_batch_size of {max(n, round(r / n) * n)}."
        raise ConfigError(what, where="algorithm.n_minibatches", fix=fix)
    given = cluster.component_placement
    names = ("actor", "rollout", "inference")
    placement = Placement(*(_gpus(getattr(given, name), cluster.num_gpus, name) for name in names))
    if placement.inference and not algorithm.recompute_logprobs:
        what = "has GPUs, but log-probabilities are not recomputed."
        fix = "Leave inference out and give its GPUs to rollout, or set algorithm.recompute_logprobs: true."
        raise _error("inference", what, fix)
    if not placement.inference and algorithm.recompute_logprobs:
        what = "has no GPUs, but log-probabilities are recomputed."
        fix = f"Give it {config.inference.num_gpus}, or set algorithm.recompute_logprobs: false."
        raise _error("inference", what, fix)
    parts = {name: gpus for name, gpus in placement.by_name().items() if gpus}
    for (one, mine), (other, others) in combinations(parts.items(), 2):
        common = set(mine) & set(others)
        if common and (cluster.auto_scheduler or mine != others):
            end = "." if cluster.auto_scheduler else ", or the same GPUs for all components (colocated)."
            fix = f"Use {_contiguous_text(config, placement)}{end}"
            raise _error(other, f"shares GPU {min(common)} with {one}.", fix)
    if placement.is_shared and len({*parts.values()}) > 1:
        raise _error("inference", "some components share GPUs and others do not.", "Use the same GPUs for all.")
    for name, gpus in parts.items():
        size = getattr(config, name).num_gpus
        if len(gpus) % size:
            low = len(gpus) // size * size
            near_sizes = f"{low} or {low + size}" if low else str(size)
            raise _error(name, f"{len(gpus)} GPUs do not hold whole copies of {size} GPUs.", f"Use {near_sizes} GPUs.")
    sizes, actor = valid_actor_sizes(config), len(placement.actor)
    if not sizes:
        what = f"a copy of the actor needs {config.actor.num_gpus} GPUs, the cluster has {cluster.num_gpus}."
        raise ConfigError(what, where="actor.tensor_parallel")
    if actor not in sizes:
        raise _error(
            "actor",
            f"{actor} GPUs are {actor // config.actor.num_gpus} data-parallel copies, over which the {r // n} groups"
            " of a mini-batch do not divide evenly.",
            f"Use {_nearest(actor, sizes)} GPUs (valid: {', '.join(map(str, sizes))}).",
        )
    if cluster.auto_scheduler:
        check_movable(config, placement, cluster.use_pre_process_policy, cluster.lend_inference)
    return placement


def _error(component: str, what: str, fix: str) -> ConfigError:
    return ConfigError(what, where=f"cluster.component_placement.{component}", fix=fix)


def _gpus(given: GpuRange | None, total: int, component: str) -> tuple[int, ...]:
    """`0-3,8` and the like as GPU numbers."""
    if given is None:
        return ()
    if given == "all":
        return tuple(range(total))
    numbers: list[int] = []
    try:
        for part in given if isinstance(given, tuple) else str(given).split(","):
            first, _, last = str(part).strip().partition("-")
            numbers += range(int(first), int(last or first) + 1)
    except ValueError:
        raise _error(component, f"cannot read {given!r}.", "Write GPUs as 0-3, 5, or 0-3,8-9.") from None
    if not numbers or len(set(numbers)) < len(numbers):
        raise _error(component, f"{given!r} names {'a GPU twice' if numbers else 'no GPU'}.", "Write for example 0-3.")
    if max(numbers) >= total:
        what = f"GPU {max(numbers)} is not there: the cluster has {total}."
        raise _error(component, what, f"The last one is {total - 1}; or raise cluster.num_nodes.")
    return tuple(sorted(numbers))


def check_movable(config: Posttrain, placement: Placement, lend_actor: bool, lend_inference: bool) -> None:
    """Whether GPUs can move: actor -> rollout -> inference, contiguous from GPU 0, covering the cluster.

    GPUs that are lent to rollout hold whole instances.
    """
    at = 0
    for gpus in placement.by_name().values():
        if gpus and gpus != tuple(range(at, at + len(gpus))):
            what = "to move GPUs (auto_scheduler) the order is actor, rollout, inference, contiguous from GPU 0."
            fix = f"Use {_contiguous_text(config, placement)}."
            raise ConfigError(what, where="cluster.component_placement", fix=fix)
        at += len(gpus)
    total = config.cluster.num_gpus
    if at != total:
        what = f"to move GPUs (auto_scheduler) components cover the cluster, but {total - at} of {total} are nobody's."
        fix = f"Give rollout {len(placement.rollout) + total - at} GPUs."
        raise ConfigError(what, where="cluster.component_placement", fix=fix)
    tensor = config.rollout.num_gpus
    if lend_actor and len(placement.actor) % tensor:
        sizes = [size for size in valid_actor_sizes(config) if size % tensor == 0]
        choice = f"Give the actor {_nearest(len(placement.actor), sizes)} GPUs, or set" if sizes else "Set"
        raise _error(
            "actor",
            f"{len(placement.actor)} GPUs do not hold whole rollout instances of {tensor} (use_pre_process_policy).",
            f"{choice} use_pre_process_policy: false.",
        )
    if lend_inference and len(placement.inference) % tensor:
        raise _error(
            "inference",
            f"{len(placement.inference)} GPUs do not hold whole rollout instances of {tensor} (lend_inference).",
            f"Give inference {max(tensor, len(placement.inference) // tensor * tensor)} GPUs, or set"
            " lend_inference: false.",
        )


def _contiguous_text(config: Posttrain, placement: Placement) -> str:
    """A placement's sizes in the scheduler's order; rollout makes way where they are too many."""
    total = config.cluster.num_gpus
    actor = min(len(placement.actor), max(1, total // 2))
    inference = min(len(placement.inference), max(0, total - actor - 1))
    ends = (actor, total - inference)
    parts = [f"actor: {_range_text(0, ends[0])}", f"rollout: {_range_text(*ends)}"]
    if inference:
        parts.append(f"inference: {_range_text(ends[1], total)}")
    return "{" + ", ".join(parts) + "}"


def _range_text(first: int, end: int) -> str:
    return f"{first}-{end - 1}" if end - first > 1 else str(first)


def _nearest(value: int, choices: list[int]) -> int:
    return min(choices, key=lambda one: (abs(one - value), one))
