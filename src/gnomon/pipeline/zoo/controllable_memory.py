"""V-Half and V-Min: a half and a third of the activations of 1F1B (arXiv 2405.15362).

Both repeat a building block every six slots: where the four passes of a micro-batch fall on each rank decides how long
its activations live. The repeated block has idle slots at both ends, which are then filled by moving passes forward
as far as dependencies and the block's own peak memory allow. Weight gradients go into the first free slots.

The heuristic is the one of the authors' own implementation (sail-sg/zero-bubble-pipeline-parallelism).
"""

from collections.abc import Callable

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.pipeline.schedule import Action, Schedule
from gnomon.pipeline.zoo.plan import Plan, built_in

PERIOD = 6  # Slots per micro-batch: two chunks of forward, input gradient and weight gradient.
F_DOWN, F_UP, B_DOWN, B_UP, WEIGHTS = range(5)
Offsets = Callable[[int, int], tuple[int, int, int, int]]


def _v_half(ranks: int, rank: int) -> tuple[int, int, int, int]:
    shift = 3 if ranks % 2 == 0 else 0  # Keeps the four passes of a rank on different slots modulo six.
    return 2 * rank, 3 * ranks - rank - 2, 3 * ranks + shift + 2 * rank - 1, 6 * ranks + shift - rank - 2


def _v_min(ranks: int, rank: int) -> tuple[int, int, int, int]:
    shift = 2 if ranks % 3 == 0 else 0
    return rank, 2 * ranks - rank - 1, 2 * ranks + shift + rank, 4 * ranks + shift - rank - 1


class _Slots:
    """Which pass sits in which slot of each rank."""

    def __init__(self, ranks: int, microbatches: int, offsets: Offsets) -> None:
        self.ranks, self.m = ranks, microbatches
        self.at: Ints = np.array(
            [[offset + PERIOD * np.arange(microbatches) for offset in offsets(ranks, r)] for r in range(ranks)]
        )
        """[rank, leg, micro-batch] -> slot."""
        self.weights: list[list[int]] = [self._free_for_weights(rank) for rank in range(ranks)]
        """Slots of a rank's weight gradients, in order."""

    def _free_for_weights(self, rank: int) -> list[int]:
        """The first free slots after each input gradient."""
        taken = {int(slot): leg for leg in range(4) for slot in self.at[rank, leg]}
        slots: list[int] = []
        waiting = slot = 0
        while len(slots) < 2 * self.m:
            leg = taken.get(slot)
            if leg in (B_DOWN, B_UP):
                waiting += 1
            elif leg is None and waiting:
                slots.append(slot)
                waiting -= 1
            slot += 1
        return slots

    def memory(self, rank: int, length: int) -> Ints:
        change = np.zeros(length + 1, dtype=np.int64)
        np.add.at(change, self.at[rank, :2].ravel(), 1)
        np.subtract.at(change, np.array(self.weights[rank]), 1)
        return np.cumsum(change)

    def earliest(self, rank: int, leg: int, microbatch: int) -> int:
        """The first slot in which a pass could be, by its dependencies."""
        if leg == WEIGHTS:
            return 1 + int(np.sort(self.at[rank, 2:].ravel())[microbatch])
        before = rank - (1 if leg in (F_DOWN, B_DOWN) else -1)
        needs = [-1]
        if 0 <= before < self.ranks:
            needs.append(int(self.at[before, leg, microbatch]))
        if leg > 0:
            needs.append(int(self.at[rank, leg - 1, microbatch]))
        if microbatch > 0:
            needs.append(int(self.at[rank, leg, microbatch - 1]))
        return 1 + max(needs)

    def squeeze(self) -> None:
        """Move the passes of warm-up and cool-down forward into free slots, within the block's peak memory."""
        length = 1 + max(int(self.at.max()), max(slots[-1] for slots in self.weights))
        profile = [self.memory(rank, length) for rank in range(self.ranks)]
        limit = max(int(memory.max()) for memory in profile)
        free = np.ones((self.ranks, length + 1), dtype=np.bool_)
        todo = []
        for rank in range(self.ranks):
            free[rank, self.at[rank].ravel()] = False
            free[rank, self.weights[rank]] = False
            todo += [(int(self.at[rank, leg, i]), rank, leg, i) for leg in range(4) for i in range(self.m)]
            todo += [(slot, rank, WEIGHTS, i) for i, slot in enumerate(self.weights[rank])]
        steady = (int(self.at[0, B_UP, 0]), int(self.at[0, F_DOWN, -1]))
        for slot, rank, leg, i in sorted(todo):
            if steady[0] <= slot <= steady[1]:
                continue
            choices = np.flatnonzero(free[rank, self.earliest(rank, leg, i) : slot])
            for choice in choices + self.earliest(rank, leg, i):
                growth = {F_DOWN: 1, F_UP: 1, WEIGHTS: -1}.get(leg, 0)
                if growth > 0 and profile[rank][choice:slot].max() + growth > limit:
                    continue
                profile[rank][choice:slot] += growth
                free[rank, choice], free[rank, slot] = False, True
                if leg == WEIGHTS:
                    self.weights[rank][i] = int(choice)
                else:
                    self.at[rank, leg, i] = choice
                break

    def order(self, rank: int) -> tuple[Action, ...]:
        """The rank's list; a weight gradient is that of the oldest input gradient without one."""
        last = 2 * self.ranks - 1
        stage = {F_DOWN: rank, F_UP: last - rank, B_DOWN: last - rank, B_UP: rank}
        kind = "FFII"
        slots = [(int(self.at[rank, leg, i]), leg, i) for leg in range(4) for i in range(self.m)]
        slots += [(slot, WEIGHTS, 0) for slot in self._free_for_weights(rank)]
        order: list[Action] = []
        put_off: list[Action] = []
        for _, leg, i in sorted(slots):
            if leg == WEIGHTS:
                order.append(put_off.pop(0))
                continue
            order.append(Action(kind[leg], stage[leg], i))
            if kind[leg] == "I":
                put_off.append(Action("W", stage[leg], i))
        return tuple(order)


def _make(name: str, plan: Plan, offsets: Offsets) -> Schedule:
    slots = _Slots(plan.ranks, plan.microbatches, offsets)
    slots.squeeze()
    return Schedule(name, tuple(slots.order(rank) for rank in range(plan.ranks)))


@built_in("v-half")
def v_half(plan: Plan) -> Schedule:
    """Half of the activations of 1F1B."""
    return _make("v-half", plan, _v_half)


@built_in("v-min")
def v_min(plan: Plan) -> Schedule:
    """A third of the activations of 1F1B."""
    return _make("v-min", plan, _v_min)
