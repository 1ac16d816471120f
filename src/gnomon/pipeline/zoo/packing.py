"""Lists of actions while they are being packed: every rank's clock, memory and bubble so far.

The heuristic schedules (ZB-1p/2p, ZB-V) decide what comes next by looking at these. A micro-batch's way through the
ranks is cut into legs: down the pipe, or up it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gnomon.core.errors import ConfigError
from gnomon.pipeline.schedule import Action
from gnomon.pipeline.zoo.plan import Plan


@dataclass(frozen=True)
class Leg:
    """One pass of all ranks in turn: `step` +1 goes from rank 0 to the last, -1 back."""

    kind: str
    step: int
    stage: Callable[[int], int]
    """The stage a rank works on in this leg."""


class Timeline:
    """Actions appended rank by rank; each starts as soon as its rank is free and its input is there."""

    def __init__(self, plan: Plan, legs: tuple[Leg, ...], *, pieces: int, memory_limit: float) -> None:
        """`pieces`: parts that a rank's times and activations are cut into; `memory_limit` in such parts."""
        self.plan, self.legs, self.limit = plan, legs, memory_limit
        self.time = {"F": plan.forward / pieces, "I": plan.input_grad / pieces, "W": plan.weight_grad / pieces}
        self.memory_of = {"F": 1.0, "I": plan.weight_grad_memory - 1.0, "W": -plan.weight_grad_memory}
        self.order: list[list[Action]] = [[] for _ in range(plan.ranks)]
        self.clock = [0.0] * plan.ranks
        self.memory = [0.0] * plan.ranks
        self.bubble = [0.0] * plan.ranks
        self.first_start = [0.0] * plan.ranks
        self.count = [[0] * len(legs) for _ in range(plan.ranks)]
        self.put_off: list[deque[Action]] = [deque() for _ in range(plan.ranks)]
        self._end: dict[tuple[int, int, int], float] = {}

    @property
    def longest_span(self) -> float:
        """The longest time from a rank's first start to its last end."""
        return max(end - start for start, end in zip(self.first_start, self.clock, strict=True))

    def end(self, leg: int, rank: int, microbatch: int) -> float | None:
        """When a pass ends, or None while it is not in a list."""
        return self._end.get((leg, rank, microbatch))

    def arrival(self, leg: int, rank: int) -> float | None:
        """When the input of the rank's next pass of `leg` is there; None while that is unknown."""
        before = rank - self.legs[leg].step
        microbatch = self.count[rank][leg]
        if 0 <= before < self.plan.ranks:
            end = self.end(leg, before, microbatch)
            return None if end is None else end + self.plan.hop
        return 0.0 if leg == 0 else self.end(leg - 1, rank, microbatch)

    def fits(self, rank: int, kind: str, count: int = 1) -> bool:
        """Whether `count` more passes stay within the memory limit."""
        return self.memory[rank] + count * self.memory_of[kind] <= self.limit + 1e-9

    def put(self, leg: int, rank: int) -> None:
        """Append the rank's next pass of `leg`."""
        kind, microbatch = self.legs[leg].kind, self.count[rank][leg]
        arrival = self.arrival(leg, rank)
        assert arrival is not None, "a pass was put before its input"
        action = Action(kind, self.legs[leg].stage(rank), microbatch)
        start = max(self.clock[rank], arrival)
        if self.order[rank]:
            self.bubble[rank] += start - self.clock[rank]
        else:
            self.first_start[rank] = start
        self._append(rank, action, start)
        self._end[leg, rank, microbatch] = self.clock[rank]
        self.count[rank][leg] += 1
        if kind == "I":
            self.put_off[rank].append(Action("W", action.stage, microbatch))

    def put_weights(self, rank: int) -> None:
        self._append(rank, self.put_off[rank].popleft(), self.clock[rank])

    def put_all_weights(self, rank: int) -> None:
        while self.put_off[rank]:
            self.put_weights(rank)

    def make_room(self, rank: int, kind: str) -> None:
        """Append weight gradients until a pass of `kind` fits into the memory."""
        while not self.fits(rank, kind):
            if not self.put_off[rank]:
                what = f"{self.limit:g} activations per rank are too few for this schedule."
                raise ConfigError(what, where="memory_limit", fix="Raise the memory limit.")
            self.put_weights(rank)

    def fill_gap(self, leg: int, rank: int, *, overrun_long: bool, overrun_short: bool, allowance: float = 0.0) -> None:
        """Append weight gradients while the rank waits for the input of `leg`.

        Those that fit go in. One more, which delays the pass, goes in if allowed: by `overrun_long` where the gap
        would make this rank's bubble the longest (beyond `allowance`, too), else by `overrun_short`.
        """
        arrival = self.arrival(leg, rank)
        assert arrival is not None
        while self.put_off[rank] and self.clock[rank] + self.time["W"] <= arrival:
            self.put_weights(rank)
        gap = arrival - self.clock[rank]
        if not self.put_off[rank] or gap <= 0.0:
            return
        is_long = gap > max(max(self.bubble), allowance) - self.bubble[rank]
        if overrun_long if is_long else overrun_short:
            self.put_weights(rank)

    def _append(self, rank: int, action: Action, start: float) -> None:
        self.order[rank].append(action)
        self.clock[rank] = start + self.time[action.kind]
        self.memory[rank] += self.memory_of[action.kind]
