"""Is a schedule one training step, and can it run? A deadlock is named by its cycle."""

from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from gnomon.core.errors import DataError
from gnomon.pipeline.schedule import Schedule, provides, upstream

Node = tuple[int, int]  # (rank, position in its list).


def validate(schedule: Schedule, *, where: str | None = None, memory_limit: float | None = None) -> None:
    """Raise `DataError` unless every pass is there once, transfers match, and the order can be executed.

    With `memory_limit`, no rank may hold more activations than that, in those of one micro-batch on a whole rank.
    """
    where = where or schedule.name
    _check_complete(schedule, where)
    _check_transfers(schedule, where)
    if memory_limit is not None:
        _check_memory(schedule, where, memory_limit)
    try:
        TopologicalSorter(predecessors(schedule)).prepare()
    except CycleError as error:
        steps = " -> ".join(f"{schedule.ranks[rank][at]} (rank {rank})" for rank, at in error.args[1])
        what = f"the schedule deadlocks: {steps}, where each waits for the one before it."
        fix = "Move one of these actions within its rank so that the circle opens."
        raise DataError(what, where=where, fix=fix) from None


def _check_complete(schedule: Schedule, where: str) -> None:
    counts = Counter((part.kind, part.stage, part.microbatch) for _, part in schedule.passes())
    for (kind, stage, microbatch), count in counts.items():
        if count > 1:
            raise DataError(f"{stage}{kind}{microbatch} is there {count} times.", where=where, fix="Keep one of them.")
    homes: dict[tuple[int, int], set[int]] = defaultdict(set)
    for rank, part in schedule.passes():
        homes[part.stage, part.microbatch].add(rank)
    for rank, actions in enumerate(schedule.ranks):
        if not any(action.computes for action in actions):
            raise DataError(f"rank {rank} computes nothing.", where=where)
    for stage in range(schedule.num_stages):
        for microbatch in range(schedule.num_microbatches):
            if len(homes[stage, microbatch]) > 1:
                ranks = " and ".join(map(str, sorted(homes[stage, microbatch])))
                what = f"stage {stage}, micro-batch {microbatch} is spread over ranks {ranks}."
                fix = "Forward and gradients of a micro-batch belong where its activations are."
                raise DataError(what, where=where, fix=fix)
            has = {kind for kind in "FIWB" if (kind, stage, microbatch) in counts}
            if "F" not in has:
                raise DataError(f"{stage}F{microbatch} is missing.", where=where)
            if has not in ({"F", "B"}, {"F", "I", "W"}):
                found = ", ".join(f"{stage}{kind}{microbatch}" for kind in "IWB" if kind in has) or "neither"
                what = f"stage {stage}, micro-batch {microbatch} needs either B or both I and W; found {found}."
                raise DataError(what, where=where)


def _check_transfers(schedule: Schedule, where: str) -> None:
    """Explicit SEND and RECV actions, where a schedule has them, must come in pairs and on the right side."""
    for rank, actions in enumerate(schedule.ranks):
        seen: set[tuple[str, int, int]] = set()
        for action in actions:
            direction, _, what = action.kind.partition("_")
            if direction in ("SEND", "RECV"):
                needed = ("F" if what == "F" else "G", action.stage, action.microbatch)
                if direction == "SEND" and needed not in seen:
                    raise DataError(f"rank {rank} sends {action} before it has computed it.", where=where)
                if direction == "RECV" and needed in seen:
                    raise DataError(f"rank {rank} receives {action} after it has used it.", where=where)
            seen.update(provides(part) for part in action.computes)
    for what, step in (("F", 1), ("B", -1)):
        sent = Counter(
            (a.stage + step, a.microbatch) for row in schedule.ranks for a in row if a.kind == f"SEND_{what}"
        )
        got = Counter((a.stage, a.microbatch) for row in schedule.ranks for a in row if a.kind == f"RECV_{what}")
        if sent != got:
            stage, microbatch = next(iter((sent - got) or (got - sent)))
            missing = f"{stage}RECV_{what}{microbatch}" if (sent - got) else f"{stage - step}SEND_{what}{microbatch}"
            raise DataError(f"{missing} is missing.", where=where, fix="Every SEND needs its RECV.")


def _check_memory(schedule: Schedule, where: str, limit: float) -> None:
    part = schedule.num_ranks / schedule.num_stages
    for rank, actions in enumerate(schedule.ranks):
        held = 0.0
        for action in actions:
            # A pair takes its forward's memory before its backward gives back.
            for one in sorted(action.computes, key=lambda one: one.kind != "F"):
                held += {"F": part, "B": -part, "W": -part}.get(one.kind, 0.0)
                if held > limit + 1e-9:
                    what = f"rank {rank} holds {held:g} activations at {action}, more than the limit of {limit:g}."
                    raise DataError(what, where=where, fix="Put backwards earlier, or raise the limit.")


def predecessors(schedule: Schedule) -> dict[Node, list[Node]]:
    """For every action that computes: the one before it on its rank, and those whose results it needs."""
    actions = {(rank, at): one for rank, row in enumerate(schedule.ranks) for at, one in enumerate(row) if one.computes}
    home = {provides(part): node for node, action in actions.items() for part in action.computes}
    before = {
        node: [home[need] for part in action.computes for need in upstream(part, schedule.num_stages)]
        for node, action in actions.items()
    }
    for earlier, later in pairwise(actions):
        if earlier[0] == later[0]:
            before[later].append(earlier)
    return before
