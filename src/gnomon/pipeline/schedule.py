"""Schedules as data: for every rank the list of its actions, in order.

An action is one pass of one micro-batch through one stage: forward `F`, input gradient `I`, weight gradient `W`, or
both gradients in one `B`. An overlapped pair is one action with two parts. Transfers need no action of their own:
they follow from who computes what.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

COMPUTE_KINDS = ("F", "I", "W", "B")
TRANSFER_KINDS = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")
STAGE_KINDS = ("UNSHARD", "RESHARD", "REDUCE_GRAD")
OVERLAP = "OVERLAP_F_B"


@dataclass(frozen=True, slots=True)
class Action:
    """One cell of a schedule."""

    kind: str
    stage: int
    microbatch: int = 0
    parts: tuple[Action, ...] = ()
    """The actions that an OVERLAP_F_B runs together."""

    @property
    def computes(self) -> tuple[Action, ...]:
        """The passes in it: itself, its parts, or none for a transfer."""
        if self.parts:
            return self.parts
        return (self,) if self.kind in COMPUTE_KINDS else ()

    def __str__(self) -> str:
        if self.parts:
            return f"({';'.join(str(part) for part in self.parts)}){self.kind}"
        return f"{self.stage}{self.kind}" + ("" if self.kind in STAGE_KINDS else str(self.microbatch))


def overlapped(forward: Action, backward: Action) -> Action:
    """A forward and a full backward of different micro-batches that run at the same time."""
    return Action(OVERLAP, forward.stage, forward.microbatch, (forward, backward))


@dataclass(frozen=True)
class Schedule:
    """A named schedule; `ranks[r]` is what rank r does, in order."""

    name: str
    ranks: tuple[tuple[Action, ...], ...]

    @property
    def num_ranks(self) -> int:
        """GPUs (or groups of them)."""
        return len(self.ranks)

    @cached_property
    def num_stages(self) -> int:
        return 1 + max(action.stage for _, action in self.passes())

    @cached_property
    def num_microbatches(self) -> int:
        return 1 + max(action.microbatch for _, action in self.passes())

    def passes(self) -> Iterator[tuple[int, Action]]:
        """Every F, I, W and B with its rank; overlapped pairs one after the other."""
        for rank, actions in enumerate(self.ranks):
            for action in actions:
                for part in action.computes:
                    yield rank, part

    def stages_of(self, rank: int) -> list[int]:
        """The stages whose weights this rank holds."""
        return sorted({part.stage for action in self.ranks[rank] for part in action.computes})


def upstream(action: Action, num_stages: int) -> list[tuple[str, int, int]]:
    """What a pass needs first, as (kind, stage, micro-batch); 'G' stands for the input gradient, by I or by B."""
    stage, microbatch = action.stage, action.microbatch
    if action.kind == "F":
        return [("F", stage - 1, microbatch)] if stage > 0 else []
    if action.kind == "W":
        return [("G", stage, microbatch)]
    needs = [("F", stage, microbatch)]
    if stage < num_stages - 1:
        needs.append(("G", stage + 1, microbatch))
    return needs


def provides(action: Action) -> tuple[str, int, int]:
    """The name under which others wait for this pass."""
    kind = "G" if action.kind in ("I", "B") else action.kind
    return kind, action.stage, action.microbatch
